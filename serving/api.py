"""The HTTP API: one router for the embedded server and for Ray Serve."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from partgcd.export.manifest import ClassEntry
from partgcd.export.predictor import Answer
from partgcd.serving.body import FIELD, Held, read_images, read_json
from partgcd.serving.problems import MEDIA_TYPE, Problem, request_id
from partgcd.serving.schemas import (
    Answered,
    ChoiceOut,
    Classes,
    Classified,
    ClassOut,
    Explanation,
    Health,
    LimitsOut,
    ModelOut,
    NotRead,
    ProblemOut,
    Ready,
    RefusedOut,
    Rename,
    Renamed,
)
from partgcd.serving.service import STUCK_S, Result, Service
from partgcd.serving.turns import Asking

T = TypeVar("T")
MOST_TOP_K = 1000

router = APIRouter()


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's entry for problem documents of these statuses."""
    told = {
        400: "The body is empty or damaged", 401: "No valid API key", 403: "Not allowed",
        404: "No such class", 408: "The body came too slowly", 409: "No registry here, or the name is taken",
        413: "Over a limit of size or number", 415: "Not an image", 421: "Unknown Host header",
        422: "A parameter or an image that can't be used", 429: "Too much waits already; see Retry-After",
        503: "No model, no worker or no answer in time, or a busy registry; see Retry-After",
    }  # fmt: skip
    schema = {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
    return {
        status: {"description": told[status], "model": ProblemOut, "content": {MEDIA_TYPE: schema}}
        for status in statuses
    }


def service_of(request: Request) -> Service:
    """The service that the app was built for."""
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "One image as it is, or a form with any number of them.",
        "content": {
            **{f"image/{kind}": _BINARY for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "additionalProperties": False,
                    "properties": {
                        FIELD: {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            },
        },
    }
}


@router.post(
    "/v1/classify",
    summary="Put images into categories",
    responses={200: {"model": Classified}, **problems(400, 401, 403, 408, 413, 415, 421, 422, 429, 503)},
    openapi_extra=_BODY,
)
async def classify(
    request: Request,
    top_k: Annotated[int, Query(ge=1, le=MOST_TOP_K, description="Categories an answer names.")] = 1,
    explain: Annotated[bool, Query(description="Add a picture of the parts to every answer.")] = False,
) -> Response:
    """Send one image as the body, or a multipart form with a field `image` for each.

    Every image of a form has its own result: one that can't be read does not fail the rest. A single image in the
    body that can't be read is an error 422.
    """
    service = service_of(request)
    service.predictor()
    service.check_room()  # before the body is read, so that refusing costs little
    peer = _peer(request)
    held = Held(service.buffered, peer)
    began = time.perf_counter()
    try:
        uploads, form = await read_images(request, service.settings.limits, held)
        service.metrics.phase("read", time.perf_counter() - began)
        service.metrics.record("partgcd_request_images", len(uploads))
        asking = Asking(peer, request_id(request))
        version, results = await _unless_gone(request, service.classify(uploads, top_k, explain, asking))
    finally:
        held.close()
    request.scope["partgcd.log"] = {
        "images": len(results),
        "bytes": sum(len(each.upload.data) for each in results),
        "model_version": version,
    }
    out = Classified(
        model_version=version, results=[_result(index, each) for index, each in enumerate(results)]
    )
    first = out.results[0]
    if not form and isinstance(first, NotRead):
        raise Problem(422, "Unreadable image", first.error, "send a whole image in a common format")
    return _json(out, version)


@router.get(
    "/v1/classes", summary="All categories", responses={200: {"model": Classes}, **problems(401, 421, 503)}
)
async def classes(request: Request) -> Response:
    """Every category that an answer may name."""
    predictor = service_of(request).predictor()
    entries = [_class(entry, predictor.version) for entry in predictor.classes]
    return _json(Classes(model_version=predictor.version, classes=entries), predictor.version)


ClassId = Annotated[str, Path(min_length=1, max_length=100, description="A stable id, not a name.")]


@router.get(
    "/v1/classes/{class_id}",
    summary="One category",
    responses={200: {"model": ClassOut}, **problems(401, 404, 421, 422, 503)},
)
async def one_class(request: Request, class_id: ClassId) -> Response:
    """A category by its id; one that was merged or split says who answers for it."""
    service = service_of(request)
    predictor = service.predictor()
    for entry in predictor.classes:
        if entry.id == class_id:
            return _json(_class(entry, predictor.version), predictor.version)
    source = service.holder.source
    retired = await asyncio.to_thread(source.retired, class_id) if source is not None else None
    if retired is None:
        raise _no_class()
    status = "merged" if retired.merged_into is not None else "split"
    return _json(
        ClassOut.model_validate({
            "id": class_id, "name": None, "kind": None, "status": status, "labelled": None, "assigned": None,
            "merged_into": retired.merged_into, "split_into": list(retired.split_into),
            "model_version": predictor.version,
        }), predictor.version,
    )  # fmt: skip


@router.patch(
    "/v1/classes/{class_id}",
    summary="Rename a category",
    responses={
        200: {"model": Renamed}, **problems(400, 401, 403, 404, 408, 409, 413, 415, 421, 422, 429, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": Rename.model_json_schema()}},
        }
    },
)  # fmt: skip
async def rename(request: Request, class_id: ClassId) -> Response:
    """Needs an API key, and a registry behind the server. The id stays."""
    service = service_of(request)
    predictor = service.predictor()
    held = Held(service.buffered, _peer(request))
    try:
        body = await read_json(request, service.settings.limits, held)
    finally:
        held.close()
    try:
        change = Rename.model_validate(body)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise Problem(422, "Invalid change", told, 'send {"name": "..."} of 1 to 200 characters') from error
    source = service.holder.source
    if source is None or class_id not in {entry.id for entry in predictor.classes}:
        raise _no_class()
    await service.changes.rename(class_id, change.name)
    current = service.predictor()
    name = next((entry.name for entry in current.classes if entry.id == class_id), change.name)
    return _json(Renamed(id=class_id, name=name, model_version=current.version), current.version)


@router.get(
    "/v1/model",
    summary="The model that answers",
    responses={200: {"model": ModelOut}, **problems(401, 421, 503)},
)
async def model(request: Request) -> Response:
    """What it is, how good it was on its run's truth, and the limits of this server."""
    service = service_of(request)
    predictor = service.predictor()
    manifest, limits = predictor.manifest, service.settings.limits
    out = ModelOut(
        model_version=predictor.version,
        loaded_at=service.holder.loaded_at,
        method=manifest.method,
        backbone=manifest.backbone.name,
        precision=manifest.graph.precision,
        image_size=predictor.image_size,
        classes=len(predictor.classes),
        discovered=sum(entry.kind == "discovered" for entry in predictor.classes),
        parts=manifest.parts,
        novelty_threshold=manifest.novelty.threshold,
        false_alarm_rate=manifest.novelty.false_alarm_rate,
        accuracy=manifest.accuracy,
        run=manifest.provenance.run,
        exported=manifest.provenance.exported,
        limits=LimitsOut.model_validate(limits.model_dump(include=set(LimitsOut.model_fields))),
    )
    return _json(out, predictor.version)


@router.get("/healthz", summary="Alive", responses={200: {"model": Health}, 503: {"model": Health}})
async def healthz(request: Request) -> Response:
    """The process answers, and no worker is stuck: on 503 it is to be started again. Needs no key."""
    stuck = service_of(request).stuck_for() > STUCK_S
    out = Health(status="stuck" if stuck else "ok")
    return Response(out.model_dump_json(), 503 if stuck else 200, media_type="application/json")


@router.get("/readyz", summary="Ready", responses={200: {"model": Ready}, 503: {"model": Ready}})
async def readyz(request: Request) -> Response:
    """Whether requests are answered, and since when a newer model is refused. Needs no key; with it, says why."""
    service = service_of(request)
    predictor, refused = service.holder.predictor, service.holder.refused
    reason = service.why_not_ready()
    out = Ready(ready=reason is None, model_version=None, reason=reason)
    if predictor is not None:
        out.model_version = predictor.version
    if refused is not None:
        out.refused = RefusedOut(since=refused.since)
        if request.scope.get("partgcd.keyed"):  # reasons name paths of this machine
            out.refused.error = refused.error
            out.refused.model_version = refused.wanted.version if refused.wanted else None
    return Response(out.model_dump_json(), 200 if out.ready else 503, media_type="application/json")


@router.get("/metrics", summary="Prometheus metrics", response_class=Response, responses=problems(401, 421))
async def metrics(request: Request) -> Response:
    """In Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


def _peer(request: Request) -> str:
    """The client's address; behind a proxy everybody has the proxy's."""
    return request.client.host if request.client else ""


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """``work``, cancelled when the client leaves: nobody reads what a queue would still do for it."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _result(index: int, result: Result) -> Answered | NotRead:
    if not isinstance(result.found, Answer):
        return NotRead(index=index, file=result.upload.name, error=result.found.reason)
    explanation = None
    if result.drawing is not None:
        explanation = Explanation(data=base64.b64encode(result.drawing).decode("ascii"))
    return Answered(
        index=index,
        file=result.upload.name,
        top=[
            ChoiceOut.model_validate({
                "id": each.id, "name": each.name, "kind": each.kind, "confidence": round(each.probability, 6),
            })
            for each in result.found.top
        ],
        novel=result.found.novel,
        novelty=round(result.found.novelty, 4),
        explanation=explanation,
    )  # fmt: skip


def _class(entry: ClassEntry, version: str) -> ClassOut:
    return ClassOut(
        id=entry.id, name=entry.name, kind=entry.kind, status="active", labelled=entry.labelled,
        assigned=entry.assigned, model_version=version,
    )  # fmt: skip


def _json(model: BaseModel, version: str) -> Response:
    return Response(
        model.model_dump_json(exclude_none=isinstance(model, Classified)),
        headers={"X-Model-Version": version},
        media_type="application/json",
    )


def _no_class() -> Problem:
    return Problem(404, "No such class", "no class has this id", "GET /v1/classes lists the ids")
