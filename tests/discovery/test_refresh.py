from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from partgcd.backbone.load import load_backbone
from partgcd.backbone.tokens import TokenStore
from partgcd.cluster.candidates import Candidates
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings
from partgcd.discovery import refresh
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import Features, Look, assign, compute_features, filtered_patches, refit_bank
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection
from partgcd.run.device import autocast

CPU = torch.device("cpu")
PLAIN = autocast("fp32", CPU)
IMAGES, CLASSES, OLD, PARTS, DIM = 20, 4, 2, 3, 6
SETTINGS = load_settings(
    assignments=["loss.projector_hidden=16", "loss.projector_out=8", "parts.min_patches=30"]
)


@pytest.fixture(scope="module")
def model() -> DiscoveryModel:
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
    return DiscoveryModel(backbone, CLASSES, PARTS, SETTINGS)


@pytest.fixture(scope="module")
def store(model: DiscoveryModel, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (IMAGES, 3, 96, 96), dtype=torch.uint8, generator=generator)
    tokens = model.backbone.trunk(pixels)
    made = TokenStore(tmp_path_factory.mktemp("store"), IMAGES, 1, (tokens.shape[1], tokens.shape[2]), "x")
    made.write(0, 0, 0, tokens)
    return made


def look_at(store: TokenStore) -> Look:
    return Look(store, CPU, PLAIN, lambda done, total: None)


@pytest.fixture(scope="module")
def features(model: DiscoveryModel, store: TokenStore) -> Features:
    return compute_features(model, look_at(store))


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0] * 4 + [1] * 4 + [-1] * 12)


def test_features_are_unit_class_tokens_in_row_order(
    model: DiscoveryModel, store: TokenStore, features: Features
) -> None:
    assert features.cls.shape == (IMAGES, model.backbone.info.dim) and features.attention.shape == (
        IMAGES,
        36,
    )
    assert torch.allclose(features.cls.norm(dim=1), torch.ones(IMAGES), atol=1e-5)
    with torch.no_grad():
        alone = model.backbone.block(store.read(np.array([7]), CPU))
    assert torch.allclose(features.cls[7], torch.nn.functional.normalize(alone.cls[0], dim=0), atol=1e-5)
    assert torch.allclose(features.attention[7], alone.attention[0], atol=1e-5)


def test_batches_change_nothing_and_are_counted(
    model: DiscoveryModel, store: TokenStore, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "BATCH", 8)
    told: list[tuple[int, int]] = []
    small = compute_features(model, look_at(store)._replace(tick=lambda *what: told.append(what)))
    assert torch.allclose(small.cls, features.cls, atol=1e-5)
    assert told == [(0, 20), (8, 20), (16, 20), (20, 20)]


def test_labelled_images_belong_to_their_label_and_others_to_some_class(
    model: DiscoveryModel, features: Features, labels: Tensor
) -> None:
    found = assign(model, features, labels, OLD, SETTINGS)
    assert torch.equal(found.assigned[:8], labels[:8])
    assert found.assigned.min() >= 0 and found.assigned.max() < CLASSES
    assert torch.equal(found.predicted, model.prototypes(features.cls).argmax(1))
    # Sinkhorn spreads the images over the classes: none of the unlabelled ones piles up in one.
    assert len(found.assigned[8:].unique()) > 1


def test_new_classes_have_unlabelled_candidates_and_old_ones_their_own(
    model: DiscoveryModel, features: Features, labels: Tensor
) -> None:
    candidates = assign(model, features, labels, OLD, SETTINGS).candidates
    for label in range(OLD):
        mine = candidates.rows[candidates.classes == label]
        assert set(np.flatnonzero(labels == label).tolist()) <= set(mine.tolist())
    new = candidates.rows[candidates.classes >= OLD]
    assert len(new) and (labels[new] < 0).all()


@pytest.mark.parametrize("mode", ["prediction", "sinkhorn", "prototypes", "calibrated"])
def test_every_way_of_ranking_gives_each_new_class_as_many_candidates(
    model: DiscoveryModel, features: Features, labels: Tensor, mode: str
) -> None:
    settings = load_settings(assignments=[f"parts.candidates={mode}"])
    candidates = assign(model, features, labels, OLD, settings).candidates
    counts = torch.bincount(candidates.classes, minlength=CLASSES)
    assert counts[OLD:].max() <= 4


