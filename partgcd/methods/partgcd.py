"""PartGCD: the baseline's objective on class token and part feature, and part discrepancy (Eqs. 11 to 13)."""

from __future__ import annotations

from partgcd.config.tree import Settings
from partgcd.methods.method import Batch, Course, Method, Moment, Scene, Term
from partgcd.methods.simgcd import WATCHED, global_terms
from partgcd.model.losses import base_loss, part_discrepancy


def part_terms(batch: Batch, moment: Moment, settings: Settings) -> list[Term]:
    """The part branch: discrepancy (Eq. 11), and the baseline's losses on the part feature (Eq. 12)."""
    seen, parts = batch.parts, settings.parts
    if seen is None:
        return []
    base = base_loss(
        seen.cosine, seen.projected, batch.labels, settings.loss, moment.teacher_temperature, moment.labelled
    )
    discrepancy = part_discrepancy(
        seen.features, seen.present, parts.pdr_temperature, parts.pdr_positive_in_denominator
    )
    return [
        *(Term(f"part_{name}", base[name], 0.0, True) for name in WATCHED),
        Term("pdr", discrepancy, parts.pdr_weight, True),
        Term("part_cls", base["cls"], float(parts.classification), True),
        Term("part_rep", base["rep"], float(parts.contrast), True),
    ]


def begin(scene: Scene) -> Course:
    """The whole method is its terms."""
    settings = scene.settings

    def terms(batch: Batch, moment: Moment) -> list[Term]:
        return [*global_terms(batch, moment, settings.loss), *part_terms(batch, moment, settings)]

    return Course(terms)


METHOD = Method(
    "partgcd", "the whole picture and its parts, of which each class has a mixture", parts=True, begin=begin
)
