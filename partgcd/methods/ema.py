"""SimGCD whose targets come from a slower self: the exponential moving average of block and prototypes.

The teacher of muGCD (Vaze et al. 2023, "No Representation Rules Them All", section 5; no public code), without its
strong augmentation. The objective is SimGCD's; only who makes the targets of Eq. 2 differs.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from partgcd.methods.method import Batch, Course, Method, Moment, Scene, Term
from partgcd.methods.simgcd import global_terms

MOMENTUM = 0.99
"""Of the teacher a step: about a hundred steps of memory, where the authors' runs of 200 epochs have a thousand."""


def distilled_from(teacher: Tensor, student: Tensor, tau_t: float, tau_s: float) -> Tensor:
    """Each view's target comes from the teacher's answer to the other view (Eq. 2 with another teacher).

    Shape:
        teacher, student: cosines [2, B, C].
    """
    targets = (teacher.float() / tau_t).softmax(dim=-1).flip(0)
    return -(targets * (student.float() / tau_s).log_softmax(dim=-1)).sum(dim=-1).mean()


class _Teacher:
    """The moving average of block and prototypes; the trunk is the student's own."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        model = scene.model
        trained = [value for value in model.parameters() if value.requires_grad]
        # Frozen tensors are shared: only what is trained has a second self.
        kept = {id(value): value for value in model.parameters() if not value.requires_grad}
        self.model = copy.deepcopy(model, memo=dict(kept)).requires_grad_(False)
        self.pairs = list(
            zip((value for value in self.model.parameters() if id(value) not in kept), trained, strict=True)
        )

    def watch(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return (self.model.prototypes(self.model(tokens, None).cls),)

    def terms(self, batch: Batch, moment: Moment) -> list[Term]:
        loss = self.scene.settings.loss
        found = {term.name: term for term in global_terms(batch, moment, loss)}
        own = distilled_from(
            batch.watched[0], batch.cosine, moment.teacher_temperature, loss.student_temperature
        )
        share = loss.supervised_weight if moment.labelled else 0.0
        unlabelled = own + loss.mean_entropy_weight * found["mean_entropy"].loss
        cls = share * found["cls_supervised"].loss + (1 - share) * unlabelled
        changed = {
            "cls_unsupervised": Term("cls_unsupervised", own, 0.0),
            "cls": Term("cls", cls),
        }
        return list((found | changed).values())

    @torch.no_grad()
    def after_step(self) -> None:
        for own, student in self.pairs:
            own.lerp_(student, 1 - MOMENTUM)

    def state(self) -> dict[str, Tensor]:
        return {str(place): own for place, (own, _) in enumerate(self.pairs)}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        for place, (own, _) in enumerate(self.pairs):
            own.copy_(tensors[str(place)])


def begin(scene: Scene) -> Course:
    """Terms with targets of the moving average, which follows after every step."""
    teacher = _Teacher(scene)
    return Course(
        teacher.terms,
        watch=teacher.watch,
        after_step=teacher.after_step,
        state=teacher.state,
        restore=teacher.restore,
    )


METHOD = Method(
    "simgcd-ema", "SimGCD taught by the moving average of itself (after muGCD, Vaze 2023)", begin=begin
)