def test_the_ablation_lets_labelled_images_go_where_they_are_predicted(
    model: DiscoveryModel, features: Features, labels: Tensor
) -> None:
    settings = load_settings(assignments=["parts.assignment_of_labelled=predicted"])
    swapped = torch.where(labels >= 0, 1 - labels, labels)
    one = assign(model, features, labels, OLD, settings).assigned
    other = assign(model, features, swapped, OLD, settings).assigned
    assert torch.equal(one, other)
    by_label = assign(model, features, swapped, OLD, SETTINGS).assigned
    assert torch.equal(by_label[:8], swapped[:8])


def test_the_power_of_marginals_leads_from_equal_shares_to_what_is_predicted(
    model: DiscoveryModel, features: Features, labels: Tensor
) -> None:
    sizes = []
    for power in (0.0, 0.5, 1.0):
        settings = load_settings(assignments=[f"discovery.marginal_power={power}"])
        found = assign(model, features, labels, OLD, settings)
        sizes.append(torch.bincount(found.assigned[8:], minlength=CLASSES).double().std().item())
    assert torch.equal(found.assigned[8:], found.predicted[8:]), "1 leaves predictions as they are"
    assert sizes[0] < sizes[2] and sizes[0] <= sizes[1] <= sizes[2]


def test_without_labels_everything_is_assigned_and_every_class_gets_candidates(
    model: DiscoveryModel, features: Features
) -> None:
    found = assign(model, features, torch.full((IMAGES,), -1), 0, SETTINGS)
    assert found.assigned.shape == (IMAGES,)
    assert set(found.candidates.classes.tolist()) == set(range(CLASSES))


def test_patches_are_filtered_by_their_images_mean_attention(
    model: DiscoveryModel, store: TokenStore, features: Features
) -> None:
    rows = np.array([3, 11])
    patches, counts = filtered_patches(model, look_at(store), None, rows, features.attention, True)
    mask = features.attention[rows] >= features.attention[rows].mean(dim=1, keepdim=True)
    assert counts.tolist() == mask.sum(dim=1).tolist()
    assert torch.equal(patches, model.backbone.frozen_patches(store.read(rows, CPU))[mask])
    everything, counts = filtered_patches(model, look_at(store), None, rows, features.attention, False)
    assert counts.tolist() == [36, 36] and len(everything) == 72


def test_classes_with_too_few_patches_keep_the_shared_mixture(
    model: DiscoveryModel, store: TokenStore, features: Features
) -> None:
    everything, _ = filtered_patches(model, look_at(store), None, np.arange(IMAGES), features.attention, True)
    projection = fit_projection(everything, DIM, 0)
    generator = torch.Generator().manual_seed(2)
    shared = Mixture(
        torch.log(torch.full((PARTS,), 1 / PARTS)),
        torch.randn(PARTS, DIM, generator=generator),
        torch.ones(PARTS, DIM),
    )
    before = GMMBank.all_shared(shared, CLASSES)
    candidates = Candidates(torch.tensor([5, 0, 1, 2, 3]), torch.tensor([3, 0, 0, 0, 0]))
    bank, likelihood, seconds = refit_bank(
        model, PartModel(before, projection), candidates, features.attention, SETTINGS, look_at(store)
    )
    assert bank.fitted.tolist() == [True, False, False, False]
    for unfitted in (1, 2, 3):
        assert torch.equal(bank.mu[unfitted], shared.mu) and torch.equal(bank.var[unfitted], shared.var)
    assert not torch.allclose(bank.mu[0], shared.mu)
    assert bank.log_pi.exp().sum(dim=1) == pytest.approx(torch.ones(CLASSES), abs=1e-4)
    assert np.isfinite(likelihood) and seconds > 0
    assert not before.fitted.any(), "the bank of before was changed"


def test_the_order_of_candidates_does_not_matter(
    model: DiscoveryModel, store: TokenStore, features: Features, tmp_path: Path
) -> None:
    everything, _ = filtered_patches(model, look_at(store), None, np.arange(IMAGES), features.attention, True)
    projection = fit_projection(everything, DIM, 0)
    shared = Mixture(
        torch.log(torch.full((PARTS,), 1 / PARTS)), torch.eye(PARTS, DIM), torch.ones(PARTS, DIM)
    )
    rows, classes = torch.arange(12), torch.arange(12) % 3
    banks = []
    for order in (torch.arange(12), torch.arange(12).reshape(4, 3).T.flatten()):
        bank, _, _ = refit_bank(
            model, PartModel(GMMBank.all_shared(shared, CLASSES), projection),
            Candidates(rows[order], classes[order]), features.attention, SETTINGS, look_at(store),
        )  # fmt: skip
        banks.append(bank)
    assert torch.allclose(banks[0].mu, banks[1].mu, atol=1e-4)
