"""The fit loop: per epoch a refresh, then steps. The only one; every engine and method runs it."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partgcd.backbone.device_pixels import to_device
from partgcd.backbone.tokens import generations
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings, TrainSettings
from partgcd.data.catalog import Catalog
from partgcd.data.views import pool_slots, random_crops
from partgcd.discovery.epoch_line import Pace, class_sizes, epoch_line, unlabelled_loss
from partgcd.discovery.predict import PartModel
from partgcd.discovery.recluster import recluster, refit_due, settle
from partgcd.discovery.refresh import (
    Assignment,
    assign,
    compute_answers,
    compute_embeddings,
    compute_features,
    refit_bank,
)
from partgcd.discovery.sampler import epoch_batches
from partgcd.discovery.setup import Setup, agree, fill_store, prepare, prepare_warm
from partgcd.discovery.starts import set_prototypes
from partgcd.discovery.step import Trainee, Views, step_loss
from partgcd.discovery.warm import WarmStart
from partgcd.methods.method import Moment
from partgcd.model.losses import alpha_at, teacher_temperature
from partgcd.parts.bank import GMMBank
from partgcd.run.checkpoint import State, random_state, restore_random_state
from partgcd.run.world import Interrupted, World


@dataclass
class Fitted:
    """A finished fit: the set-up with its trained model, the last bank, and the last assignment."""

    setup: Setup
    bank: GMMBank | None
    assignment: Assignment

    @property
    def parts(self) -> PartModel | None:
        """What predictions need beside the model; None for the global baseline."""
        return self.setup.part_model(self.bank)


@dataclass(frozen=True)
class _Place:
    """What stays the same from epoch to epoch."""

    setup: Setup
    catalog: Catalog
    optimiser: torch.optim.Optimizer
    world: World


@dataclass
class _Epoch:
    """The running epoch: what its refresh decided and what its steps have summed so far."""

    number: int
    step: int
    bank: GMMBank | None
    assigned: Tensor
    predicted: Tensor
    sums: defaultdict[str, float]
    extra: dict[str, Any]
    score: float | None = None


def fit(settings: Settings, catalog: Catalog, world: World, start: WarmStart | None = None) -> Fitted:
    """Train on ``catalog`` where ``world`` says, from its newest checkpoint, or ``start``, or anew.

    Raises:
        Interrupted: a stop was asked for; the state is saved.
        UserError: the catalog does not fit the settings, or the loss stopped being finite.
    """
    setup = (
        prepare(settings, catalog, world) if start is None else prepare_warm(settings, catalog, world, start)
    )
    train = settings.train
    optimiser = _optimiser(setup)
    at = _Place(setup, catalog, optimiser, world)
    state = world.latest(settings)
    epoch = _restore(state, setup, optimiser) if state is not None else None
    first = state.epoch if state is not None else 1
    epochs = train.epochs if setup.course is not None else 0
    if world.rank == 0:
        world.folder.keep_metrics(first - 1)
    bank = epoch.bank if epoch is not None else setup.bank
    for number in range(first, epochs + 1):
        began = time.perf_counter()
        seconds: dict[str, float] = {}
        fill_pool(setup, catalog, number, settings, world)
        if epoch is None or epoch.step == 0 or epoch.number != number:
            previous = epoch.predicted if epoch is not None else None
            epoch = _refresh(at, bank, number, previous)
        seconds["refresh"] = time.perf_counter() - began
        seconds["mixtures"] = float(epoch.extra.pop("mixture_seconds", 0.0))
        bank = epoch.bank
        batches = epoch_batches(catalog.labelled, train.batch_size, settings.seed, number)
        begun_steps, images = time.perf_counter(), 0
        for step in range(epoch.step, len(batches)):
            _set_lr(optimiser, learning_rate(number, train, (step + 1) / len(batches)))
            _step(at, epoch, batches[step], step, len(batches))
            epoch.step = step + 1
            images += len(batches[step])
            loss = epoch.sums["loss.total"] / epoch.step
            world.progress(
                "training", (number - 1) * len(batches) + step + 1, train.epochs * len(batches),
                f"epoch {number}/{train.epochs} loss {loss:.3f}",
            )  # fmt: skip
            if world.all_should_stop() and (step + 1 < len(batches) or number < train.epochs):
                world.save(_state(setup, optimiser, epoch), settings)
                raise Interrupted
        seconds["steps"] = time.perf_counter() - begun_steps
        seconds["epoch"] = time.perf_counter() - began
        rates = {
            "lr": learning_rate(number, train),
            "alpha": epoch.sums["alpha"] / len(batches),
            "teacher_temperature": teacher_temperature(number - 1, settings.loss, train.epochs),
        }
        losses = {
            name.removeprefix("loss."): value / len(batches)
            for name, value in epoch.sums.items()
            if name.startswith("loss.")
        }
        line = epoch_line(number, rates, losses, epoch.extra, Pace(seconds, images, world.device))
        world.report(line)
        epoch.score = unlabelled_loss(line["loss"])
        epoch.number, epoch.step = number + 1, 0
        epoch.sums.clear()
        world.save(_state(setup, optimiser, epoch), settings)
    previous = epoch.predicted if epoch is not None else None
    last = _refresh(at, bank, train.epochs + 1, previous)
    return Fitted(setup, last.bank, Assignment(last.predicted, last.assigned, last.extra["candidates"]))


def learning_rate(epoch: int, train: TrainSettings, within: float = 1.0) -> float:
    """Cosine from the peak at epoch 1 towards its floor, constant within an epoch; until the warm-up is over, a share.

    Args:
        within: share of the epoch that is done with the step, in (0, 1]; only the warm-up asks for it.
    """
    done = (epoch - 1) / train.epochs
    cosine = train.lr * (train.lr_floor + (1 - train.lr_floor) * 0.5 * (1 + math.cos(math.pi * done)))
    warm = train.warmup * train.epochs
    return cosine * min(1.0, (epoch - 1 + within) / warm) if warm > 0 else cosine


def _refresh(at: _Place, bank: GMMBank | None, number: int, previous: Tensor | None) -> _Epoch:
    """Assign, retrieve candidates, refit the bank; record them as the state after epoch number - 1.

    A due refit of the prototypes comes first.
    """
    setup, world, settings = at.setup, at.world, at.setup.settings
    model, course, last = setup.model, setup.course, number > settings.train.epochs
    look = setup.look(world)

    def answers(bank: GMMBank | None) -> tuple[Tensor, Tensor | None]:
        return compute_answers(model, setup.part_model(bank), settings, look)

    features = compute_features(model, look)
    embeddings = compute_embeddings(course.embed, look) if course is not None and course.embed else None
    if course is not None and course.epoch is not None and embeddings is not None:
        course.epoch(embeddings)
    clusters: Tensor | None = None
    own = last and course is not None and course.settle is not None
    if own or refit_due(number - 1, settings):
        if own:
            assert course is not None and course.settle is not None and embeddings is not None
            clusters = world.broadcast(course.settle(embeddings))
        elif last:
            clusters = settle(setup, features, *answers(bank), settings, world)
        else:
            clusters = recluster(setup, features, settings, world, number)
        set_prototypes(model.prototypes.weight, features.cls, clusters, 0 if last else setup.old)
        momentum = at.optimiser.state.get(model.prototypes.weight, {}).get("momentum_buffer")
        if momentum is not None:
            momentum[setup.old :] = 0  # it belonged to the directions that were left
        agree([model.prototypes.weight], world)
        if setup.teacher is not None:
            setup.teacher = setup.teacher.follow(clusters, setup.labels, setup.old)
    assignment = assign(model, features, setup.labels, setup.old, settings, world)
    extra: dict[str, Any] = {"candidates": assignment.candidates}
    if bank is not None and setup.projection is not None:
        parts = PartModel(bank, setup.projection)
        bank, likelihood, took = refit_bank(
            model, parts, assignment.candidates, features.attention, settings, look
        )
        extra |= {"gmm_log_likelihood": likelihood, "mixture_seconds": took}
        if last and clusters is not None:
            _, part = answers(bank)
            assert part is not None
            model.start_part_prototypes(model.prototypes.weight)
            assert model.part_prototypes is not None
            set_prototypes(model.part_prototypes.weight, part, clusters)
            agree([model.part_prototypes.weight], world)
    if previous is not None:
        extra["changed"] = float((previous != assignment.predicted).float().mean())
    extra["sizes"] = class_sizes(assignment.predicted, setup.classes)
    _record(world, number - 1, assignment)
    return _Epoch(number, 0, bank, assignment.assigned, assignment.predicted, defaultdict(float), extra)


def _step(at: _Place, epoch: _Epoch, rows: NDArray[np.int64], step: int, steps: int) -> None:
    """One descent step on the batch ``rows``, of which each rank takes a share; adds to the epoch's sums."""
    setup, catalog, world = at.setup, at.catalog, at.world
    settings, course, device = setup.settings, setup.course, setup.labels.device
    assert course is not None
    parts, train = settings.parts, settings.train
    alpha = alpha_at(epoch.number - 1 + step / steps, train.epochs, parts.alpha, parts.alpha_warmup)
    shares = np.array_split(rows, world.size)
    mine, whole = shares[world.rank], torch.from_numpy(rows).to(device)
    views = Views(
        view_tokens(setup, catalog, mine, epoch.number, step, settings),
        epoch.assigned[torch.from_numpy(mine).to(device)],
        whole,
        setup.labels[whole],
        [len(share) for share in shares],
    )
    tau_t = teacher_temperature(epoch.number - 1, settings.loss, train.epochs)
    moment = Moment(tau_t, alpha, bool(catalog.labelled.any()))
    trainee = Trainee(setup.model, setup.part_model(epoch.bank), course, settings, setup.autocast)
    memory = setup.teacher.pick(whole) if setup.teacher is not None else None
    loss = step_loss(trainee, views, moment, world, memory)
    if not math.isfinite(loss.terms["total"]):
        bad = [name for name, value in loss.terms.items() if not math.isfinite(value)]
        raise UserError(
            f"the loss stopped being finite in epoch {epoch.number}, step {step + 1} ({', '.join(bad)}): "
            "begin a new run with a lower train.lr or --precision fp32; this run's last good checkpoint is kept",
            1,
        )
    at.optimiser.zero_grad(set_to_none=True)
    loss.total.backward()  # type: ignore[no-untyped-call]
    world.sum_gradients(setup.trained)
    if train.max_grad_norm > 0:
        torch.nn.utils.clip_grad_norm_(setup.trained, train.max_grad_norm)
    at.optimiser.step()
    if course.after_step is not None:
        course.after_step()
    for name, value in loss.terms.items():
        epoch.sums[f"loss.{name}"] += value
    epoch.sums["alpha"] += alpha


