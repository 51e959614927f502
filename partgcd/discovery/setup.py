"""Everything settled before the first epoch: backbone, stores, number of classes and parts, the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor, nn

from partgcd.backbone.device_pixels import DevicePixels
from partgcd.backbone.load import Backbone, load_backbone
from partgcd.backbone.tokens import Material, TokenStore, fill, generations
from partgcd.cluster.class_count import estimate_classes
from partgcd.cluster.novel_samples import Expected
from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.data.catalog import Catalog
from partgcd.data.pixels import PixelStore
from partgcd.discovery.part_setup import prepare_parts
from partgcd.discovery.predict import PartModel
from partgcd.discovery.refresh import Features, Look, compute_features
from partgcd.discovery.starts import start_adapter, start_prototypes
from partgcd.discovery.warm import Teacher, WarmStart
from partgcd.disk.files import read_json, write_bytes, write_json
from partgcd.methods.known import method_of
from partgcd.methods.method import Course, Scene
from partgcd.model.module import DiscoveryModel
from partgcd.parts.bank import GMMBank
from partgcd.parts.mixture import Mixture
from partgcd.parts.projection import Projection
from partgcd.run.device import Autocast, apply_threads, autocast, pick_precision
from partgcd.run.world import Interrupted, World

_CPU_POOL = 4
"""Cached views an image where fresh ones would take most of a step."""


@dataclass
class Setup:
    """What the fit loop works on.

    Attributes:
        labels: [N] label index, -1 for none, on the device.
        old, classes: number of labelled classes, and of all classes sought.
        evaluation, pool: trunk tokens of the centre crop, and of cached random views (None: fresh views).
        projection, bank: None for the global baseline.
        trained: the parameters that descend, in a fixed order.
        course: the method at work; None where it trains nothing.
        teacher, expected: the model before, and what it lets expect of the images, where training goes on from one.
        device_pixels: the pixels on a GPU that has room for them, where views are fresh.
    """

    settings: Settings
    model: DiscoveryModel
    pixels: PixelStore
    evaluation: TokenStore
    pool: TokenStore | None
    labels: Tensor
    old: int
    classes: int
    projection: Projection | None
    bank: GMMBank | None
    autocast: Autocast
    trained: list[nn.Parameter]
    course: Course | None
    teacher: Teacher | None = None
    expected: Expected | None = None
    device_pixels: DevicePixels | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.pool is None and DevicePixels.fits(self.pixels, self.labels.device):
            self.device_pixels = DevicePixels(self.pixels, self.labels.device)

    def part_model(self, bank: GMMBank | None) -> PartModel | None:
        """``bank`` with the projection its patches go through."""
        return PartModel(bank, self.projection) if bank is not None and self.projection is not None else None

    def look(self, world: World, phase: str = "refresh") -> Look:
        """At the evaluation view of every image; a stop may interrupt it."""
        return Look(self.evaluation, world.device, self.autocast, stopping_ticker(world, phase), world)

    def material(self, catalog: Catalog) -> Material:
        """What cached views are made of."""
        return Material(self.model.backbone, self.pixels, catalog.keys, self.autocast, self.labels.device)


@dataclass
class Ground:
    """Backbone, stores and untrained features: what every method starts from."""

    backbone: Backbone
    pixels: PixelStore
    evaluation: TokenStore
    autocast: Autocast
    stamp: str

    def look(self, world: World) -> Look:
        """At the evaluation view of every image, for the first features; a stop may interrupt it."""
        return Look(self.evaluation, world.device, self.autocast, stopping_ticker(world, "features"), world)


def ground(
    settings: Settings,
    catalog: Catalog,
    world: World,
    replay: NDArray[np.float16] | None = None,
    backbone: Backbone | None = None,
) -> Ground:
    """Load the backbone and run its trunk once over the evaluation view of every image.

    Args:
        replay: tokens [M, T, Dt] of the catalog's last M images, where these have no pixels.
        backbone: on the world's device, where it is loaded already.
    """
    threads = apply_threads(settings.train)
    precision = pick_precision(settings.train.precision, world.device)
    cast = autocast(precision, world.device)
    if backbone is None:
        backbone = load_backbone(settings.backbone, settings.data.image_size, world.device)
    info = backbone.info
    if world.rank == 0:
        world.folder.update(
            status="running",
            device=str(world.device),
            precision=precision,
            threads=threads,
            workers=world.size,
            backbone={"name": info.name, "kind": info.kind, "lineage": info.lineage, "licence": info.licence,
                      "grid": list(info.grid), "dim": info.dim, "weights": info.weights_digest},
        )  # fmt: skip
    pixels = PixelStore.open(world.folder.store)
    stamp = f"{catalog.digest()}:{info.weights_digest}:{info.name}:{info.image_size}:{precision}:{threads}"
    evaluation = _token_store(world, backbone, Kept("evaluation", len(catalog), 1, stamp), replay)
    material = Material(backbone, pixels, catalog.keys, cast, world.device)
    fill_store(evaluation, material, generations(1, 1, evaluation.own, 0.0), None, world, "trunk")
    return Ground(backbone, pixels, evaluation, cast, stamp)


def prepare(settings: Settings, catalog: Catalog, world: World) -> Setup:
    """From settings and catalog to a model ready to train.

    Raises:
        UserError: fewer images than classes or parts need.
        Interrupted: a stop was asked for.
    """
    check_shares(settings, catalog, world)
    base = ground(settings, catalog, world)
    labels = torch.from_numpy(catalog.labels).to(world.device)
    old = len(catalog.label_names)
    method = method_of(settings)
    # The untrained model's class tokens do not depend on its heads, so a model without any stands in.
    probe = DiscoveryModel(base.backbone, 2, None, settings).to(world.device)
    features: Features | None = None
    if (
        settings.discovery.classes == "auto"
        or method.parts
        or settings.discovery.prototype_start == "clusters"
    ):
        features = compute_features(probe, base.look(world))
    classes = decide_classes(settings, catalog, features, world)
    projection, bank = None, None
    if method.parts and features is not None:
        projection, bank = _parts(Untrained(probe, base, features), labels, classes, settings, world)
    parts = bank.mu.shape[1] if bank is not None else None
    model = DiscoveryModel(base.backbone, classes, parts, settings).to(world.device)
    if settings.discovery.prototype_start == "clusters" and world.rank == 0:
        assert features is not None
        start_prototypes(model, features, labels, old, classes, settings)
    if bank is not None and projection is not None and settings.parts.adapter_start == "linear":
        start_adapter(model, PartModel(bank, projection), settings, base.look(world))
    pool = _view_pool(settings, catalog, world, base, None)
    trained = [value for value in model.parameters() if value.requires_grad]
    agree(trained, world)
    course = method.begin(Scene(model, labels, old, settings)) if method.begin is not None else None
    return Setup(
        settings, model, base.pixels, base.evaluation, pool, labels, old, classes, projection, bank,
        base.autocast, trained, course,
    )  # fmt: skip


def prepare_warm(settings: Settings, catalog: Catalog, world: World, start: WarmStart) -> Setup:
    """From settings and catalog to the model of ``start``, ready to train on.

    Raises:
        UserError: more ranks than a batch has images.
        Interrupted: a stop was asked for.
    """
    check_shares(settings, catalog, world)
    base = ground(settings, catalog, world, start.replay, start.backbone)
    model = start.model(base.backbone, settings).to(world.device)
    trained = [value for value in model.parameters() if value.requires_grad]
    agree(trained, world)
    method, old = method_of(settings), len(catalog.label_names)
    labels = torch.from_numpy(catalog.labels).to(world.device)
    course = method.begin(Scene(model, labels, old, settings)) if method.begin is not None else None
    return Setup(
        settings, model, base.pixels, base.evaluation, _view_pool(settings, catalog, world, base, start.replay),
        labels, old, start.classes,
        start.projection.to(world.device) if start.projection is not None else None,
        start.bank.to(world.device) if start.bank is not None else None,
        base.autocast, trained, course, start.teacher.to(world.device) if start.teacher is not None else None,
        start.expected,
    )  # fmt: skip


def _view_pool(
    settings: Settings, catalog: Catalog, world: World, base: Ground, replay: NDArray[np.float16] | None
) -> TokenStore | None:
    """The store of cached views; None for fresh views in every step, which images without pixels can't have."""
    views = settings.train.view_pool
    if views == "auto":
        views = 0 if world.device.type == "cuda" else _CPU_POOL
    if replay is not None:
        views = views or _CPU_POOL
    if not views:
        return None
    stamp = f"{base.stamp}:{settings.seed}"
    return _token_store(world, base.backbone, Kept("pool", len(catalog), views, stamp), replay)


