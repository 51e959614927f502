from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from starlette.testclient import TestClient

ClientOf = Callable[..., TestClient]


def test_the_pages_load_only_what_this_server_has(client: TestClient) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for link in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            if link == "data:,":  # no icon
                continue
            assert not link.startswith(("http", "//", "/")), link
            assert client.get(f"/{link}").status_code == 200, link
        assert "<script>" not in page.text and " onclick=" not in page.text


def test_only_its_own_files(client: TestClient) -> None:
    for name in ("api.py", "..%2fapi.py", "page.html.j2", "../pyproject.toml"):
        assert client.get(f"/static/{name}").status_code == 404


def test_the_documentation_names_every_call(client: TestClient) -> None:
    text = client.get("/docs").text
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in text
    assert "top_k" in text and "marsh beetle" in text
    assert "a field <code>image</code> for each" in text and "`" not in text


def test_names_become_text_and_never_html(client_of: ClientOf, bundle_of: Callable[..., Path], tmp_path: Path,
                                          photos: dict[str, bytes]) -> None:  # fmt: skip
    evil = "<img src=x onerror=alert(1)>"
    client = client_of(source=bundle_of(tmp_path / "evil", names=(evil, "green", "blue")))
    response = client.post("/v1/classify", files=[("image", (f"{evil}.png", photos["red"]))])
    assert response.json()["results"][0]["top"][0]["name"] == evil
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/docs"):
        assert evil not in client.get(path).text
    script = client.get("/static/page.js").text
    assert "innerHTML" not in script and "insertAdjacentHTML" not in script and "textContent" in script
