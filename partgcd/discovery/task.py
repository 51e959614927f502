"""What a run is to find categories in, and which labels it may see. Light: imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partgcd.config.errors import UserError
from partgcd.data.scan import Listing, scan
from partgcd.data.splits import gcd_protocol, read_split


@dataclass(frozen=True)
class Task:
    """What to find categories in.

    Attributes:
        data: folder or manifest.
        protocol: 'gcd' turns fully labelled class folders into a GCD problem with hidden truth.
        split: file with old classes and labelled images, for published splits.
    """

    data: Path
    protocol: str | None = None
    split: Path | None = None

    def request(self) -> dict[str, Any]:
        """What run.json keeps so that a resumed run means the same."""
        return {"protocol": self.protocol, "split": str(self.split.resolve()) if self.split else None}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Task:
        """The task that run.json (or repeats.json) describes."""
        split = record["request"]["split"]
        return cls(Path(record["data"]), record["request"]["protocol"], Path(split) if split else None)

    def check(self) -> None:
        """Refuse what can be refused before anything is written.

        Raises:
            UserError: no such data or split, or a protocol that does not exist.
        """
        if not self.data.exists():
            raise UserError(f"no such folder or manifest: '{self.data}'")
        if self.protocol is not None and self.split is not None:
            raise UserError("--protocol and --split both decide the labels: give one of them")
        if self.protocol not in (None, "gcd"):
            raise UserError(f"no protocol '{self.protocol}': the only one is gcd")
        if self.split is not None and not self.split.is_file():
            raise UserError(f"no such split file: '{self.split}'")


def listing_of(task: Task, seed: int) -> tuple[Listing, dict[str, str]]:
    """The images of a task with the labels it may see, and the truth (path to class) it may not."""
    listing = scan(task.data)
    if task.split is not None:
        return read_split(task.split, listing)
    if task.protocol is not None:
        return gcd_protocol(listing, seed)
    return listing, {entry.path: entry.truth for entry in listing.entries if entry.truth is not None}