def check_shares(settings: Settings, catalog: Catalog, world: World) -> None:
    """Refuse more ranks than a batch has images.

    Raises:
        UserError: a rank would have nothing to do.
    """
    batch = min(settings.train.batch_size, len(catalog))
    if batch < world.size:
        raise UserError(
            f"a batch of {batch} images can't be split over {world.size} workers: "
            f"use --workers {batch} at most, or a larger --batch-size"
        )


def decide_classes(settings: Settings, catalog: Catalog, features: Features | None, world: World) -> int:
    """The number of classes: the one asked for, checked, or the estimate, recorded in run.json.

    Raises:
        UserError: out of range for this catalog.
    """
    asked, old = settings.discovery.classes, len(catalog.label_names)
    if isinstance(asked, int):
        if asked < old:
            raise UserError(
                f"--classes {asked} is below the {old} labelled classes: give at least {old}, or 'auto'"
            )
        if asked > len(catalog):
            raise UserError(
                f"--classes {asked} is more than the {len(catalog)} images: lower it or add images"
            )
        return asked
    recorded = world.folder.info().get("class_estimate")
    if recorded is None and world.rank == 0:
        if len(catalog) < 8:
            raise UserError(
                f"{len(catalog)} images are too few to estimate the number of classes: give --classes N"
            )
        assert features is not None
        world.progress("class count", 0, 1)
        found = estimate_classes(
            features.cls.cpu().numpy(), catalog.labels, old, settings.discovery.classes_max, settings.seed
        )
        world.progress("class count", 1, 1)
        recorded = {
            "classes": max(found.classes, old),
            "low": max(found.low, old),
            "high": found.high,
            "ways": {name: list(way) for name, way in found.ways.items()},
            "missed": round(found.missed, 4),
            "moved": {name: round(value, 4) for name, value in found.moved.items()},
            "by": found.by,
            "scores": {str(k): round(value, 4) for k, value in found.scores.items()},
            "seconds": round(found.seconds, 2),
        }
        world.folder.update(class_estimate=recorded)
    # Rank 0 estimates for all: the outcome is one number, and its clusterings are not worth sharing out.
    decided: dict[str, Any] = world.all_gather_object(recorded)[0]
    return int(decided["classes"])


