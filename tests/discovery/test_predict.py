from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from partgcd.backbone.load import load_backbone
from partgcd.config.load import load_settings
from partgcd.config.tree import BackboneSettings, Settings
from partgcd.discovery.predict import PartModel, Prediction, predict
from partgcd.model.module import DiscoveryModel, restored
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import fit_projection

CLASSES, PARTS, DIM = 5, 3, 8
SETTINGS = load_settings(assignments=["loss.projector_hidden=16", "loss.projector_out=8"])


def make_model(parts: int | None = PARTS) -> DiscoveryModel:
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
    return DiscoveryModel(backbone, CLASSES, parts, SETTINGS)


@pytest.fixture(scope="module")
def model() -> DiscoveryModel:
    return make_model()


@pytest.fixture(scope="module")
def tokens(model: DiscoveryModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 3, 96, 96), dtype=torch.uint8, generator=generator)
    return model.backbone.trunk(pixels)


@pytest.fixture(scope="module")
def parts(model: DiscoveryModel, tokens: Tensor) -> PartModel:
    """A bank whose classes have other parts, in the space of projected patches."""
    frozen = model.backbone.frozen_patches(tokens).flatten(0, 1)
    projection = fit_projection(frozen, DIM, 0)
    generator = torch.Generator().manual_seed(1)
    shared = Mixture(
        torch.full((PARTS,), -1.1), torch.randn(PARTS, DIM, generator=generator), torch.ones(PARTS, DIM)
    )
    bank = GMMBank.all_shared(shared, CLASSES)
    apart = replace(bank, mu=torch.randn(CLASSES, PARTS, DIM, generator=generator))
    return PartModel(apart, projection)


def answer(
    model: DiscoveryModel, parts: PartModel | None, tokens: Tensor, settings: Settings = SETTINGS
) -> Prediction:
    with torch.no_grad():
        return predict(model, parts, tokens, settings.parts, settings.discovery)


def test_every_probability_is_one(model: DiscoveryModel, parts: PartModel, tokens: Tensor) -> None:
    found = answer(model, parts, tokens)
    assert found.part is not None and found.maps is not None
    for value in (found.overall, found.part, found.fused):
        assert value.shape == (6, CLASSES) and (value >= 0).all()
        assert value.sum(dim=1) == pytest.approx(torch.ones(6), abs=1e-5)
    assert found.maps.shape == (6, 36, PARTS)
    assert found.maps.sum(dim=2) == pytest.approx(torch.ones(6, 36), abs=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0])
