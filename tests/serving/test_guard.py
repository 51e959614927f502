from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from partgcd.serving.guard import host_name
from partgcd.serving.logs import log_as_json

ClientOf = Callable[..., TestClient]
KEY = "correct horse"
PNG = {"Content-Type": "image/png"}


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:80", "localhost"), ("localhost.:8000", "localhost"),
        ("[::1]:8000", "::1"), ("::1", "::1"), ("127.0.0.1:1", "127.0.0.1"), ("", ""), ("a b", ""),
        ("localhost:80:80", ""), ("evil@localhost", ""), ("localhost/x", ""), ("localhost:99999999", ""),
    ],
)  # fmt: skip
def test_host_names(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "x:80", ""]
)
def test_a_foreign_host_is_not_answered(client: TestClient, host: str) -> None:
    response = client.get("/v1/model", headers={"Host": host})
    assert response.status_code == 421 and "--allow-host" in response.json()["fix"]
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]:9"])
def test_this_machine_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/v1/model", headers={"Host": host}).status_code == 200


def test_other_hosts_may_be_allowed(client_of: ClientOf) -> None:
    client = client_of(allow_hosts=["photos.example"])
    assert client.get("/v1/model", headers={"Host": "Photos.Example:443"}).status_code == 200
    assert client.get("/v1/model").status_code == 421
    assert client_of(allow_hosts=["*"]).get("/v1/model", headers={"Host": "any"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200), ("http://localhost:3000", 403), ("https://evil.example", 403), ("null", 403),
        ("http://localhost.evil.example", 403), ("evil", 403),
    ],
)  # fmt: skip
def test_pages_of_other_sites_may_not_send(
    client: TestClient, photos: dict[str, bytes], origin: str, status: int
) -> None:
    response = client.post("/v1/classify", content=photos["red"], headers={**PNG, "Origin": origin})
    assert response.status_code == status


@pytest.mark.parametrize(
    "headers",
    [{"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"Authorization": basic(f"me:{KEY}")}],
)
def test_with_the_key(client_of: ClientOf, headers: dict[str, str]) -> None:
    client = client_of(api_key=KEY)
    for path in ("/v1/model", "/metrics", "/", "/docs", "/openapi.json", "/v1/classes"):
        assert client.get(path, headers=headers).status_code == 200, path


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"X-API-Key": ""}, {"X-API-Key": KEY + "x"}, {"X-API-Key": KEY[:-1]}, {"X-API-Key": "ü"},
        {"Authorization": KEY}, {"Authorization": "Bearer"}, {"Authorization": "Bearer x"},
        {"Authorization": "Basic !"}, {"Authorization": basic(KEY)}, {"Authorization": basic("me:x")},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
    ],
)  # fmt: skip
def test_without_the_key(client_of: ClientOf, headers: dict[str, str], photos: dict[str, bytes]) -> None:
    client = client_of(api_key=KEY)
    encoded = {name: value.encode() for name, value in headers.items()}
    for path in ("/v1/model", "/metrics", "/", "/docs", "/openapi.json", "/nothing"):
        response = client.get(path, headers=encoded)
        assert response.status_code == 401 and "WWW-Authenticate" in response.headers, path
    assert client.post("/v1/classify", content=photos["red"], headers=encoded).status_code == 401
    assert client.get("/healthz", headers=encoded).status_code == 200
    assert client.get("/readyz", headers=encoded).status_code == 200
    assert client.app.state.service.buffered.held == 0  # type: ignore[attr-defined]


def test_changes_need_a_key_even_where_asking_does_not(client: TestClient) -> None:
    response = client.patch("/v1/classes/c-00000", json={"name": "x"}, headers={"X-API-Key": KEY})
    assert response.status_code == 403 and "PARTGCD_API_KEY" in response.json()["fix"]


def test_every_answer_has_an_id_and_careful_headers(client: TestClient) -> None:
    for path in ("/v1/model", "/nothing", "/", "/docs"):
        response = client.get(path)
        assert len(response.headers["x-request-id"]) == 32
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]
    assert client.get("/v1/model", headers={"X-Request-Id": "mine-7"}).headers["x-request-id"] == "mine-7"
    for strange in ("a b", "x" * 65, "<script>"):
        assert len(client.get("/v1/model", headers={"X-Request-Id": strange}).headers["x-request-id"]) == 32