class Untrained(NamedTuple):
    """The backbone as it came: a model without heads to speak of, its stores, and its features of all images."""

    probe: DiscoveryModel
    base: Ground
    features: Features


def _parts(
    untrained: Untrained, labels: Tensor, classes: int, settings: Settings, world: World
) -> tuple[Projection, GMMBank]:
    """Projection and starting bank, from the run's cache if it has them; else rank 0 makes them for all."""
    kept, record = world.folder.cache / "parts.safetensors", world.folder.cache / "parts.json"
    done = record.exists() and kept.exists() and read_json(record)["classes"] == classes
    if not done and world.rank == 0:
        world.progress("parts", 0, 1)
        look = untrained.base.look(world)
        made = prepare_parts(untrained.probe, untrained.features.attention, labels, classes, settings, look)
        world.progress("parts", 1, 1)
        shared = made.bank.shared
        tensors = {"log_pi": shared.log_pi, "mu": shared.mu, "var": shared.var,
                   "mean": made.projection.mean, "basis": made.projection.basis}  # fmt: skip
        write_bytes(kept, save({name: value.cpu().contiguous() for name, value in tensors.items()}))
        silhouettes: dict[str, Any] = {str(k): round(value, 5) for k, value in made.silhouettes.items()}
        count = int(shared.mu.shape[0])
        # run.json first: parts.json says that all of this is done.
        world.folder.update(
            parts={"count": count, "silhouettes": silhouettes, "seconds": round(made.seconds, 2)}
        )
        write_json(record, {"classes": classes, "parts": count, "silhouettes": silhouettes})
    world.barrier()
    tensors = {name: value.to(world.device) for name, value in load_file(kept).items()}
    shared = Mixture(tensors["log_pi"], tensors["mu"], tensors["var"])
    return Projection(tensors["mean"], tensors["basis"]), GMMBank.all_shared(shared, classes)


@torch.no_grad()
def agree(parameters: list[nn.Parameter], world: World) -> None:
    """Rank 0's values everywhere.

    What every rank computes from the same inputs may still differ in its last bits between machines, and on a
    GPU between calls; replicas of a model would drift apart.
    """
    if world.size == 1:
        return
    whole = world.broadcast(torch.cat([value.reshape(-1) for value in parameters]))
    for value, part in zip(
        parameters, torch.split(whole, [each.numel() for each in parameters]), strict=True
    ):
        value.copy_(part.view_as(value))


def fill_store(
    store: TokenStore,
    material: Material,
    wanted: NDArray[np.int64],
    seed: int | None,
    world: World,
    phase: str,
) -> None:
    """`fill` with the generations ``wanted`` [slots, chunks], shared out over the ranks of each host."""
    many = world.size > 1
    with world.together():
        share_out = world.share_out if many else None
        lacked = fill(store, material, wanted, seed, stopping_ticker(world, phase), share_out)
    if many and (lacked or not store.resident):
        store.hold_on(world.device)


class Kept(NamedTuple):
    """A store of tokens: its folder, how many images and views an image, and what its content depends on."""

    name: str
    rows: int
    slots: int
    stamp: str


def _token_store(
    world: World, backbone: Backbone, kept: Kept, replay: NDArray[np.float16] | None
) -> TokenStore:
    """The store ``kept``, its last images given by ``replay``."""
    own = kept.rows - (len(replay) if replay is not None else 0)
    size = backbone.info.image_size
    blank = torch.zeros(1, 3, size, size, dtype=torch.uint8, device=world.device)
    _, tokens, dim = backbone.trunk(blank).shape
    with world.leader_first():
        return TokenStore(world.stores / kept.name, own, kept.slots, (tokens, dim), kept.stamp, replay)


def stopping_ticker(world: World, phase: str) -> Callable[[int, int], None]:
    """Progress for a phase that can be left at any tick, because what it did is on disk or cheap."""

    def tick(done: int, total: int) -> None:
        world.progress(phase, done, total)
        if world.should_stop():
            raise Interrupted

    return tick