def view_tokens(
    setup: Setup, catalog: Catalog, rows: NDArray[np.int64], epoch: int, step: int, settings: Settings
) -> Tensor:
    """Trunk tokens [2B, T, D] of both views of ``rows``: from the pool, or from fresh crops."""
    keys, seed = catalog.keys[rows], settings.seed
    device = setup.labels.device
    if setup.pool is not None:
        slots = pool_slots(seed, epoch, step, keys, setup.pool.slots)
        return torch.cat([setup.pool.read(rows, device, slot) for slot in slots])
    size, shapes = settings.data.image_size, setup.pixels.shape(rows)
    views = []
    for view in (0, 1):
        crops = random_crops(seed, epoch, step, keys, view, shapes, size)
        if setup.device_pixels is not None:
            views.append(setup.device_pixels.crop(rows, crops, size))
        else:
            cut = setup.pixels.crop(rows, crops.top, crops.left, crops.flip, size)
            views.append(to_device(cut, device))
    with torch.no_grad(), setup.autocast():
        tokens = setup.model.backbone.trunk(torch.cat(views))
    return tokens.float()


def fill_pool(setup: Setup, catalog: Catalog, epoch: int, settings: Settings, world: World) -> None:
    """Bring the pool of cached views to the generation of ``epoch``; nothing to do without a pool."""
    if setup.pool is None:
        return
    wanted = generations(epoch, setup.pool.slots, setup.pool.own, settings.train.pool_refresh)
    fill_store(setup.pool, setup.material(catalog), wanted, settings.seed, world, "view pool")


