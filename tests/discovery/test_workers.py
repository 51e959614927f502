"""What many ranks compute together is what one computes alone: each piece, and a whole run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from partgcd.config.tree import Settings
from partgcd.discovery import fit as fitting
from partgcd.discovery.discover import discover
from partgcd.discovery.outputs import predicted_classes
from partgcd.discovery.refresh import share_of_classes
from partgcd.discovery.task import Task
from partgcd.run.checkpoint import list_checkpoints
from partgcd.run.folder import RunFolder
from partgcd.run.world import SoloWorld

Ranks = Callable[..., list[dict[str, str]]]
SettingsOf = Callable[..., Settings]
IMAGES = 36

PIECES = """
from partgcd.backbone.load import load_backbone
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings
from partgcd.cluster.candidates import Scores, Wanted, select_candidates
from partgcd.discovery.predict import PartModel
from partgcd.cluster.prototypes import calibrated_prototypes
from partgcd.discovery.refresh import Features, assign
from partgcd.cluster.shares import class_shares
from partgcd.cluster.sinkhorn import sinkhorn
from partgcd.discovery.starts import settle_clusters
from partgcd.discovery.step import Trainee, Views, step_loss
from partgcd.methods import partgcd
from partgcd.methods.method import Moment, Scene
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection
from partgcd.run.device import autocast
from partgcd.run.world import ALONE, share_of

N, C, D = 101, 7, 12
draw = torch.Generator().manual_seed(5)
features = torch.nn.functional.normalize(torch.randn(N, D, generator=draw), dim=1)
scores = (torch.randn(N, C, generator=draw) * 2).log_softmax(dim=1)
labels = torch.where(torch.rand(N, generator=draw) < 0.3, torch.randint(0, 3, (N,), generator=draw), -1)
share = share_of(N, world)
mine = slice(share.start, share.stop)
plain = autocast("fp32", torch.device("cpu"))


@check
def sinkhorn_reduces_its_columns():
    alone = sinkhorn(scores, 10, 1e-6)
    assert torch.allclose(sinkhorn(scores[mine], 10, 1e-6, world=world), alone[mine], atol=1e-5)
    shut = scores.clone()
    shut[:, 2] = -torch.inf
    shut[60:, 3] = -torch.inf  # open on rank 0 alone
    shares = torch.tensor([1.0, 1, 1, 1, 2, 0, 1])
    alone = sinkhorn(shut, 10, 1e-6, shares)
    found = sinkhorn(shut[mine], 10, 1e-6, shares, world=world)
    assert torch.allclose(found.exp(), alone[mine].exp(), atol=1e-5)


@check
def shares_are_of_all_images():
    told = torch.tensor([0] * 20 + [1] * 5 + [2] * 2 + [-1] * (N - 27))
    biased = (scores + torch.tensor([2.0, 1, 0, 0, 0, 0, 0])).log_softmax(dim=1)
    for power in ("auto", 0.5):
        alone = class_shares(biased, told, 3, power)
        assert torch.allclose(class_shares(biased[mine], told, 3, power, world), alone)


@check
def prototypes_are_of_all_images_also_where_a_class_is_empty():
    q = scores.exp().clone()
    q[:, 4] = torch.rand(N, generator=torch.Generator().manual_seed(1)) * 1e-3
    q[:, 6] = 0.0
    alone = calibrated_prototypes(features, q, 9)
    assert torch.allclose(calibrated_prototypes(features[mine], q[mine], 9, world=world), alone, atol=1e-6)


@check
def candidates_are_merged_into_the_same_order():
    wanted = torch.nn.functional.normalize(torch.randn(C, D, generator=draw), dim=1)
    q = scores.exp().roll(1, 0)
    q[10:90, 5] = 0.25  # equal scores on both ranks: the smaller row wins
    for mode in ("prediction", "sinkhorn", "prototypes", "calibrated"):
        for count in (1, 13, 1000):
            how = Wanted(mode, count)
            alone = select_candidates(Scores(features, scores, q, wanted), labels, 3, how)
            found = select_candidates(Scores(features[mine], scores[mine], q[mine], wanted), labels, 3, how, world)
            assert torch.equal(found.rows, alone.rows) and torch.equal(found.classes, alone.classes), mode


@check
def the_last_clustering_adds_up_its_sums():
    alone = settle_clusters(features, labels, scores.exp(), 0.1)
    assert torch.equal(settle_clusters(features, labels, scores.exp(), 0.1, world=world), alone)


