"""Images that a run has only the tokens of: remembered from the model that it went on from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from partgcd.config.errors import UserError
from partgcd.disk.files import write_bytes
from partgcd.run.folder import RunFolder

REPLAY = "replay.safetensors"


@dataclass(frozen=True)
class Replay:
    """The last M images of a run's catalog.

    Attributes:
        tokens: [M, T, Dt] trunk tokens of the evaluation view, half precision.
        labelled: [M] whether a person said what they are; the others are held to what the model said.
        seen: keys of all images that the model before had been trained on.
        held_keys, held_classes, held_labelled, held_tokens: [H] exemplars beside the catalog, never trained on.
    """

    tokens: NDArray[np.float16]
    labelled: NDArray[np.bool_]
    seen: NDArray[np.uint64]
    held_keys: NDArray[np.uint64]
    held_classes: NDArray[np.int64]
    held_labelled: NDArray[np.bool_]
    held_tokens: NDArray[np.float16]


def write_replay(run: RunFolder, replay: Replay) -> None:
    """Keep what a run replays in its folder."""
    arrays = {name: np.ascontiguousarray(value) for name, value in vars(replay).items()}
    write_bytes(run.path / REPLAY, save(arrays))


def read_replay(run: RunFolder) -> Replay | None:
    """What a run replays; None for one that began anew.

    Raises:
        UserError: the file is damaged.
    """
    file = run.path / REPLAY
    if not file.exists():
        return None
    try:
        return Replay(**load_file(file))
    except (OSError, SafetensorError, TypeError) as error:
        raise UserError(f"'{file}' can't be read: {error}", 1) from error
