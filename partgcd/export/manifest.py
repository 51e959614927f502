"""The manifest: everything a bundle says about itself, checked field by field when it is read."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from partgcd.config.errors import UserError
from partgcd.config.tree import DataSettings, Positive, Section, Settings
from partgcd.data.pixels import short_side
from partgcd.export.graph_names import OPSET

SCHEMA = 1
"""Raised with every change that an older program would misread."""

MOST_TOLERATED = 0.05
"""Largest tolerance of the parity test that a bundle may ask for: above it the test would say nothing."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Width = Annotated[int, Field(ge=1, le=65_536)]
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
    grid: tuple[Width, Width]
    dim: Width
    trunk_dim: Width
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
    mean: tuple[Share, Share, Share]
    std: tuple[Positive, Positive, Positive]

    @model_validator(mode="after")
    def _possible(self) -> Preprocessing:
        try:
            settings = self.settings()
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if self.short_side != short_side(settings):
            raise ValueError(
                f"short_side is {self.short_side}, image_size / crop_ratio is {short_side(settings)}"
            )
        return self

    def settings(self) -> DataSettings:
        """As the decoder and the pixel store take them."""
        return DataSettings(
            image_size=self.image_size, crop_ratio=self.crop_ratio, max_aspect=self.max_aspect,
            max_megapixels=self.max_megapixels,
        )  # fmt: skip


class ProjectionEntry(Section):
    """What frozen patches go through before the mixtures; its tensors lie in gmm_bank.safetensors."""

    dims: Width
    sha256: Digest


class FusionEntry(Section):
    """How the two heads' answers are joined (Eq. 14)."""

    temperature: Positive
    part_weight: float = Field(ge=0.0)


class NoveltyEntry(Section):
    """An image whose score is above ``threshold`` is called novel.

    ``false_alarm_rate`` is the share of the ``calibration_images`` above it: images that had no label in the run.
    """

    threshold: float
    false_alarm_rate: Share
    calibration_images: Count
    ratio_weight: float = Field(ge=0.0)
    folds: Count


class GraphEntry(Section):
    """Names of the graph's inputs and outputs, its precision and operator set."""

    precision: Precision
    opset: int = Field(ge=1, le=OPSET)
    input: Literal["pixels"]
    outputs: list[str] = Field(max_length=32)


class ParityEntry(Section):
    """How far the graph was from the torch predictor on real images, and how far it may be when checked.

    Attributes:
        images, batches: what was compared at export.
        largest_difference: of any probability.
        tolerance: for probabilities of the stored inputs, on whatever machine checks them.
    """

    images: Count
    batches: list[Width] = Field(max_length=32)
    largest_difference: Share
    tolerance: float = Field(gt=0.0, le=MOST_TOLERATED)


class CostEntry(Section):
    """What lower precision cost: the share of the run's own images whose answer changed.

    ``fp32_blocks`` is how many first blocks had to stay in fp32 for it.
    """

    images: Count
    changed: Share
    largest_difference: Share
    fp32_blocks: Count


class Exemplars(Section):
    """A few images a class: class tokens, frozen tokens (both half precision), keys; pictures only on demand."""

    per_class: Width
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
    method: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    backbone: BackboneEntry
    preprocessing: Preprocessing
    classes: list[ClassEntry] = Field(min_length=1)
    parts: Annotated[int, Field(ge=1, le=1024)] | None
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

    @model_validator(mode="after")
    def _agreeing(self) -> Manifest:
        """What is said twice is said alike: a rediscovery reads the settings, a server the entries."""
        data, used = self.settings.data, self.preprocessing.settings()
        for name in ("image_size", "crop_ratio", "max_aspect", "max_megapixels"):
            if getattr(data, name) != getattr(used, name):
                raise ValueError(
                    f"preprocessing.{name} is {getattr(used, name)}, settings.data.{name} is {getattr(data, name)}"
                )
        if (self.parts is None) != (self.projection is None) or self.method != self.settings.discovery.method:
            raise ValueError("method, parts, projection and settings do not belong together")
        return self

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(text: str) -> float:
    """A number of JSON; Python's reader takes NaN, Infinity and 1e999 too, which no answer could carry on."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def parse_manifest(text: bytes) -> Manifest:
    """The manifest in ``text``.

    Raises:
        UserError: it is no manifest, of another schema version, or its fields contradict each other.
    """
    try:
        raw = json.loads(text, parse_float=_finite, parse_constant=_finite)
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
