"""What a rediscovery is asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from partgcd.continual.gate import Check, Margins


@dataclass(frozen=True)
class Request:
    """What a person asked for.

    Attributes:
        new: folder of new photos; what its sub-folders are called means nothing.
        promote: 'gate' promotes what passes the margins, 'always' and 'never' ask nobody.
        labelled: folder of class folders, named by class id or name, to train on beside the memory.
        teach: folders of ``labelled`` that name no class become classes of that name.
        holdout: as ``labelled``, to score on.
        images: whether pictures of new photos go into the change report and the bundle.
        classes: number of new classes; None estimates it.
        epochs: passes over new and remembered images; None asks `retrain.epochs_for`.
        weights: of the frozen backbone, where the champion was trained with a file of its own.
        replay: False trains on the new photos alone, which forgets: plain fine-tuning, to compare with.
        again: also where the same photos were looked at before.
        train: fields of the settings' section, such as the device.
    """

    registry: Path
    new: Path
    promote: Literal["gate", "always", "never"] = "gate"
    labelled: Path | None = None
    teach: bool = False
    holdout: Path | None = None
    images: bool = True
    classes: int | None = None
    epochs: int | None = None
    seed: int = 0
    weights: Path | None = None
    replay: bool = True
    again: bool = False
    margins: Margins = field(default_factory=Margins)
    train: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        code: 0 done or nothing new, 3 a candidate was kept and not promoted.
        summary: in one line.
        version: the version that was made.
        new_classes: how many classes were found; None where no photo was looked at.
        checks: the gate's.
    """

    code: int
    summary: str
    version: int | None = None
    new_classes: int | None = None
    checks: list[Check] = field(default_factory=list)
