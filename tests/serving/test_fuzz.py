"""Bad requests by the hundred: drawn from our own OpenAPI document, and byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from partgcd.serving.app import build_app
from partgcd.serving.metrics import Metrics
from partgcd.serving.service import Service
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import BundleSource

KEY = "correct horse"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = settings(
    max_examples=30, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
FUZZ = {"max_body_mb": 0.05, "max_files": 4, "max_megapixels": 1}


@asynccontextmanager
async def always_open(app: object) -> AsyncIterator[None]:
    """A lifespan that closes nothing: here many clients in turn ask one app."""
    yield


@pytest.fixture(scope="module")
def open_app(bundle: Path) -> Iterator[Any]:
    told = ServeSettings.model_validate({
        "source": bundle, "allow_hosts": ["*"], "api_key": KEY, "limits": FUZZ, "workers": 2, "threads": 1,
    })  # fmt: skip
    service = Service(told, BundleSource(bundle), Metrics())
    service.holder.start()
    app = build_app(service)
    app.router.lifespan_context = always_open
    yield app
    service._pool.shutdown()
    assert service._places == 0 and service.buffered.held == 0


@pytest.fixture(scope="module")
def fuzzed(open_app: Any) -> Iterator[TestClient]:
    with TestClient(open_app, headers={"X-API-Key": KEY}) as client:
        yield client


@pytest.fixture(scope="module")
def api(open_app: Any) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", open_app, headers={"X-API-Key": KEY})


CALLS = [
    ("POST", "/v1/classify"), ("GET", "/v1/classes"), ("GET", "/v1/classes/{class_id}"),
    ("PATCH", "/v1/classes/{class_id}"), ("GET", "/v1/model"), ("GET", "/healthz"), ("GET", "/readyz"),
    ("GET", "/metrics"),
]  # fmt: skip


def test_every_call_is_drawn(api: Any) -> None:
    found = [(each.ok().method.upper(), each.ok().path) for each in api.get_all_operations()]
    assert sorted(found) == sorted(CALLS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_call_keeps_to_its_document(api: Any, method: str, path: str, mode: GenerationMode) -> None:
    if mode is GenerationMode.NEGATIVE and "{" not in path and method == "GET":
        return  # a call without parameters can't be called wrongly
    strategy = api[path][method].as_strategy(generation_mode=mode)

    @settings(EXAMPLES, max_examples=20 if "{" in path or method == "POST" else 3)
    @given(case=strategy)
    def run(case: Any) -> None:
        response = case.call(headers={"X-API-Key": KEY})
        case.validate_response(response, checks=CHECKS)

    run()


def check(response: Any) -> None:
    assert response.status_code in (200, 400, 413, 415, 422), response.text
    if response.status_code == 200:
        assert response.json()["results"]
    else:
        assert response.headers["content-type"] == "application/problem+json" and response.json()["fix"]


def spoiled(draw: Any, data: bytes) -> bytes:
    """``data`` with a few bytes changed, removed, doubled, or an end cut off."""
    found = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        how = draw(st.sampled_from(("change", "remove", "insert", "cut", "double")))
        if how == "change" and found:
            found[at] = draw(st.integers(0, 255))
        elif how == "remove":
            del found[at : at + draw(st.integers(1, 20))]
        elif how == "insert":
            found[at:at] = draw(st.binary(max_size=20))
        elif how == "cut":
            del found[at:]
        else:
            found[at:at] = found[at : at + 30]
    return bytes(found)


FORM = (
    b"--B\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n"
    b"%s\r\n--B\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\n%s\r\n--B--\r\n"
)  # fmt: skip


@EXAMPLES
@given(data=st.data())
def test_a_spoiled_form(fuzzed: TestClient, photos: dict[str, bytes], data: st.DataObject) -> None:
    body = spoiled(data.draw, FORM % (photos["red"], photos["blue"]))
    boundary = data.draw(st.sampled_from(("B", "B", "B", '"B"', "", "x" * 300, "B; boundary=C")))
    kind = f"multipart/form-data; boundary={boundary}"
    check(fuzzed.post("/v1/classify", content=body, headers={"Content-Type": kind}))


@EXAMPLES
@given(data=st.data())
def test_a_spoiled_image(
    fuzzed: TestClient, malformed_corpus: tuple[Path, Any], photos: dict[str, bytes], data: st.DataObject
) -> None:
    folder, _ = malformed_corpus
    files = sorted(file for file in folder.iterdir() if file.stat().st_size < 40_000)
    whole = data.draw(st.sampled_from(files)).read_bytes()
    body = spoiled(data.draw, whole)
    response = fuzzed.post("/v1/classify?explain=true", content=body, headers={"Content-Type": "image/png"})
    check(response)


@EXAMPLES
@given(kind=st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60),
       body=st.binary(max_size=200))  # fmt: skip
def test_any_type_and_any_body(fuzzed: TestClient, kind: str, body: bytes) -> None:
    check(fuzzed.post("/v1/classify", content=body, headers={"Content-Type": kind.strip().encode("latin-1")}))


@EXAMPLES
@given(path=st.text(min_size=1, max_size=80), body=st.binary(max_size=50))
def test_any_class_id_and_any_change(fuzzed: TestClient, path: str, body: bytes) -> None:
    from urllib.parse import quote

    target = "/v1/classes/" + quote(path, safe="")
    assert fuzzed.get(target).status_code in (200, 404)
    changed = fuzzed.patch(target, content=body, headers={"Content-Type": "application/json"})
    assert changed.status_code in (400, 404, 405, 422)
