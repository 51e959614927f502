"""What the API says, with examples: the models behind the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_VERSION = "3f1c0e5d" * 8
_CLASS = "c-7b3e91d2"


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class ChoiceOut(BaseModel):
    """One category of an answer."""

    model_config = _example(id=_CLASS, name="marsh beetle", kind="discovered", confidence=0.93)

    id: str = Field(description="Stable for life; names are not.")
    name: str
    kind: Literal["old", "discovered"]
    confidence: float = Field(description="Fused probability, 0 to 1.")


class Explanation(BaseModel):
    """The image as the model saw it, tinted by its parts."""

    media_type: Literal["image/png"] = "image/png"
    data: str = Field(description="Base64.")


class Answered(BaseModel):
    """What one image is."""

    model_config = _example(
        index=0, file="photo.jpg", novel=False, novelty=1.72,
        top=[{"id": _CLASS, "name": "marsh beetle", "kind": "discovered", "confidence": 0.93}],
    )  # fmt: skip

    index: int = Field(description="Place of the image in the request, from 0.")
    file: str | None = Field(None, description="What the client called it.")
    top: list[ChoiceOut] = Field(description="The best categories, the best first.")
    novel: bool = Field(description="Whether the image is unlike every category.")
    novelty: float = Field(description="The score behind it; higher is stranger.")
    explanation: Explanation | None = None


class NotRead(BaseModel):
    """Why one image of a form has no answer."""

    model_config = _example(index=1, file="broken.jpg", error="truncated")

    index: int
    file: str | None = None
    error: str


class Classified(BaseModel):
    """A result for every image, in their order."""

    model_config = _example(
        model_version=_VERSION,
        results=[
            {
                "index": 0, "file": "photo.jpg", "novel": False, "novelty": 1.72,
                "top": [{"id": _CLASS, "name": "marsh beetle", "kind": "discovered", "confidence": 0.93}],
            },
            {"index": 1, "file": "broken.jpg", "error": "truncated"},
        ],
    )  # fmt: skip

    model_version: str = Field(description="Id of the bundle that answered.", examples=[_VERSION])
    results: list[Answered | NotRead]


class ClassOut(BaseModel):
    """One category."""

    model_config = _example(
        id=_CLASS, name="marsh beetle", kind="discovered", status="active", labelled=0, assigned=41,
        merged_into=None, split_into=[], model_version=_VERSION,
    )  # fmt: skip

    id: str
    name: str | None = Field(description="None where the class answers no more.")
    kind: Literal["old", "discovered"] | None
    status: Literal["active", "merged", "split"]
    labelled: int | None = Field(description="Labelled images it was trained with.")
    assigned: int | None = Field(description="Unlabelled images of the training that were put into it.")
    merged_into: str | None = None
    split_into: list[str] = []
    model_version: str


class Classes(BaseModel):
    """All categories that answer."""

    model_version: str = Field(examples=[_VERSION])
    classes: list[ClassOut]


class Rename(BaseModel):
    """The change of a class."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "marsh beetle"}]})

    name: str = Field(min_length=1, max_length=200)


class Renamed(BaseModel):
    """The change is written; answers carry it after the next look at the registry."""

    id: str
    name: str
    model_version: str = Field(examples=[_VERSION])


class LimitsOut(BaseModel):
    """What a request may take."""

    max_body_mb: float
    max_files: int
    max_megapixels: float
    read_timeout_s: float
    min_upload_kb_s: float
    decode_timeout_s: float
    queue_timeout_s: float
    request_timeout_s: float
    max_queue: int
    max_decode_mb: float


class ModelOut(BaseModel):
    """The model that answers."""

    model_version: str = Field(examples=[_VERSION])
    loaded_at: str
    method: str
    backbone: str
    precision: str
    image_size: int
    classes: int
    discovered: int
    parts: int | None
    novelty_threshold: float
    false_alarm_rate: float
    accuracy: dict[str, Any] | None
    run: str
    exported: str
    limits: LimitsOut


class Health(BaseModel):
    """Whether the process is alive, and gets on with what it has."""

    status: Literal["ok", "stuck"] = "ok"


class RefusedOut(BaseModel):
    """A newer model that could not be taken. Which, and why, is for those who have the API key."""

    model_version: str | None = None
    error: str | None = None
    since: str


class Ready(BaseModel):
    """Whether requests are answered, and what became of a newer model."""

    model_config = _example(ready=True, model_version=_VERSION, reason=None, refused=None)

    ready: bool
    model_version: str | None
    reason: str | None = Field(None, description="Why it is not ready.")
    refused: RefusedOut | None = None


class ProblemOut(BaseModel):
    """An error (RFC 9457)."""

    model_config = _example(
        type="about:blank", title="Body too large", status=413, detail="the body is larger than 32 MB",
        fix="send smaller or fewer images a request", request_id="5b3f0c9a", limit=32_000_000,
    )  # fmt: skip

    type: str
    title: str
    status: int
    detail: str
    fix: str
    request_id: str
    limit: float | None = None