def _optimiser(setup: Setup) -> torch.optim.Optimizer:
    """SGD whose groups say what ``share`` of the step size they take: the block less than the heads, which are new.

    Weights decay where they are matrices.
    """
    train = setup.settings.train
    block = {id(value) for value in setup.model.backbone.parameters()}
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = defaultdict(list)
    for value in setup.trained:
        groups[id(value) in block, value.ndim > 1].append(value)
    return torch.optim.SGD(
        [
            {
                "params": values,
                "weight_decay": train.weight_decay if matrices else 0.0,
                "share": train.block_lr if of_block else 1.0,
            }
            for (of_block, matrices), values in groups.items()
        ],
        lr=train.lr,
        momentum=train.momentum,
    )


def _set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr * group["share"]


def _state(setup: Setup, optimiser: torch.optim.Optimizer, epoch: _Epoch) -> State:
    tensors = {f"model.{name}": value for name, value in setup.model.trainable_state().items()}
    for index, value in enumerate(setup.trained):
        buffer = optimiser.state.get(value, {}).get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{index}"] = buffer
    if epoch.bank is not None:
        tensors |= {f"bank.{name}": value for name, value in epoch.bank.to_tensors().items()}
    if setup.teacher is not None:
        tensors["found"] = setup.teacher.found
    if setup.course is not None:
        tensors |= {f"method.{name}": value for name, value in setup.course.state().items()}
    tensors |= {"assigned": epoch.assigned, "predicted": epoch.predicted, **random_state()}
    extra = {key: value for key, value in epoch.extra.items() if key != "candidates"}
    values: dict[str, Any] = {"sums": dict(epoch.sums), "extra": extra}
    if epoch.step == 0 and epoch.score is not None:
        values["score"] = epoch.score
    return State(epoch.number, epoch.step, tensors, values)


