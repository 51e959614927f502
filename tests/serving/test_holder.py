from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partgcd.config.errors import UserError
from partgcd.export.predictor import Predictor
from partgcd.serving.holder import ModelHolder
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import BundleSource, open_source

BundleOf = Callable[..., Path]


def load(path: Path) -> tuple[Predictor, ...]:
    return (Predictor.load(path, 1, "cpu"), Predictor.load(path, 1, "cpu"))


@pytest.fixture
def link(bundle: Path, tmp_path: Path) -> Path:
    found = tmp_path / "current"
    found.symlink_to(bundle)
    return found


def move(link: Path, target: Path) -> None:
    new = link.with_name("next")
    new.symlink_to(target)
    new.replace(link)


@pytest.fixture
def holder(link: Path) -> ModelHolder:
    made = ModelHolder(BundleSource(link), load)
    made.start()
    return made


def version(holder: ModelHolder) -> str:
    assert holder.predictor is not None
    return holder.predictor.version


def crop_ratio(manifest: dict[str, Any], graph: bytes) -> bytes:
    manifest["preprocessing"]["crop_ratio"] = 5.0
    return graph


def threshold(manifest: dict[str, Any], graph: bytes) -> bytes:
    manifest["novelty"]["threshold"] = float("nan")
    return graph


def outside(manifest: dict[str, Any], graph: bytes) -> bytes:
    import onnx

    model = onnx.load_model_from_string(graph)
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="manifest.json")
    model.graph.initializer.append(tensor)
    found: bytes = model.SerializeToString()
    return found


def nothing(manifest: dict[str, Any], graph: bytes) -> bytes:
    return b"nothing"


