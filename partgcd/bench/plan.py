"""What a quality bench measures: data sets, methods, backbones and seeds, read from one YAML file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.config.tree import Settings

PACKAGED = Path(__file__).parent / "quality.yaml"
"""The plan of the project's own table."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


AnyPlan = TypeVar("AnyPlan", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SetSpec(_Strict):
    """One data set, made of the class folders below ``folder``."""

    folder: str = Field(description="Name below the photos folder.")
    draw: int | None = Field(None, ge=2, description="Classes drawn at random; None takes all.")
    draw_seed: int = Field(0, ge=0, description="Seed of that draw.")
    rest: bool = Field(False, description="Take the classes that the draw left out instead.")
    tail: tuple[int, int] | None = Field(
        None, description="Images of the largest and of the smallest class, falling geometrically between."
    )
    note: str = Field("", description="Printed beside every row of this set.")
    settings: dict[str, object] = Field(
        default_factory=dict, description="What every method does differently on this set."
    )

    def drawn(self) -> dict[str, object]:
        """What decides which images are in it, as JSON keeps it."""
        return self.model_dump(mode="json", exclude={"note", "settings"})


class MethodSpec(_Strict):
    """One method: a preset and what it changes, for all backbones and for single ones."""

    preset: str = "default"
    settings: dict[str, object] = Field(default_factory=dict)
    by_backbone: dict[str, dict[str, object]] = Field(default_factory=dict)


class Block(_Strict):
    """A rectangle of runs; blocks are worked off in the order of the file."""

    name: Name
    sets: list[Name]
    methods: list[Name]
    backbones: list[str] = ["offline/vit-small"]
    seeds: list[int] = [0]


class Job(NamedTuple):
    """One run of the bench."""

    set: str
    backbone: str
    method: str
    seed: int


class Plan(_Strict):
    """A whole bench; ``common`` are settings that every method shares (views, steps, image size)."""

    common: dict[str, object] = Field(default_factory=dict)
    sets: dict[Name, SetSpec]
    methods: dict[Name, MethodSpec]
    blocks: list[Block]

    def jobs(self) -> Iterator[Job]:
        """Every run once, in the order of the blocks, a seed of all sets before the next seed.

        What shares views stands together.
        """
        seen = set()
        for block in self.blocks:
            for seed in block.seeds:
                for name in block.sets:
                    for backbone in block.backbones:
                        for method in block.methods:
                            job = Job(name, backbone, method, seed)
                            if job not in seen:
                                seen.add(job)
                                yield job

    def chosen(self, blocks: list[str] | None = None, methods: list[str] | None = None) -> list[Job]:
        """The jobs of some blocks (all but 'quick' if not given), and of some methods.

        Raises:
            UserError: a block or method that the plan does not have.
        """
        known = [block.name for block in self.blocks]
        wanted = blocks if blocks is not None else [name for name in known if name != "quick"]
        for name in wanted:
            if name not in known:
                raise UserError(f"the plan has no block '{name}': it has {', '.join(known)}")
        for name in methods or []:
            if name not in self.methods:
                raise UserError(f"the plan has no method '{name}': it has {', '.join(self.methods)}")
        picked = self.model_copy(update={"blocks": [block for block in self.blocks if block.name in wanted]})
        return [job for job in picked.jobs() if not methods or job.method in methods]

    def settings(self, job: Job, classes: int, machine: dict[str, object]) -> Settings:
        """The resolved settings of one run.

        Args:
            classes: the true number, given to every method that does not ask for 'auto'.
            machine: device, threads and the like, which no method may set.
        """
        method = self.methods[job.method]
        flags: dict[str, object] = {
            "discovery.classes": classes,
            **self.common,
            **self.sets[job.set].settings,
            **method.settings,
            **method.by_backbone.get(job.backbone, {}),
            "backbone.name": job.backbone,
            "seed": job.seed,
            **machine,
        }
        return load_settings(method.preset, None, None, flags)


def parse_plan(file: Path, kind: type[AnyPlan]) -> AnyPlan:
    """A plan of either bench, its keys and values checked, the names in its blocks not yet.

    Raises:
        UserError: no such file, not YAML, or unknown keys.
    """
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no plan '{file}'") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        code = 1 if isinstance(error, OSError) else 2
        raise UserError(f"plan '{file}' can't be read: {str(error).splitlines()[0]}", code) from error
    try:
        return kind.model_validate(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"plan '{file}': {where}: {first['msg']}") from error


def read_plan(file: Path) -> Plan:
    """Read and check a plan.

    Raises:
        UserError: no such file, not YAML, unknown keys, or blocks that name what is not there.
    """
    plan = parse_plan(file, Plan)
    for block in plan.blocks:
        for name in block.sets:
            if name not in plan.sets:
                raise UserError(f"plan '{file}': block {block.name} names no set {name!r}")
        for name in block.methods:
            if name not in plan.methods:
                raise UserError(f"plan '{file}': block {block.name} names no method {name!r}")
    for job in plan.jobs():
        plan.settings(job, 2, {})
    return plan
