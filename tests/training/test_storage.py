from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.run.checkpoint import State, save_checkpoint
from partgcd.run.folder import RunFolder
from partgcd.training.storage import absolute, connect, fetch, is_uri, pack, put_results


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with a checkpoint, stores and a record of an epoch."""
    made = RunFolder.create(
        tmp_path / "made", Settings(), tmp_path, {"protocol": None, "split": None}, "an-id"
    )
    for name in (
        "store/pixels.u8",
        "cache/evaluation/tokens.f16",
        "cache/parts.json",
        "ray/x",
        "epochs/epoch-0000.npz",
    ):
        (made.path / name).parent.mkdir(parents=True, exist_ok=True)
        (made.path / name).write_text(name)
    return made


def keep(run: RunFolder, storage: Path, name: str, epoch: int) -> Path:
    """What Ray does with a pack: copy it to ``storage``/<id>/checkpoint_*."""
    import shutil

    saved = save_checkpoint(run.checkpoints, State(epoch, 0, {"x": torch.zeros(1)}), Settings())
    target = storage / "an-id" / f"checkpoint_{name}"
    with pack(run, saved) as folder:
        assert folder is not None
        shutil.copytree(folder, target)
    return target


def test_a_pack_holds_what_a_run_goes_on_from_and_no_stores(run: RunFolder, tmp_path: Path) -> None:
    kept = keep(run, tmp_path / "storage", "1", 3)
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert files == {
        "config.yaml", "run.json", "epochs/epoch-0000.npz", "cache/parts.json", "contents.json",
        "checkpoints/epoch-00003-step-000000/state.json", "checkpoints/epoch-00003-step-000000/tensors.safetensors",
    }  # fmt: skip
    with pack(run, None) as nothing:
        assert nothing is None


def test_the_newest_whole_checkpoint_comes_back(run: RunFolder, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    keep(run, storage, "2026-01-01", 2)
    keep(run, storage, "2026-01-02", 3)
    cut = keep(run, storage, "2026-01-03", 4)
    (cut / "checkpoints" / "epoch-00004-step-000000" / "state.json").write_text("{")
    keep(run, storage, "2026-01-04", 5).joinpath("contents.json").unlink()
    found = fetch((storage / "an-id").as_uri(), tmp_path / "runs")
    assert found == tmp_path / "runs" / "an-id"
    assert [path.name for path in (found / "checkpoints").iterdir()] == ["epoch-00003-step-000000"]
    assert not (found / "contents.json").exists()
    assert RunFolder.open(found).info()["id"] == "an-id"
    with pytest.raises(UserError, match="already here"):
        fetch((storage / "an-id").as_uri(), tmp_path / "runs")


@pytest.mark.parametrize("where", ["absent", "empty"])
def test_a_storage_without_a_run_is_one_line(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="checkpoint_"):
        fetch((tmp_path / where).as_uri(), tmp_path / "runs")


def test_a_kind_of_storage_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UserError, match="no storage that can be reached"):
        connect("nowhere://bucket/x")


def test_results_follow_without_stores_and_checkpoints(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "summary.json").write_text(json.dumps({"id": "an-id"}))
    put_results(run, (tmp_path / "storage").as_uri())
    results = tmp_path / "storage" / "an-id" / "results"
    files = {path.relative_to(results).as_posix() for path in results.rglob("*") if path.is_file()}
    assert files == {"config.yaml", "run.json", "summary.json", "epochs/epoch-0000.npz"}


def test_a_folder_is_a_storage_like_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("here") == str(tmp_path / "here") and not is_uri("here")
    assert absolute("s3://bucket/x") == "s3://bucket/x" and is_uri("s3://bucket/x")
    assert connect("here")[1] == str(tmp_path / "here")