@pytest.mark.parametrize("spoil", [crop_ratio, threshold, outside, nothing])
def test_a_server_started_on_a_bad_champion_says_so_in_one_line(
    bundle_of: BundleOf, tmp_path: Path, spoil: Callable[[dict[str, Any], bytes], bytes]
) -> None:
    bad = bundle_of(tmp_path / "bad")
    manifest = json.loads((bad / "manifest.json").read_text())
    graph = spoil(manifest, (bad / "model.onnx").read_bytes())
    (bad / "model.onnx").write_bytes(graph)
    manifest["files"]["model.onnx"] = {"sha256": hashlib.sha256(graph).hexdigest(), "bytes": len(graph)}
    text = json.dumps(manifest).encode()
    (bad / "manifest.json").write_bytes(text)
    (bad / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")
    with pytest.raises(UserError) as told:
        ModelHolder(BundleSource(bad), load).start()
    assert told.value.code == 1 and "\n" not in str(told.value)


def test_a_moved_link_is_followed(
    holder: ModelHolder, link: Path, bundle_of: BundleOf, tmp_path: Path
) -> None:
    seen: list[str] = []
    holder.on_change = seen.append
    before = holder.predictor
    holder.refresh()
    assert holder.predictor is before and seen == []
    new = bundle_of(tmp_path / "new", flavour=1)
    move(link, new)
    holder.refresh()
    assert version(holder) == (new / "manifest.sha256").read_text()[:64] and seen == ["taken"]
    assert holder.refused is None


def test_a_folder_with_other_content_is_followed(bundle: Path, bundle_of: BundleOf, tmp_path: Path) -> None:
    place = shutil.copytree(bundle, tmp_path / "model")
    holder = ModelHolder(BundleSource(place), load)
    holder.start()
    new = bundle_of(tmp_path / "new", flavour=1)
    shutil.rmtree(place)
    holder.refresh()
    assert holder.predictor is not None and holder.refused is not None and "no bundle" in holder.refused.error
    shutil.copytree(new, place)
    holder.refresh()
    assert version(holder) == load(new)[0].version and holder.refused is None


def spoil(path: Path, how: str) -> None:
    if how == "one byte":
        data = bytearray((path / "model.onnx").read_bytes())
        data[len(data) // 2] ^= 1
        (path / "model.onnx").write_bytes(data)
    elif how == "missing file":
        (path / "weights.safetensors").unlink()
    elif how == "no digest":
        (path / "manifest.sha256").write_text("nonsense")
    elif how == "no manifest":
        (path / "manifest.json").unlink()


@pytest.mark.parametrize("how", ["one byte", "missing file", "no digest", "no manifest"])
def test_a_bad_candidate_leaves_the_old_model(
    holder: ModelHolder, link: Path, bundle_of: BundleOf, tmp_path: Path, how: str
) -> None:
    seen: list[str] = []
    holder.on_change = seen.append
    before = holder.predictor
    bad = bundle_of(tmp_path / "bad", flavour=2)
    spoil(bad, how)
    move(link, bad)
    for _ in range(3):
        holder.refresh()
        assert holder.predictor is before and holder.refused is not None and holder.refused.error
    assert seen == ["refused"]
    move(link, bundle_of(tmp_path / "good", flavour=3))
    holder.refresh()
    assert holder.predictor is not before and holder.refused is None and seen == ["refused", "taken"]


def test_a_model_that_computes_something_else_is_refused(
    holder: ModelHolder, link: Path, bundle_of: BundleOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.export import parity

    monkeypatch.setattr(parity, "run", lambda *_: {})
    before = holder.predictor
    move(link, bundle_of(tmp_path / "other", flavour=4))
    holder.refresh()
    assert holder.predictor is before and holder.refused is not None


def test_a_failing_candidate_is_tried_again_ever_more_rarely(
    holder: ModelHolder, link: Path, bundle_of: BundleOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = bundle_of(tmp_path / "bad", flavour=5)
    whole = (bad / "weights.safetensors").read_bytes()
    spoil(bad, "missing file")
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    move(link, bad)
    pauses = []
    for _ in range(9):
        holder.refresh()
        assert holder.refused is not None
        pauses.append(holder.refused.pause)
        now[0] += holder.refused.pause
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    since = holder.refused.since if holder.refused else ""
    (bad / "weights.safetensors").write_bytes(whole)
    now[0] -= 1
    holder.refresh()
    assert holder.refused is not None and holder.refused.since == since
    now[0] += 1
    holder.refresh()
    assert holder.refused is None and version(holder) == load(bad)[0].version


def test_whatever_the_source_does_the_model_stays(
    holder: ModelHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = holder.predictor
    for error in (OSError("disk"), UserError("gone"), MemoryError(), ValueError()):

        def failing(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(holder.source, "current", failing)
        holder.refresh()
        assert holder.predictor is before and holder.refused is not None and holder.refused.error
    monkeypatch.undo()
    holder.refresh()
    assert holder.refused is None


def test_starting_with_nothing_is_an_error(tmp_path: Path, bundle_of: BundleOf) -> None:
    with pytest.raises(UserError, match="no bundle"):
        open_source(ServeSettings(source=tmp_path))
    bad = bundle_of(tmp_path / "bad")
    spoil(bad, "one byte")
    with pytest.raises(UserError, match="was changed"):
        ModelHolder(BundleSource(bad), load).start()


def test_two_looks_at_once_load_once(link: Path, bundle_of: BundleOf, tmp_path: Path) -> None:
    loads: list[Path] = []

    def slow(path: Path) -> tuple[Predictor, ...]:
        loads.append(path)
        time.sleep(0.05)
        return load(path)

    holder = ModelHolder(BundleSource(link), slow)
    holder.start()
    move(link, bundle_of(tmp_path / "new", flavour=6))
    threads = [threading.Thread(target=holder.refresh) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(loads) == 2 and holder.refused is None


def test_a_refused_candidate_that_goes_away_is_forgotten(
    holder: ModelHolder, link: Path, bundle: Path, bundle_of: BundleOf, tmp_path: Path
) -> None:
    seen: list[str] = []
    holder.on_change = seen.append
    before = holder.predictors
    bad = bundle_of(tmp_path / "bad", flavour=2)
    spoil(bad, "one byte")
    move(link, bad)
    holder.refresh()
    move(link, bundle)
    holder.refresh()
    holder.refresh()
    assert holder.refused is None and holder.predictors is before and seen == ["refused", "gone"]


def test_a_replaced_models_memory_is_given_back_once(
    holder: ModelHolder, link: Path, bundle_of: BundleOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.serving import holder as module

    given: list[int] = []
    give = module._give_back_memory
    monkeypatch.setattr(module, "_give_back_memory", lambda: (given.append(1), give()))
    holder.refresh()
    move(link, bundle_of(tmp_path / "new", flavour=1))
    given.clear()
    holder.refresh()
    assert given == []
    holder.refresh()
    holder.refresh()
    assert given == [1]