def test_what_fails_inside_is_a_problem_without_details(
    client: TestClient, photos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(service, "_run", broken)
    with (tmp_path / "log").open("w+") as log:
        log_as_json(stream=log)
        response = client.post("/v1/classify", content=photos["red"], headers=PNG)
        log.seek(0)
        lines = [json.loads(line) for line in log]
    assert response.status_code == 500 and "secret" not in response.text
    request_id = response.json()["request_id"]
    assert [line["event"] for line in lines] == ["request failed", "request"]
    assert {line["request_id"] for line in lines} == {request_id}
    assert "secret inside" in lines[0]["traceback"] and lines[1]["status"] == 500
    assert service._places == 0 and service.buffered.held == 0


def test_logs_tell_who_and_what_but_nothing_of_the_image(
    client: TestClient, photos: dict[str, bytes], tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w+") as log:
        log_as_json("debug", stream=log)
        client.post("/v1/classify", files=[("image", ("secret.png", photos["red"]))])
        client.get("/nothing%0A%7B%7D?key=secret")
        client.get("/healthz")
        log.seek(0)
        text = log.read()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["level"] for line in lines] == ["info", "info", "debug"]
    assert lines[0]["images"] == 1 and lines[0]["bytes"] == len(photos["red"]) and lines[0]["model_version"]
    assert lines[0]["path"] == "/v1/classify" and lines[0]["status"] == 200
    assert "secret" not in text and "PNG" not in text


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://photos.example", "photos.example", 200), ("http://photos.example:80", "photos.example", 200),
        ("http://PHOTOS.example:8000", "photos.example:8000", 200),
        ("https://photos.example", "photos.example", 200),  # a proxy that speaks TLS
        ("https://photos.example", "photos.example:443", 200), ("http://[::1]:9", "[::1]:9", 200),
        ("https://app.example", "photos.example", 200),  # it is in the list
        ("http://app.example", "photos.example", 403), ("https://app.example:444", "photos.example", 403),
        ("http://evil.example", "photos.example", 403), ("https://evil.example", "photos.example", 403),
        ("http://photos.example:8001", "photos.example:8000", 403),
        ("http://photos.example", "photos.example:8000", 403),
        ("http://photos.example.evil.example", "photos.example", 403), ("http://localhost", "photos.example", 403),
        ("null", "photos.example", 403), ("null", "null", 403), ("", "photos.example", 403),
        ("file://", "photos.example", 403), ("photos.example", "photos.example", 403),
        ("http://", "photos.example", 403), ("http://evil@photos.example", "photos.example", 403),
        ("ftp://photos.example", "photos.example", 403),
    ],
)  # fmt: skip
def test_where_any_host_is_allowed_foreign_pages_are_not(
    client_of: ClientOf, photos: dict[str, bytes], origin: str, host: str, status: int
) -> None:
    client = client_of(allow_hosts=["*"], allow_origins=["https://app.example"])
    headers = {**PNG, "Origin": origin, "Host": host}
    response = client.post("/v1/classify", content=photos["red"], headers=headers)
    assert response.status_code == status, response.text
    if status == 403:
        assert response.json()["title"] == "Foreign origin" and "--allow-origin" in response.json()["fix"]


def test_behind_tls_a_plain_page_is_foreign(client_of: ClientOf, photos: dict[str, bytes]) -> None:
    client = client_of(allow_hosts=["*"])
    for origin, status in (("https://photos.example", 200), ("http://photos.example", 403)):
        response = client.post(
            "https://photos.example/v1/classify", content=photos["red"], headers={**PNG, "Origin": origin}
        )
        assert response.status_code == status


def test_refusals_are_counted_by_their_title(client_of: ClientOf, photos: dict[str, bytes]) -> None:
    client = client_of(limits={"max_files": 1, "max_queue": 1})
    client.post("/v1/classify", content=b"x", headers=PNG)
    client.post("/v1/classify", content=b"x")
    client.post("/v1/classify", files=[("image", photos["red"])] * 2)
    client.post("/v1/classify?top_k=0", content=photos["red"], headers=PNG)
    client.post("/v1/classify", content=photos["red"], headers={**PNG, "Origin": "http://evil.example"})
    client.get("/v1/model", headers={"Host": "evil.example"})
    client.get("/nothing")
    client.delete("/v1/model")
    client.get("/v1/model")
    text = client.get("/metrics").text
    for title in (
        "Unreadable image", "Unsupported media type", "Too many images", "Invalid parameter", "Foreign origin",
        "Unknown host", "Not Found", "Method Not Allowed",
    ):  # fmt: skip
        assert f'partgcd_rejected_total{{reason="{title}"}} 1.0' in text, title
    assert text.count("partgcd_rejected_total{") == 8


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "BREW"])
def test_every_method_that_is_not_answered_is_a_problem(client: TestClient, method: str) -> None:
    for path in ("/v1/classify", "/healthz", "/nothing", "/static/nothing.js", "/"):
        response = client.request(method, path)
        if method == "HEAD" and path in ("/healthz", "/"):
            assert response.status_code == 200 and response.content == b""
            continue
        assert response.status_code in (404, 405), (method, path)
        assert response.headers["content-type"] == "application/problem+json"
        assert (response.content == b"") == (method == "HEAD")
        if response.status_code == 405:
            allowed = response.headers["allow"].split(", ")
            assert ("HEAD" in allowed) == ("GET" in allowed) == (path != "/v1/classify")
