"""Checkpoints: tensors in safetensors, the rest in JSON, a folder renamed into place when it is whole."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from partgcd.config.errors import UserError
from partgcd.config.load import differing_keys
from partgcd.config.tree import Settings
from partgcd.disk.files import disk_errors, write_bytes, write_json


@dataclass(frozen=True)
class State:
    """Where a fit stands: ``step`` steps of ``epoch`` are done, earlier epochs wholly.

    Attributes:
        epoch: current epoch, counted from 1.
        step: steps of it that are done; 0 means its refresh is still to come.
        tensors: every tensor that the next step depends on.
        values: plain JSON values beside them.
    """

    epoch: int
    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, state: State, settings: Settings) -> Path:
    """Write ``state`` below ``folder`` atomically and drop all but the newest ``train.keep_checkpoints``.

    With ``train.keep_best`` the one with the lowest ``values["score"]`` stays as well. Checkpoints of a later
    moment go too: a fit that stands before them passed them over as damaged.
    """
    keep = settings.train.keep_checkpoints
    target = folder / f"epoch-{state.epoch:05d}-step-{state.step:06d}"
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    with disk_errors(target):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".*.tmp"):
            shutil.rmtree(stale, ignore_errors=True)
        temporary.mkdir()
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}
        write_bytes(temporary / "tensors.safetensors", save(tensors))
        write_json(temporary / "state.json", {
            "epoch": state.epoch,
            "step": state.step,
            "values": state.values,
            "settings": settings.model_dump(mode="json"),
        })  # fmt: skip
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        whole = list_checkpoints(folder)
        here = whole.index(target) + 1
        best = best_checkpoint(whole[:here]) if settings.train.keep_best else None
        for other in [*whole[: max(here - keep, 0)], *whole[here:]]:
            if other != best:
                shutil.rmtree(other, ignore_errors=True)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints below ``folder``, oldest first."""
    return sorted(path for path in folder.glob("epoch-*-step-*") if path.is_dir())


def best_checkpoint(checkpoints: list[Path]) -> Path | None:
    """The checkpoint with the lowest score, the earlier of equal ones; None where none has a score."""
    scores = []
    for path in checkpoints:
        try:
            score = json.loads((path / "state.json").read_text(encoding="utf-8"))["values"].get("score")
        except (OSError, ValueError, KeyError):
            continue
        if score is not None:
            scores.append((float(score), path))
    return min(scores)[1] if scores else None


def load_latest(folder: Path, settings: Settings) -> State | None:
    """The newest readable checkpoint, or None. A damaged one is passed over for the one before it.

    Raises:
        UserError: the checkpoint belongs to other settings; the differing keys are named.
    """
    for path in reversed(list_checkpoints(folder)):
        try:
            record = json.loads((path / "state.json").read_text(encoding="utf-8"))
            tensors = load_file(path / "tensors.safetensors")
        except (OSError, ValueError, SafetensorError):
            continue
        differing = differing_keys(Settings.model_validate(record["settings"]), settings)
        if differing:
            raise UserError(
                f"checkpoint '{path}' belongs to another configuration ({'; '.join(differing[:6])}): "
                "resume with the run's own settings or begin a new run"
            )
        return State(record["epoch"], record["step"], tensors, record["values"])
    return None


def random_state() -> dict[str, Tensor]:
    """torch's CPU generator state, kept so that a resumed run draws what an unbroken one would."""
    return {"random.torch": torch.get_rng_state()}


def restore_random_state(tensors: dict[str, Tensor]) -> None:
    """Undo `random_state`."""
    torch.set_rng_state(tensors["random.torch"])
