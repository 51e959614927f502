from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from partgcd.config.errors import UserError
from partgcd.export import gates, precision
from partgcd.export.bundle import Bundle, building
from partgcd.export.check import check_bundle
from partgcd.export.exemplars import PER_CLASS
from partgcd.export.export import export_run
from partgcd.export.graph import Graph
from partgcd.export.int8 import to_int8
from partgcd.export.predictor import Answer, Predictor
from partgcd.export.source import open_source
from partgcd.parts.bank import GMMBank
from partgcd.parts.projection import Projection
from partgcd.run.folder import RunFolder

RunOf = Callable[..., RunFolder]


def test_the_manifest_tells_where_it_comes_from(bundle: Bundle, run: RunFolder) -> None:
    manifest, record = bundle.manifest, run.info()
    classes = json.loads(run.classes.read_text())
    assert [(each.id, each.name, each.kind) for each in manifest.classes] == [
        (each["id"], each["name"], each["kind"]) for each in classes
    ]
    assert manifest.provenance.run == record["id"] and manifest.provenance.seed == 0
    assert manifest.provenance.images == {"total": 36, "labelled": 12, "unlabelled": 24}
    assert manifest.backbone.weights == record["backbone"]["weights"]
    assert manifest.parts == 3 and manifest.projection is not None and manifest.projection.dims == 8
    assert manifest.novelty.calibration_images == 24 and manifest.novelty.false_alarm_rate == 0.05
    assert manifest.parity.largest_difference < 1e-4 and manifest.parity.batches == [1, 2, 7]
    assert manifest.agreement > 0.95 and manifest.cost is None


def test_the_model_can_be_trained_on_from_the_bundle(bundle: Bundle, run: RunFolder) -> None:
    source = open_source(run)
    weights = load_file(bundle.path / "weights.safetensors")
    own = source.model.trainable_state()
    assert own.keys() == weights.keys()
    assert all(np.array_equal(weights[name], value.numpy()) for name, value in own.items())
    tensors = {n: torch.from_numpy(v) for n, v in load_file(bundle.path / "gmm_bank.safetensors").items()}
    assert torch.equal(GMMBank.from_tensors(tensors).mu, source.parts.bank.mu)  # type: ignore[union-attr]
    space = {n.removeprefix("projection."): v for n, v in tensors.items() if n.startswith("projection.")}
    assert Projection.from_tensors(space).dims == 8


def test_exemplars_stand_for_every_class(bundle: Bundle, run: RunFolder) -> None:
    source = open_source(run)
    found = load_file(bundle.path / "exemplars.safetensors")
    filled = set(source.predicted.tolist())
    assert set(found["classes"].tolist()) == filled
    assert bundle.manifest.exemplars.per_class == np.bincount(found["classes"]).max() <= PER_CLASS
    for kind in ("old", "discovered"):
        familiar = found[f"remoteness.{kind}"]
        assert familiar.shape == (101,) and (np.diff(familiar) >= 0).all()
        assert 0 <= familiar[0] < familiar[-1] <= 2
    row_of = {int(key): row for row, key in enumerate(source.catalog.keys)}
    rows = np.array([row_of[int(key)] for key in found["keys"]])
    assert np.array_equal(source.predicted[rows], found["classes"]) and len(set(rows.tolist())) == len(rows)
    assert np.array_equal(source.catalog.labelled[rows], found["labelled"])
    with torch.no_grad():
        tokens = source.model.backbone.trunk(torch.from_numpy(source.pixels(rows[:3])))
    assert np.abs(found["tokens"][:3].astype(np.float32) - tokens.numpy()).max() < 0.02
    for index in (0, 1):  # of labelled classes, labelled images before others
        own = found["labelled"][found["classes"] == index]
        assert own.sum() == (source.catalog.labels == index).sum() and own[: own.sum()].all()


@pytest.mark.usefixtures("ready_graph")
def test_no_image_leaves_the_run_unless_asked(bundle: Bundle, run: RunFolder, tmp_path: Path) -> None:
    keys = load_file(bundle.path / "exemplars.safetensors")["keys"]
    assert {file.stem for file in (bundle.path / "thumbnails").iterdir()} == {
        f"{int(key):016x}" for key in keys
    }
    without = export_run(run, tmp_path / "plain")
    assert not without.manifest.exemplars.thumbnails
    assert not any(name.endswith(".jpg") for name in without.manifest.files)


def test_the_card_says_what_it_is_and_what_it_can_not_know(bundle: Bundle) -> None:
    card = (bundle.path / "MODEL_CARD.md").read_text()
    for words in (
        "## Novelty",
        "an estimate, not a measurement",
        "random weights",
        "| ash | old |",
        "## Use",
    ):
        assert words in card
    assert bundle.manifest.backbone.lineage in card.replace("\\", "")


def test_labels_can_not_write_the_card(tmp_path: Path, run: RunFolder, bundle: Bundle) -> None:
    from partgcd.export.card import model_card

    first = bundle.manifest.classes[0].model_copy(update={"name": "x | <script>\n# y"})
    card = model_card(bundle.manifest.model_copy(update={"classes": [first]}))
    assert "x \\| \\<script\\> \\# y" in card and "\n# y" not in card


