"""What the bench of a simulated life measures, read from one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from partgcd.bench.plan import Name, SetSpec, parse_plan
from partgcd.config.errors import UserError
from partgcd.config.load import load_settings
from partgcd.config.tree import Settings

PACKAGED = Path(__file__).parent / "life.yaml"
"""The plan of the project's own table."""

Method = Literal["none", "rediscover", "finetune", "scratch"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LifeSet(SetSpec):
    """A data set and how its life goes; what is not said is the plan's."""

    fresh: bool = Field(
        True, description="False: no arrival brings a class that the first stage did not have."
    )
    arrivals: int | None = Field(None, ge=1)
    methods: list[Method] | None = None


class LifeBlock(_Strict):
    """Sets and seeds that are run together."""

    name: Name
    sets: list[Name]
    seeds: list[int] = [0]


class LifeJob(NamedTuple):
    """One life of one data set."""

    set: str
    seed: int


class LifePlan(_Strict):
    """A whole bench.

    Methods: 'none' never trains again; 'rediscover' is the product; 'finetune' trains on with the new photos alone;
    'scratch' trains anew on everything so far, told the true number of classes.
    """

    common: dict[str, object] = Field(default_factory=dict)
    arrivals: int = Field(3, ge=1)
    epochs: int = Field(6, ge=1, description="Of a training that goes on.")
    sets: dict[Name, LifeSet]
    methods: list[Method]
    blocks: list[LifeBlock]

    def arrivals_of(self, name: str) -> int:
        """Arrivals in the life of a set."""
        return self.sets[name].arrivals or self.arrivals

    def methods_of(self, name: str) -> list[Method]:
        """Methods that live the life of a set."""
        return self.sets[name].methods or self.methods

    def jobs(self, blocks: list[str] | None = None) -> list[LifeJob]:
        """The lives of some blocks, each once. Raises UserError for a block that there is not."""
        known = {block.name: block for block in self.blocks}
        for name in blocks or []:
            if name not in known:
                raise UserError(f"the plan has no block '{name}': it has {', '.join(known)}")
        picked = [known[name] for name in blocks or known]
        return list(dict.fromkeys(
            LifeJob(name, seed) for block in picked for seed in block.seeds for name in block.sets
        ))  # fmt: skip

    def settings(self, job: LifeJob, classes: int, machine: dict[str, object]) -> Settings:
        """Of a training that begins anew."""
        flags = {
            "backbone.name": "offline/vit-small",
            **self.common,
            **self.sets[job.set].settings,
            "discovery.classes": classes,
            "seed": job.seed,
        }
        return load_settings("default", None, None, {**flags, **machine})


def read_life_plan(file: Path) -> LifePlan:
    """Read and check a plan.

    Raises:
        UserError: no such file, not YAML, unknown keys, or blocks that name what is not there.
    """
    plan = parse_plan(file, LifePlan)
    for block in plan.blocks:
        for name in block.sets:
            if name not in plan.sets:
                raise UserError(f"plan '{file}': block {block.name} names no set {name!r}")
    return plan