@check
def losses_and_gradients_are_those_of_the_whole_batch():
    settings = load_settings(assignments=["loss.projector_hidden=16", "loss.projector_out=8"])
    images, parts, dims, classes = 5, 3, 8, 5  # three on rank 0, two on rank 1
    known, assigned = torch.tensor([0, 1, -1, 1, -1]), torch.tensor([0, 1, 3, 1, 4])
    grads, terms = [], []
    for many in (False, True):
        backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
        model = DiscoveryModel(backbone, classes, parts, settings)
        own = torch.Generator().manual_seed(0)
        tokens = backbone.trunk(torch.randint(0, 256, (2 * images, 3, 96, 96), dtype=torch.uint8, generator=own))
        projection = fit_projection(backbone.frozen_patches(tokens).flatten(0, 1), dims, 0)
        shared = Mixture(torch.full((parts,), -1.1), torch.randn(parts, dims, generator=own), torch.ones(parts, dims))
        part_model = PartModel(GMMBank.all_shared(shared, classes), projection)
        pick = (slice(0, 3) if rank == 0 else slice(3, 5)) if many else slice(None)
        seen = tokens.view(2, images, *tokens.shape[1:])[:, pick].flatten(0, 1)
        course = partgcd.begin(Scene(model, known, 2, settings))
        views = Views(seen, assigned[pick], torch.arange(images), known, [3, 2] if many else [images])
        trainee = Trainee(model, part_model, course, settings, plain)
        loss = step_loss(trainee, views, Moment(0.05, 0.7, True), world if many else ALONE)
        loss.total.backward()
        trained = [value for value in model.parameters() if value.requires_grad]
        if many:
            world.sum_gradients(trained)
        grads.append([value.grad for value in trained])
        terms.append(loss.terms)
    for name, value in terms[0].items():
        assert abs(terms[1][name] - value) <= 1e-5 * max(1, abs(value)), name
    for one, other in zip(*grads):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6 * float(one.abs().max() + 1))
"""
CHECKS = [line.split()[1].split("(")[0] for line in PIECES.splitlines() if line.startswith("def ")]

WHOLE = """
from partgcd.discovery import fit as fitting
from partgcd.discovery.discover import discover

losses, real = [], fitting.step_loss


def watched(*what):
    loss = real(*what)
    losses.append(loss.terms["total"])
    return loss


fitting.step_loss = watched


@check
def whole_run():
    discover(world.folder, world.folder.settings(), world)
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))
"""


@pytest.fixture(scope="module")
def pieces(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("pieces")
    RunFolder.create(folder / "run", Settings(), folder, {})
    return ranks(PIECES, 2, folder)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks_find_what_one_finds(pieces: list[dict[str, str]], name: str) -> None:
    for rank, found in enumerate(pieces):
        assert found[name] == "", f"rank {rank}: {found[name]}"


@pytest.mark.parametrize("ranks_there", [1, 2, 3, 7])
@pytest.mark.parametrize("images", [[9, 9, 9, 9, 9], [1, 30, 1, 1], [0, 0, 5], [4]])
def test_classes_are_shared_out_whole_and_by_their_images(ranks_there: int, images: list[int]) -> None:
    classes = torch.arange(len(images)).repeat_interleave(torch.tensor(images))

    class Rank:
        size = ranks_there

        def __init__(self, rank: int) -> None:
            self.rank = rank

    world: Any = Rank
    shares = [share_of_classes(classes, len(images), world(rank)) for rank in range(ranks_there)]
    assert [each for share in shares for each in share] == list(range(len(images)))
    loads = [sum(images[each] for each in share) for share in shares]
    assert max(loads) <= sum(images) / ranks_there + max(images)


def test_a_batch_smaller_than_the_workers_is_refused(photos: Path, settings_of: SettingsOf) -> None:
    from partgcd.config.errors import UserError
    from partgcd.discovery.setup import check_shares

    class Nine:
        size = 9

    world: Any = Nine()
    check_shares(settings_of("train.batch_size=9"), [None] * 36, world)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--workers 8 at most"):
        check_shares(settings_of("train.batch_size=8"), [None] * 36, world)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "epochs"), [(0, 2), (2, 5)])
def test_a_run_of_two_ranks_is_the_run_of_one(
    tmp_path: Path,
    photos: Path,
    settings_of: SettingsOf,
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    pool: int,
    epochs: int,
) -> None:
    settings = settings_of(
        "discovery.classes=4", f"train.epochs={epochs}", "train.batch_size=9", "train.keep_checkpoints=9",
        f"train.view_pool={pool}", "train.pool_refresh=0.5",
    )  # fmt: skip
    runs = [RunFolder.create(tmp_path / at / "run", settings, photos, Task(photos).request()) for at in "ab"]
    losses: list[float] = []
    real = fitting.step_loss

    def watched(*what: Any) -> Any:
        loss = real(*what)
        losses.append(loss.terms["total"])
        return loss

    monkeypatch.setattr(fitting, "step_loss", watched)
    discover(runs[0], settings, SoloWorld(runs[0], torch.device("cpu")))
    found = ranks(WHOLE, 2, tmp_path / "b")
    assert [each["whole_run"] for each in found] == ["", ""]

    assert len(losses) == 4 * epochs
    assert json.loads((tmp_path / "b" / "losses.json").read_text()) == pytest.approx(losses, rel=1e-4)
    for (after, one), (_, other) in list(zip(runs[0].read_epochs(), runs[1].read_epochs(), strict=True))[:2]:
        for name in ("candidate_rows", "candidate_classes"):
            assert np.array_equal(one[name], other[name]), (after, name)
    checkpoints = [list_checkpoints(run.checkpoints) for run in runs]
    assert [path.name for path in checkpoints[0]] == [path.name for path in checkpoints[1]]
    for paths in list(zip(*checkpoints, strict=True))[:2]:
        banks = [
            {
                name: value
                for name, value in load_file(path / "tensors.safetensors").items()
                if "bank." in name
            }
            for path in paths
        ]
        assert banks[0].keys() == banks[1].keys() and banks[0]
        for name, value in banks[0].items():
            assert torch.allclose(banks[1][name].float(), value.float(), atol=1e-4), name
    one_, other_ = (predicted_classes(run, IMAGES) for run in runs)
    assert int((one_ != other_).sum()) <= 1
    assert runs[1].read_metrics()[0]["workers"] == 2