def _restore(state: State, setup: Setup, optimiser: torch.optim.Optimizer) -> _Epoch:
    tensors, device = state.tensors, setup.labels.device
    setup.model.load_trainable_state({
        name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")
    })  # fmt: skip
    for index, value in enumerate(setup.trained):
        if f"momentum.{index}" in tensors:
            optimiser.state[value]["momentum_buffer"] = tensors[f"momentum.{index}"].to(device).clone()
    banked = {
        name.removeprefix("bank."): t.to(device) for name, t in tensors.items() if name.startswith("bank.")
    }
    if setup.teacher is not None and "found" in tensors:  # an older program's checkpoint has none
        setup.teacher = replace(setup.teacher, found=tensors["found"].to(device))
    if setup.course is not None and setup.course.restore is not None:
        setup.course.restore(
            {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
        )
    restore_random_state(tensors)
    return _Epoch(
        state.epoch,
        state.step,
        GMMBank.from_tensors(banked) if banked else None,
        tensors["assigned"].to(device),
        tensors["predicted"].to(device),
        defaultdict(float, state.values["sums"]),
        dict(state.values["extra"]),
    )


def _record(world: World, after_epoch: int, assignment: Assignment) -> None:
    """Predictions and candidates as they stand after an epoch, for curves computed later with the truth."""
    if world.rank != 0:
        return
    candidates = assignment.candidates
    world.folder.save_epoch(
        after_epoch,
        predicted=assignment.predicted.cpu().numpy().astype(np.int32),
        assigned=assignment.assigned.cpu().numpy().astype(np.int32),
        candidate_rows=candidates.rows.cpu().numpy().astype(np.int32),
        candidate_classes=candidates.classes.cpu().numpy().astype(np.int32),
    )
