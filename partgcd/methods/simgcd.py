"""SimGCD (Wen et al. 2023): a parametric classifier that teaches itself between views; the paper's Eqs. 1 to 3."""

from __future__ import annotations

from partgcd.config.tree import LossSettings
from partgcd.methods.method import Batch, Course, Method, Moment, Scene, Term
from partgcd.model.losses import base_loss

WATCHED = ("cls_supervised", "cls_unsupervised", "mean_entropy", "rep_supervised", "rep_unsupervised")


def global_terms(batch: Batch, moment: Moment, loss: LossSettings) -> list[Term]:
    """The objective on the class token: classification and contrast, with what they are made of."""
    base = base_loss(
        batch.cosine, batch.projected, batch.labels, loss, moment.teacher_temperature, moment.labelled
    )
    return [
        *(Term(name, base[name], 0.0) for name in WATCHED),
        Term("cls", base["cls"]),
        Term("rep", base["rep"]),
    ]


def begin(scene: Scene) -> Course:
    """The whole method is its terms."""
    return Course(lambda batch, moment: global_terms(batch, moment, scene.settings.loss))


METHOD = Method(
    "simgcd", "a classifier that teaches itself between views, on the class token (Wen 2023)", begin=begin
)