def test_fusion_is_the_weighted_mean_of_both_softmaxes(
    model: DiscoveryModel, parts: PartModel, tokens: Tensor, weight: float
) -> None:
    settings = load_settings(assignments=[f"discovery.fusion_part_weight={weight}"])
    found = answer(model, parts, tokens, settings)
    assert found.part is not None
    assert torch.allclose(found.fused, (found.overall + weight * found.part) / (1 + weight), atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_class_head_is_a_softmax_of_cosines_over_the_temperature(
    model: DiscoveryModel, parts: PartModel, tokens: Tensor, temperature: float
) -> None:
    settings = load_settings(assignments=[f"discovery.fusion_temperature={temperature}"])
    found = answer(model, parts, tokens, settings)
    unit = torch.nn.functional.normalize(model.backbone.block(tokens).cls, dim=1)
    cosine = unit @ model.prototypes.unit().T
    assert torch.allclose(found.overall, (cosine / temperature).softmax(1), atol=1e-5)
    assert torch.equal(found.assigned, found.overall.argmax(1))


def test_answers_lean_and_what_they_are_made_of_does_not(parts: PartModel, tokens: Tensor) -> None:
    model = make_model()
    model.start_part_prototypes(model.prototypes.weight.detach().clone())
    before = answer(model, parts, tokens)
    model.set_logit_adjustment(torch.tensor([0.0, -1.0, 0.0, 0.0, 0.0]))
    after = answer(model, parts, tokens)
    for plain, leaning in ((before.overall, after.overall), (before.part, after.part)):
        assert plain is not None and leaning is not None
        odds = (plain[:, 1] / plain[:, 0]).log() - (leaning[:, 1] / leaning[:, 0]).log()
        assert torch.allclose(odds, torch.ones(6), atol=1e-4)
    assert torch.equal(before.assigned, after.assigned) and torch.equal(before.cls, after.cls)
    again = restored(model.backbone, model.trainable_state(), PARTS, SETTINGS)
    assert torch.equal(answer(again, parts, tokens).fused, after.fused)


def test_the_mixture_of_the_predicted_class_makes_the_parts(
    model: DiscoveryModel, parts: PartModel, tokens: Tensor
) -> None:
    found = answer(model, parts, tokens)
    frozen = model.backbone.frozen_patches(tokens)
    assert torch.equal(found.maps, parts.maps(frozen, found.assigned, SETTINGS.parts.temperature))
    other = parts.maps(frozen, (found.assigned + 1) % CLASSES, SETTINGS.parts.temperature)
    assert not torch.allclose(found.maps, other)


def test_learned_patches_move_the_parts_with_the_block(parts: PartModel, tokens: Tensor) -> None:
    settings = load_settings(
        assignments=["loss.projector_hidden=16", "loss.projector_out=8", "parts.patches=learned"]
    )
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
    learned = DiscoveryModel(backbone, CLASSES, PARTS, settings)
    found = answer(learned, parts, tokens)
    seen = backbone.block(tokens).patches
    assert torch.equal(found.maps, parts.maps(seen, found.assigned, SETTINGS.parts.temperature))
    with torch.no_grad():
        for value in backbone.trainable.parameters():
            value.add_(0.2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(3)))
    moved = answer(learned, parts, tokens)
    same = parts.maps(backbone.frozen_patches(tokens), moved.assigned, SETTINGS.parts.temperature)
    assert found.maps is not None and moved.maps is not None
    assert not torch.allclose(moved.maps, found.maps, atol=1e-3)
    assert not torch.allclose(moved.maps, same, atol=1e-3)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_the_foreground_alone_is_computed_and_answers_as_if_all_were(
    parts: PartModel, tokens: Tensor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["loss.projector_hidden=16", "loss.projector_out=8", "parts.foreground_pooling=true"]
    backbone = load_backbone(BackboneSettings(name=name, random_weights=True), 96, "cpu")
    model = DiscoveryModel(backbone, CLASSES, PARTS, load_settings(assignments=small))
    seen = tokens
    if name != "test_vit":
        seen = backbone.trunk(torch.randint(0, 256, (6, 3, 96, 96), dtype=torch.uint8))
        parts = parts._replace(projection=fit_projection(backbone.frozen_patches(seen).flatten(0, 1), DIM, 0))
    few = answer(model, parts, seen)
    monkeypatch.setattr(DiscoveryModel, "few_rows", lambda model: False)
    full = answer(model, parts, seen)
    model.foreground_pooling = False
    everywhere = answer(model, parts, seen)
    assert few.part is not None and full.part is not None and everywhere.part is not None
    torch.testing.assert_close(few.fused, full.fused, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(few.feature, full.feature, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(everywhere.part, full.part, atol=1e-4)


def test_an_image_without_a_foreground_still_gets_an_answer(parts: PartModel, tokens: Tensor) -> None:
    settings = load_settings(
        assignments=["loss.projector_hidden=16", "loss.projector_out=8", "parts.foreground_pooling=true"]
    )
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), 96, "cpu")
    model = DiscoveryModel(backbone, CLASSES, PARTS, settings)
    found = answer(model, parts, tokens[:, :1].expand_as(tokens).contiguous())  # all tokens alike
    assert found.part is not None
    assert found.part.isfinite().all() and found.fused.isfinite().all()


def test_without_parts_the_class_head_answers_alone(tokens: Tensor) -> None:
    plain = make_model(None)
    found = answer(plain, None, tokens)
    assert found.part is None and found.maps is None and found.feature is None
    assert torch.equal(found.fused, found.overall)
    with_parts = answer(make_model(), None, tokens)
    assert torch.allclose(found.overall, with_parts.overall, atol=1e-5)


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch(
    model: DiscoveryModel, parts: PartModel, tokens: Tensor
) -> None:
    together, alone = answer(model, parts, tokens), answer(model, parts, tokens[3:4])
    assert torch.allclose(together.fused[3], alone.fused[0], atol=1e-5)


@pytest.mark.parametrize(("size", "asked", "leaves_out"), [
    (144, "auto", False), (160, "auto", True), (96, "true", True), (160, "false", False),
])  # fmt: skip
def test_small_pictures_keep_their_background(size: int, asked: str, leaves_out: bool) -> None:
    """81 patches are few, 100 are many."""
    settings = load_settings(assignments=["loss.projector_hidden=16", f"parts.foreground_pooling={asked}"])
    backbone = load_backbone(BackboneSettings(name="test_vit", random_weights=True), size, "cpu")
    model = DiscoveryModel(backbone, CLASSES, PARTS, settings)
    assert (
        model.pooling_weight(torch.rand(2, backbone.info.grid[0] * backbone.info.grid[1])) is not None
    ) == leaves_out
