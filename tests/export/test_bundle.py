from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from partgcd.config.errors import UserError
from partgcd.export.bundle import Bundle, building, open_bundle
from partgcd.export.check import check_bundle
from partgcd.export.predictor import Predictor

FILES = (
    "manifest.json", "manifest.sha256", "model.onnx", "gmm_bank.safetensors", "weights.safetensors",
    "exemplars.safetensors", "parity.safetensors", "MODEL_CARD.md",
)  # fmt: skip


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as somebody would who also mends its digest."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest).encode()
    (bundle / "manifest.json").write_bytes(text)
    (bundle / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


def resized(manifest: dict[str, Any], side: int) -> None:
    """Another size of image, wherever a manifest says it."""
    manifest["preprocessing"].update(image_size=side, short_side=round(side / 0.875))
    manifest["settings"]["data"].update(image_size=side)


def refused(bundle: Path, *words: str, code: int = 1) -> None:
    with pytest.raises(UserError) as told:
        open_bundle(bundle)
    assert "\n" not in str(told.value) and told.value.code == code
    for word in words:
        assert word in str(told.value)


def test_a_bundle_verifies_and_answers_as_when_it_was_made(bundle: Bundle) -> None:
    found, worst = check_bundle(bundle.path, "cpu")
    assert found.id == bundle.id and worst < 1e-5
    assert bundle.id == hashlib.sha256((bundle.path / "manifest.json").read_bytes()).hexdigest()
    assert set(FILES) <= {file.name for file in bundle.path.iterdir()}
    assert oct(bundle.path.stat().st_mode)[-3:] == "755"


def test_its_digest_is_what_sha256sum_checks(bundle: Bundle) -> None:
    assert (bundle.path / "manifest.sha256").read_text() == f"{bundle.id}  manifest.json\n"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_changed_byte_in_any_file_is_refused(copied: Path, name: str, place: str) -> None:
    data = bytearray((copied / name).read_bytes())
    at = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[place]
    data[at] ^= 1
    (copied / name).write_bytes(data)
    refused(copied, name)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        Predictor.load(copied, 1, "cpu")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_refused(bundle: Bundle, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted([*bundle.manifest.files, "manifest.json", "manifest.sha256"])))
    good = bundle.path / name
    at = data.draw(st.integers(0, good.stat().st_size - 1))
    other = data.draw(st.integers(1, 255))
    copy = tmp_path / "copy"
    if not copy.exists():
        shutil.copytree(bundle.path, copy)
    spoilt = bytearray(good.read_bytes())
    spoilt[at] ^= other
    (copy / name).write_bytes(spoilt)
    refused(copy, name)
    shutil.copyfile(good, copy / name)


@pytest.mark.parametrize("name", FILES)
def test_a_short_long_or_missing_file_is_refused(copied: Path, name: str) -> None:
    data = (copied / name).read_bytes()
    for other in (data[:-1], data[: len(data) // 2], b"", data + b"\0"):
        (copied / name).write_bytes(other)
        refused(copied, name)
    (copied / name).unlink()
    refused(copied, name if name != "manifest.json" else "no bundle in", code=1 + (name == "manifest.json"))


def test_a_file_that_the_manifest_does_not_list_is_refused(copied: Path) -> None:
    (copied / "model.onnx.data").write_bytes(b"weights of somebody else")
    refused(copied, "does not list", "model.onnx.data")


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/../../b", "thumbnails/../../x", "C:\\x", ".hidden", "thumbnails/a/b", "", "a\nb",
     "manifest.json", "thumbnails/"],
)  # fmt: skip
def test_names_that_lead_out_of_the_bundle_are_refused(copied: Path, name: str) -> None:
    entry = {"sha256": "0" * 64, "bytes": 1}
    rewrite(copied, lambda manifest: manifest["files"].update({name: entry}))
    refused(copied, "names a file")


@pytest.mark.parametrize("name", FILES)
def test_links_are_refused(copied: Path, tmp_path: Path, name: str) -> None:
    shutil.move(copied / name, tmp_path / "elsewhere")
    (copied / name).symlink_to(tmp_path / "elsewhere")
    refused(copied, name)


def test_linked_folders_are_refused(copied: Path, tmp_path: Path) -> None:
    shutil.move(copied / "thumbnails", tmp_path / "elsewhere")
    (copied / "thumbnails").symlink_to(tmp_path / "elsewhere")
    refused(copied, "thumbnails is a link")


def test_a_pipe_does_not_hang(copied: Path) -> None:
    (copied / "MODEL_CARD.md").unlink()
    os.mkfifo(copied / "MODEL_CARD.md")
    refused(copied, "MODEL_CARD.md")


