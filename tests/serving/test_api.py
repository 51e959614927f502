from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

ClientOf = Callable[..., TestClient]
Photos = dict[str, bytes]
PNG = {"Content-Type": "image/png"}


def problem(response: Any, status: int) -> dict[str, Any]:
    """The problem document of a response, with all that one always has."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert told["status"] == status and told["request_id"] == response.headers["x-request-id"]
    assert told["title"] and told["detail"] and told["fix"]
    return told


@pytest.mark.parametrize("name", ["red", "green", "blue"])
def test_one_image_as_the_body(client: TestClient, photos: Photos, name: str) -> None:
    response = client.post("/v1/classify", content=photos[name], headers=PNG)
    assert response.status_code == 200
    told = response.json()
    (result,) = told["results"]
    assert result["index"] == 0 and result["novel"] is False and "explanation" not in result
    (choice,) = result["top"]
    assert choice["name"] == name and choice["id"].startswith("c-") and 0.9 < choice["confidence"] <= 1
    assert told["model_version"] == response.headers["x-model-version"] and len(told["model_version"]) == 64


def test_a_form_answers_each_image_and_a_bad_one_fails_alone(client: TestClient, photos: Photos) -> None:
    files = [
        ("image", ("a.png", photos["red"])), ("image", ("b.jpg", b"no image")), ("image", ("", photos["grey"])),
        ("image", ("c.png", photos["blue"][:50])), ("image", ("d.png", photos["blue"])),
    ]  # fmt: skip
    response = client.post("/v1/classify?top_k=9", files=files)
    assert response.status_code == 200
    results = response.json()["results"]
    assert [each["index"] for each in results] == [0, 1, 2, 3, 4]
    assert ["error" in each for each in results] == [False, True, False, True, False]
    assert results[0]["file"] == "a.png" and len(results[0]["top"]) == 3
    assert results[0]["top"][0]["name"] == "red" and results[4]["top"][0]["name"] == "blue"
    assert results[2]["novel"] and "file" not in results[2]
    assert sum(each["confidence"] for each in results[0]["top"]) == pytest.approx(1, abs=1e-4)


def test_explaining_sends_the_drawing(client: TestClient, photos: Photos) -> None:
    told = client.post("/v1/classify?explain=true", content=photos["red"], headers=PNG).json()
    drawing = told["results"][0]["explanation"]
    assert drawing["media_type"] == "image/png"
    image = Image.open(io.BytesIO(base64.b64decode(drawing["data"], validate=True)))
    assert image.format == "PNG" and image.size == (32, 32)


def test_a_model_without_parts_says_so(client_of: ClientOf, bundle_of: Callable[..., Path], tmp_path: Path,
                                       photos: Photos) -> None:  # fmt: skip
    client = client_of(source=bundle_of(tmp_path / "plain", parts=False))
    assert client.post("/v1/classify", content=photos["red"], headers=PNG).status_code == 200
    told = problem(client.post("/v1/classify?explain=1", content=photos["red"], headers=PNG), 422)
    assert "no parts" in told["detail"]


@pytest.mark.parametrize(
    ("headers", "content", "status", "words"),
    [
        ({}, b"x", 415, "none"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"x", 415, "x-www-form-urlencoded"),
        ({"Content-Type": "image/"}, b"x", 415, "image/"),
        (PNG, b"", 400, "empty"),
        (PNG, b"x", 422, "not an image"),
        ({"Content-Type": "multipart/form-data"}, b"x", 400, "boundary"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"", 400, "ends early"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"junk", 400, "form"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x--\r\n", 400, "form"),
        (
            {"Content-Type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nabc',
            400,
            "ends early",
        ),
        (
            {"Content-Type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="photo"\r\n\r\nabc\r\n--x--\r\n',
            422,
            "photo",
        ),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\nabc\r\n--x--\r\n", 422, "field"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_image(
    client: TestClient, headers: dict[str, str], content: bytes, status: int, words: str
) -> None:
    told = problem(client.post("/v1/classify", content=content, headers=headers), status)
    assert words in told["detail"]


@pytest.mark.parametrize("query", ["top_k=0", "top_k=1001", "top_k=x", "explain=maybe"])
def test_parameters_are_checked(client: TestClient, photos: Photos, query: str) -> None:
    told = problem(client.post(f"/v1/classify?{query}", content=photos["red"], headers=PNG), 422)
    assert told["detail"].startswith(query.partition("=")[0])


def test_limits_state_themselves(client_of: ClientOf, photos: Photos) -> None:
    client = client_of(limits={"max_body_mb": 0.001, "max_files": 2, "max_megapixels": 0.001})
    told = problem(client.post("/v1/classify", content=bytes(1001), headers=PNG), 413)
    assert told["limit"] == 1000 and "0.001 MB" in told["detail"]

    def unknown_length() -> Any:
        yield bytes(600)
        yield bytes(600)

    assert problem(client.post("/v1/classify", content=unknown_length(), headers=PNG), 413)["limit"] == 1000
    files = [("image", b"x")] * 3
    told = problem(client.post("/v1/classify", files=files), 413)
    assert told["limit"] == 2 and "2 images" in told["detail"]
    told = problem(client.post("/v1/classify", content=photos["red"], headers=PNG), 422)
    assert "too many pixels" in told["detail"] and "limit 0.001" in told["detail"]
    assert client.app.state.service.buffered.held == 0  # type: ignore[attr-defined]


def test_classes_and_one_of_them(client: TestClient) -> None:
    told = client.get("/v1/classes").json()
    assert [each["name"] for each in told["classes"]] == ["red", "green", "blue"]
    first = told["classes"][0]
    assert first["status"] == "active" and first["labelled"] == 3 and first["kind"] == "old"
    assert client.get(f"/v1/classes/{first['id']}").json() == first
    problem(client.get("/v1/classes/nobody"), 404)


def test_the_model_and_its_limits(client: TestClient) -> None:
    told = client.get("/v1/model").json()
    assert told["classes"] == 3 and told["discovered"] == 1 and told["precision"] == "fp32"
    assert told["limits"]["max_files"] == 32 and told["model_version"]


def test_health_and_readiness(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    told = client.get("/readyz").json()
    assert told["ready"] is True and told["refused"] is None
    client.app.state.service.draining = True  # type: ignore[attr-defined]
    assert client.get("/readyz").status_code == 503


def test_without_a_model_it_is_alive_and_not_ready(client_of: ClientOf, photos: Photos) -> None:
    client = client_of()
    client.app.state.service.holder.predictors = ()  # type: ignore[attr-defined]
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").json()["ready"] is False
    response = client.post("/v1/classify", content=photos["red"], headers=PNG)
    problem(response, 503)
    assert int(response.headers["retry-after"]) > 0


def test_renaming_needs_a_registry(client_of: ClientOf) -> None:
    client = client_of(api_key="correct horse")
    client.headers["X-API-Key"] = "correct horse"
    path = "/v1/classes/" + client.get("/v1/classes").json()["classes"][0]["id"]
    assert "registry" in problem(client.patch(path, json={"name": "x"}), 409)["detail"]
    problem(client.patch("/v1/classes/nobody", json={"name": "x"}), 404)
    problem(client.patch(path, json={"name": ""}), 422)
    problem(client.patch(path, json={"id": "c-1"}), 422)
    problem(client.patch(path, json=["x"]), 422)
    problem(client.patch(path, content=b"{", headers={"Content-Type": "application/json"}), 400)
    problem(client.patch(path, content=b"[" * 9999, headers={"Content-Type": "application/json"}), 400)
    problem(client.patch(path, content=b'{"name": "x"}'), 415)
    told = problem(client.patch(path, json={"name": "x" * 20_000}), 413)
    assert told["limit"] == 16384


def test_unknown_paths_and_methods(client: TestClient) -> None:
    problem(client.get("/nothing"), 404)
    response = client.get("/v1/classify")
    problem(response, 405)
    assert response.headers["allow"] == "POST"


def test_metrics_count(client: TestClient, photos: Photos) -> None:
    for name in ("red", "red", "grey"):
        client.post("/v1/classify", content=photos[name], headers=PNG)
    client.post("/v1/classify", content=b"x", headers=PNG)
    lines = client.get("/metrics").text.splitlines()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    assert found['partgcd_images_total{outcome="familiar"}'] == 2
    assert found['partgcd_images_total{outcome="novel"}'] == 1
    assert found['partgcd_images_total{outcome="broken"}'] == 1
    assert found['partgcd_requests_total{method="POST",route="/v1/classify",status="200"}'] == 3
    assert found['partgcd_requests_total{method="POST",route="/v1/classify",status="422"}'] == 1
    assert found["partgcd_queue_images"] == 0
    for phase, count in {"read": 4, "wait": 4, "decode": 4, "predict": 3}.items():
        assert found[f'partgcd_phase_seconds_count{{phase="{phase}"}}'] == count
    version = client.get("/v1/model").json()["model_version"]
    assert found[f'partgcd_model_info{{version="{version}"}}'] == 1
    assert 'partgcd_assigned_total{class_id="c-00000"}' in found


def test_the_document_has_an_example_and_problems_everywhere(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name in ("Answered", "NotRead", "ProblemOut", "ClassOut", "Ready"):
        assert schemas[name]["examples"], name
    assert "HTTPValidationError" not in schemas
    calls = [call for methods in document["paths"].values() for call in methods.values()]
    for call in calls:
        for status, each in call["responses"].items():
            if int(status) >= 400 and not {"readyz", "healthz"} & set(call["operationId"].split("_")):
                assert "application/problem+json" in each["content"], call["operationId"]
    body = document["paths"]["/v1/classify"]["post"]["requestBody"]["content"]
    assert "multipart/form-data" in body and "image/jpeg" in body