def test_an_unfinished_run_and_a_run_without_a_model_are_refused(
    run_of: RunOf, photos: Path, tmp_path: Path
) -> None:
    made = run_of(tmp_path / "run", photos, "discovery.method=kmeans")
    made.model.unlink()
    with pytest.raises(UserError, match="holds no model to export") as told:
        export_run(made, tmp_path / "out")
    assert told.value.code == 2
    made.update(status="running")
    with pytest.raises(UserError, match="is not finished: partgcd train --resume"):
        export_run(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_convolutional_run_without_parts_and_without_its_store(
    run_of: RunOf, photos: Path, tmp_path: Path
) -> None:
    made = run_of(tmp_path / "run", photos, "discovery.method=simgcd", "backbone.name=test_resnet")
    shutil.rmtree(made.store)
    shutil.rmtree(made.cache)
    found = export_run(made, tmp_path / "out")
    assert found.manifest.method == "simgcd" and found.manifest.parts is None
    assert "gmm_bank.safetensors" not in found.manifest.files
    assert check_bundle(found.path, "cpu")[1] < 1e-5
    predictor = Predictor.load(found.path, 1, "cpu")
    (answer,) = predictor.classify([photos / "ash" / "0.png"])
    assert isinstance(answer, Answer)
    with pytest.raises(ValueError, match="no parts"):
        predictor.classify([photos / "ash" / "0.png"], explain=True)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
@pytest.mark.parametrize("switch", ["parts.patches=learned", "parts.foreground_pooling=true"])
def test_a_graph_makes_its_parts_as_the_model_does(
    run_of: RunOf, photos: Path, tmp_path: Path, name: str, switch: str
) -> None:
    made = run_of(tmp_path / "run", photos, switch, f"backbone.name={name}")
    found = export_run(made, tmp_path / "out")
    assert found.manifest.settings.parts == made.settings().parts
    assert check_bundle(found.path, "cpu")[1] < 1e-4
    (answer,) = Predictor.load(found.path, 1, "cpu").classify([photos / "ash" / "0.png"], explain=True)
    assert isinstance(answer, Answer)


def test_other_weights_than_the_runs_are_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = run.info()
    told["backbone"]["weights"] = "0" * 64
    monkeypatch.setattr(run, "info", lambda: told)
    with pytest.raises(UserError, match="are not those the run was trained on"):
        export_run(run, tmp_path / "out")


@pytest.mark.usefixtures("ready_graph")
def test_a_graph_that_is_off_is_not_exported(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = gates.torch_answers
    monkeypatch.setattr(
        gates, "torch_answers",
        lambda graph, pixels: {n: v + (2e-4 if n == "part" else 0) for n, v in right(graph, pixels).items()},
    )  # fmt: skip
    with pytest.raises(UserError, match=r"part differs by 0\.0002"):
        export_run(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("ready_graph")
@pytest.mark.parametrize("kind", ["int8", "fp16"])
def test_lower_precision_tells_its_cost(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: precision.Precision, bundle: Bundle
) -> None:
    monkeypatch.setattr(gates, "MOST_CHANGED", 1.0)
    found = export_run(run, tmp_path / "out", kind)
    assert found.manifest.cost is not None and found.manifest.cost.images == 36
    assert found.manifest.graph.precision == kind and found.manifest.parity.tolerance == 0.02
    assert found.manifest.files["model.onnx"].bytes < 0.8 * bundle.manifest.files["model.onnx"].bytes
    assert check_bundle(found.path, "cpu")[1] <= 0.02
    assert f"{kind} changed the class" in (found.path / "MODEL_CARD.md").read_text()
    monkeypatch.setattr(gates, "MOST_CHANGED", -1.0)
    with pytest.raises(UserError, match=f"export without --{kind}") as told:
        export_run(run, tmp_path / "refused", kind)
    assert told.value.code == 1
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_int8_of_a_convolutional_backbone_is_refused(conv: tuple[Graph, Any]) -> None:
    _, model = conv
    with pytest.raises(UserError, match="int8 does nothing for convolutional backbones"):
        to_int8(model)
    assert len(precision.to_fp16(model)) < 0.7 * model.ByteSize()


@pytest.mark.usefixtures("ready_graph")
def test_int8_keeps_more_in_fp32_until_it_costs_little(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = iter([0.5, 0.02, 0.01])
    monkeypatch.setattr(gates, "changed", lambda before, after: next(costs))
    found = export_run(run, tmp_path / "out", "int8")
    assert found.manifest.cost is not None
    assert (found.manifest.cost.fp32_blocks, found.manifest.cost.changed) == (4, 0.01)
    check_bundle(found.path, "cpu")
    costs = iter([0.5, 0.02, 0.3])
    with pytest.raises(UserError, match=r"int8 changes the class of 2\.0% of 36 images"):
        export_run(run, tmp_path / "refused", "int8")


def test_an_export_into_a_place_that_another_writes_is_told_before_any_work(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partgcd.export.export.open_source", lambda run: pytest.fail("it began to work"))
    with building(tmp_path / "out"), pytest.raises(UserError, match="another process") as caught:
        export_run(run, tmp_path / "out")
    assert caught.value.code == 75
