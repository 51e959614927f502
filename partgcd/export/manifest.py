"""The manifest: everything a bundle says about itself, checked field by field when it is read."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from partgcd.config.errors import UserError
from partgcd.config.tree import Section, Settings

SCHEMA = 1
"""Raised with every change that an older program would misread."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Precision = Literal["fp32", "fp16", "int8"]


class FileEntry(Section):
    """One file of the bundle."""

    sha256: Digest
    bytes: Count


class ClassEntry(Section):
    """One category; ``index`` is its column, ``id`` is what people and programs keep."""

    index: Count
    id: str = Field(min_length=1, max_length=100)
    name: str
    kind: Literal["old", "discovered"]
    labelled: Count
    assigned: Count


class BackboneEntry(Section):
    """The frozen trunk. ``weights`` is the sha256 of all tensors it was loaded with."""

    name: str
    kind: Literal["vit", "conv"]
    grid: tuple[int, int]
    dim: int
    trunk_dim: int
    weights: str
    licence: str
    lineage: str


class Preprocessing(Section):
    """From a file to the graph's input: decode upright to RGB, resize, centre crop, planes of uint8.

    The short side is resized to ``short_side`` (bicubic, antialiased) after an image longer than ``max_aspect``
    times its short side lost both ends. ``mean`` and ``std`` (for pixels in 0..1) are applied inside the graph.
    """

    image_size: int
    crop_ratio: float
    short_side: int
    max_aspect: float
    max_megapixels: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class ProjectionEntry(Section):
    """What frozen patches go through before the mixtures; its tensors lie in gmm_bank.safetensors."""

    dims: int
    sha256: Digest


class FusionEntry(Section):
    """How the two heads' answers are joined (Eq. 14)."""

    temperature: float
    part_weight: float


class NoveltyEntry(Section):
    """An image whose score is above ``threshold`` is called novel.

    ``false_alarm_rate`` is the share of the ``calibration_images`` above it: images that had no label in the run.
    """

    threshold: float
    false_alarm_rate: Share
    calibration_images: Count
    ratio_weight: float
    folds: int


class GraphEntry(Section):
    """Names of the graph's inputs and outputs, its precision and operator set."""

    precision: Precision
    opset: int
    input: str
    outputs: list[str]


class ParityEntry(Section):
    """How far the graph was from the torch predictor on real images, and how far it may be when checked.

    Attributes:
        images, batches: what was compared at export.
        largest_difference: of any probability.
        tolerance: for probabilities of the stored inputs, on whatever machine checks them.
    """

    images: Count
    batches: list[int]
    largest_difference: float
    tolerance: float


class CostEntry(Section):
    """What lower precision cost: the share of the run's own images whose answer changed.

    ``fp32_blocks`` is how many first blocks had to stay in fp32 for it.
    """

    images: Count
    changed: Share
    largest_difference: float
    fp32_blocks: Count


class Exemplars(Section):
    """A few images a class: class tokens, frozen tokens (both half precision), keys; pictures only on demand."""

    per_class: Count
    thumbnails: bool


class Provenance(Section):
    """Where the bundle comes from. ``data`` is the digest of the run's catalog: keys, paths and labels."""

    run: str
    created: str
    exported: str
    partgcd: str
    git: str | None
    versions: dict[str, str]
    seed: int
    data: Digest
    images: dict[str, int]


class Manifest(Section):
    """manifest.json. ``settings`` are the run's, resolved; ``accuracy`` its evaluation, None without a truth."""

    format: Literal["partgcd bundle"]
    schema_version: Literal[1]
    method: Literal["partgcd", "simgcd"]
    backbone: BackboneEntry
    preprocessing: Preprocessing
    classes: list[ClassEntry] = Field(min_length=1)
    parts: int | None
    projection: ProjectionEntry | None
    fusion: FusionEntry
    novelty: NoveltyEntry
    graph: GraphEntry
    parity: ParityEntry
    cost: CostEntry | None
    agreement: Share
    accuracy: dict[str, Any] | None
    exemplars: Exemplars
    provenance: Provenance
    settings: Settings
    files: dict[str, FileEntry]

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse_manifest(text: bytes) -> Manifest:
    """The manifest in ``text``.

    Raises:
        UserError: it is no manifest, of another schema version, or its fields contradict each other.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"manifest.json is no JSON ({error}): export the bundle again", 1) from error
    if not isinstance(raw, dict) or raw.get("format") != "partgcd bundle":
        raise UserError("manifest.json does not describe a partgcd bundle", 1)
    version = raw.get("schema_version")
    if version != SCHEMA:
        newer = isinstance(version, int) and version > SCHEMA
        way_out = "update partgcd" if newer else "export the run again with this partgcd"
        raise UserError(
            f"manifest.json has schema version {version}, this program reads {SCHEMA}: {way_out}", 1
        )
    try:
        found = Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"manifest.json is damaged: {where}: {first['msg']}; export the bundle again", 1
        ) from error
    if [each.index for each in found.classes] != list(range(len(found.classes))):
        raise UserError("manifest.json is damaged: its classes are not numbered 0, 1, 2, ...", 1)
    if len({each.id for each in found.classes}) != len(found.classes):
        raise UserError("manifest.json is damaged: two of its classes have one id", 1)
    return found