def test_a_bundle_may_be_reached_through_a_link(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "champion").symlink_to(bundle.path)
    assert open_bundle(tmp_path / "champion").id == bundle.id


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.update(schema_version=2), "schema version 2, this program reads 1: update partgcd"),
        (lambda m: m.update(schema_version=0), "export the run again"),
        (lambda m: m.update(schema_version="1"), "schema version"),
        (lambda m: m.update(format="zip"), "does not describe"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("novelty"), "novelty"),
        (lambda m: m["classes"][0].update(kind="best"), "classes.0.kind"),
        (lambda m: m["classes"].reverse(), "not numbered"),
        (lambda m: m["classes"][1].update(id=m["classes"][0]["id"]), "one id"),
        (lambda m: m["files"].pop("model.onnx"), "does not list model.onnx"),
        (lambda m: m["files"].pop("gmm_bank.safetensors"), "does not list gmm_bank.safetensors"),
        (lambda m: m["files"]["model.onnx"].update(sha256="x"), "sha256"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_kind_is_refused(
    copied: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    rewrite(copied, change)
    refused(copied, told)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_manifest_that_is_none_is_refused(copied: Path, text: bytes) -> None:
    (copied / "manifest.json").write_bytes(text)
    (copied / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")
    refused(copied, "manifest.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["graph"].update(outputs=["logits"]), "does not know"),
        (lambda m: resized(m, 96), "pixels is tensor"),
        (lambda m: m["classes"].pop(), "global is tensor"),
        (lambda m: m.update(parts=4), "maps is tensor"),
        (lambda m: m["graph"].update(input="image"), r"graph\.input"),
    ],
)  # fmt: skip
def test_a_graph_that_is_not_the_manifests_is_refused(
    copied: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    rewrite(copied, change)
    for load in (lambda: Predictor.load(copied, 1, "cpu"), lambda: check_bundle(copied, "cpu")):
        with pytest.raises(UserError, match=told):
            load()


NOT_A_NUMBER = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("preprocessing.crop_ratio", [5.0, 0.0, -1.0, 1e-9, *NOT_A_NUMBER, None, "wide"]),
        ("preprocessing.image_size", [0, -64, 10**9, 64.5]),
        ("preprocessing.short_side", [0, 1, 10**9]),
        ("preprocessing.max_aspect", [0.0, 1e9, *NOT_A_NUMBER]),
        ("preprocessing.max_megapixels", [0.0, -1.0, 1e9, *NOT_A_NUMBER]),
        ("preprocessing.std", [[0.2, 0.0, 0.2], [0.2, 0.2], [float("nan")] * 3]),
        ("preprocessing.mean", [[0.5, 0.5, 2.0], [0.5] * 4]),
        ("backbone.grid", [[0, 16], [-4, -4], [10**9, 10**9], [4]]),
        ("backbone.dim", [0, -1, 10**12]),
        ("fusion.temperature", [0.0, -0.1, *NOT_A_NUMBER]),
        ("fusion.part_weight", [-1.0, *NOT_A_NUMBER]),
        ("novelty.threshold", [*NOT_A_NUMBER, "high"]),
        ("novelty.false_alarm_rate", [1.5, float("nan")]),
        ("parity.tolerance", [1e9, 1.0, 0.0, -1e-4, *NOT_A_NUMBER]),
        ("parity.batches", [[0], [10**9], list(range(1, 100))]),
        ("parts", [0, -3, 10**9, None]),
        ("projection.dims", [0, 10**9]),
        ("graph.opset", [0, 10**6]),
        ("graph.outputs", [["global"] * 1000, []]),
        ("exemplars.per_class", [0, 10**9]),
        ("method", ["simgcd", "gcd"]),
        ("accuracy", [{"v2": float("nan")}, {"v2": {"all": float("inf")}}]),
        ("settings.data.image_size", [96]),
        ("settings.train.max_grad_norm", [float("inf")]),
        ("settings.train.epochs", [0, -5]),
    ],
)  # fmt: skip
def test_values_that_code_relies_on_are_in_their_range(copied: Path, place: str, values: list[Any]) -> None:
    """What check calls whole can be classified with: whatever a manifest says, it is refused in one line."""
    good = (copied / "manifest.json").read_bytes()
    *sections, key = place.split(".")
    for value in values:
        (copied / "manifest.json").write_bytes(good)

        def change(manifest: dict[str, Any], value: Any = value) -> None:
            for section in sections:
                manifest = manifest[section]
            manifest[key] = value

        rewrite(copied, change)
        with pytest.raises(UserError) as told:
            check_bundle(copied, "cpu")
        assert told.value.code == 1 and "\n" not in str(told.value) and "refused" not in str(told.value), (
            value
        )
        with pytest.raises(UserError):
            Predictor.load(copied, 1, "cpu")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
def test_numbers_beyond_all_bounds_are_refused(copied: Path, number: str) -> None:
    text = (copied / "manifest.json").read_text().replace('"threshold": ', f'"threshold": {number}, "x": ', 1)
    (copied / "manifest.json").write_text(text)
    (copied / "manifest.sha256").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  manifest.json\n")
    refused(copied, "manifest.json")


@pytest.mark.parametrize(
    ("file", "name", "change", "told"),
    [
        ("gmm_bank", "mu", lambda t: t[:-1], "has mu as"),
        ("gmm_bank", "var", lambda t: -t, "variances"),
        ("gmm_bank", "log_pi", lambda t: t * np.nan, "log_pi that are no numbers"),
        ("gmm_bank", "shared.mu", None, "lacks shared.mu"),
        ("exemplars", "classes", lambda t: t + 100, "exemplars of class"),
        ("exemplars", "classes", lambda t: t - 100, "exemplars of class -"),
        ("exemplars", "cls", lambda t: t[:, :-1].copy(), "has cls as"),
        ("exemplars", "keys", lambda t: t.astype(np.float32), "has keys as"),
        ("exemplars", "tokens", lambda t: t * np.float16(np.inf), "tokens that are no numbers"),
        ("weights", "prototypes.weight", lambda t: t[:-1], "has prototypes.weight as"),
        ("weights", "prototypes.weight", lambda t: np.full_like(t, np.nan), "no numbers"),
        ("parity", "expected.fused", lambda t: np.full_like(t, np.nan), "does not hold what the parity test"),
    ],
)  # fmt: skip
def test_tensors_of_another_kind_are_refused(
    copied: Path, file: str, name: str, change: Callable[[Any], Any] | None, told: str
) -> None:
    path = copied / f"{file}.safetensors"
    tensors = load_file(path)
    value = tensors.pop(name)
    if change is not None:
        tensors[name] = np.ascontiguousarray(change(value))
    data = save(tensors)
    path.write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewrite(copied, lambda manifest: manifest["files"].update({path.name: entry}))
    with pytest.raises(UserError, match=told) as refusal:
        check_bundle(copied, "cpu")
    assert refusal.value.code == 1


def test_a_graph_that_answers_otherwise_is_refused(copied: Path) -> None:
    """Even one whose digest was mended: the stored answers are not its own."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(copied / "model.onnx")
    scaled = max(model.graph.initializer, key=lambda each: each.dims[0] if len(each.dims) == 2 else 0)
    scaled.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scaled) * 1.5, scaled.name))
    data = model.SerializeToString()
    (copied / "model.onnx").write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewrite(copied, lambda manifest: manifest["files"].update({"model.onnx": entry}))
    with pytest.raises(UserError, match="does not answer as the model does"):
        check_bundle(copied, "cpu")


def with_graph(bundle: Path, change: Callable[[Any], object]) -> None:
    """Change the graph as somebody would who also mends its digest."""
    import onnx

    graph = onnx.load(str(bundle / "model.onnx"))
    change(graph.graph)
    data = graph.SerializeToString()
    (bundle / "model.onnx").write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewrite(bundle, lambda manifest: manifest["files"].update({"model.onnx": entry}))


def leaking(graph: Any) -> None:
    """Add a byte of ./outside.bin to the novelty score."""
    from onnx import TensorProto, helper

    tensor = TensorProto(
        name="outside", data_type=TensorProto.UINT8, dims=[1], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "outside.bin"), ("offset", "0"), ("length", "1")):
        tensor.external_data.add(key=key, value=value)
    graph.initializer.append(tensor)
    node = next(each for each in graph.node if "novelty" in each.output)
    node.output[list(node.output).index("novelty")] = "within"
    graph.node.append(helper.make_node("Cast", ["outside"], ["leak"], to=TensorProto.FLOAT))
    graph.node.append(helper.make_node("Add", ["within", "leak"], ["novelty"]))


def test_a_bundle_reads_no_file_outside_itself(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_graph(copied, leaking)
    (tmp_path / "outside.bin").write_bytes(b"*")
    monkeypatch.chdir(tmp_path)
    for load in (lambda: Predictor.load(copied, 1, "cpu"), lambda: check_bundle(copied, "cpu")):
        with pytest.raises(UserError, match="'outside' lies in a file outside of it"):
            load()


def not_a_number(graph: Any) -> None:
    """Answers that divide by nothing."""
    from onnx import helper, numpy_helper

    node = next(each for each in graph.node if "novelty" in each.output)
    node.output[list(node.output).index("novelty")] = "within"
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "nothing"))
    graph.node.append(helper.make_node("Div", ["within", "nothing"], ["novelty"]))


def test_answers_that_are_no_numbers_are_one_line(copied: Path) -> None:
    with_graph(copied, not_a_number)
    predictor = Predictor.load(copied, 1, "cpu")
    size = predictor.image_size
    with pytest.raises(UserError, match="no number"):
        predictor.answer(np.zeros((1, 3, size, size), np.uint8))


def test_no_bundle_there_names_the_command_that_makes_one(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "partgcd export RUN", code=2)


def test_a_bundle_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), building(tmp_path / "out") as folder:
        (folder / "half").write_bytes(b"x")
        assert not (tmp_path / "out").exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with building(tmp_path / "deep" / "out") as folder:
        (folder / "whole").write_bytes(b"x")
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_exists_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    {"folder": out.mkdir, "file": out.touch, "dangling link": lambda: out.symlink_to("nowhere")}[kind]()
    with pytest.raises(UserError, match="never overwritten"), building(out):
        raise AssertionError


def test_somebody_elses_bundle_that_came_first_stays(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="never overwritten"), building(tmp_path / "out"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "theirs").exists()
