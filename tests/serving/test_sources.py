from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from partgcd.config.errors import UserError
from partgcd.export import bundle as bundles
from partgcd.registry.edits import rename
from partgcd.registry.versions import Registry
from partgcd.serving.settings import ServeSettings
from partgcd.serving.sources import BundleSource, RegistrySource, open_source

ClientOf = Callable[..., TestClient]
KEY = "correct horse"
PNG = {"Content-Type": "image/png"}


@pytest.fixture
def registry(tmp_path: Path, bundle: Path) -> Registry:
    """One version, the champion."""
    made = Registry.init(tmp_path / "registry")
    made.promote(str(made.add(bundle).number))
    return made


def test_a_source_is_what_lies_there(registry: Registry, bundle: Path, tmp_path: Path) -> None:
    assert isinstance(open_source(ServeSettings(source=bundle)), BundleSource)
    assert isinstance(open_source(ServeSettings(source=registry.path)), RegistrySource)
    with pytest.raises(UserError, match="no bundle"):
        open_source(ServeSettings(source=tmp_path))
    with pytest.raises(UserError, match="no previous"):
        open_source(ServeSettings(source=registry.path, alias="previous")).current()


def test_a_promoted_version_answers(
    registry: Registry,
    client_of: ClientOf,
    bundle_of: Callable[..., Path],
    tmp_path: Path,
    photos: dict[str, bytes],
) -> None:
    client = client_of(source=registry.path)
    service = client.app.state.service  # type: ignore[attr-defined]
    first = client.get("/v1/model").json()["model_version"]
    new = bundle_of(tmp_path / "new", sure=5.0)
    added = registry.add(new)
    service.holder.refresh()
    assert client.get("/v1/model").json()["model_version"] == first
    registry.promote(str(added.number))
    service.holder.refresh()
    second = client.post("/v1/classify", content=photos["red"], headers=PNG).json()["model_version"]
    assert second == (new / "manifest.sha256").read_text()[:64] != first
    registry.rollback()
    service.holder.refresh()
    assert client.get("/v1/model").json()["model_version"] == first


def test_a_rename_is_answered_at_once_and_kept(
    registry: Registry, client_of: ClientOf, photos: dict[str, bytes]
) -> None:
    client = client_of(source=registry.path, api_key=KEY)
    client.headers["X-API-Key"] = KEY
    top = client.post("/v1/classify", content=photos["red"], headers=PNG).json()["results"][0]["top"][0]
    assert top["name"] == "red"
    response = client.patch(f"/v1/classes/{top['id']}", json={"name": "crimson"})
    assert response.status_code == 200 and response.json()["name"] == "crimson"
    again = client.post("/v1/classify", content=photos["red"], headers=PNG).json()["results"][0]["top"][0]
    assert again == {**top, "name": "crimson"}
    assert client.get(f"/v1/classes/{top['id']}").json()["name"] == "crimson"
    fresh = client_of(source=registry.path)
    assert fresh.get("/v1/classes").json()["classes"][0]["name"] == "crimson"


def test_a_rename_reads_no_file_of_the_bundle_again(
    registry: Registry, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(source=registry.path)
    holder = client.app.state.service.holder  # type: ignore[attr-defined]
    opened, real = [], bundles._opened
    monkeypatch.setattr(bundles, "_opened", lambda path, name: (opened.append(name), real(path, name))[1])
    renamed = holder.predictors[0].classes[0].id
    rename(registry, renamed, "vermilion")
    holder.refresh()
    assert next(each.name for each in holder.predictors[0].classes if each.id == renamed) == "vermilion"
    assert opened == []


def test_a_name_that_can_not_be_one_is_refused(registry: Registry, client_of: ClientOf) -> None:
    client = client_of(source=registry.path, api_key=KEY)
    response = client.patch("/v1/classes/c-00000", json={"name": " "}, headers={"X-API-Key": KEY})
    assert response.status_code == 422 and response.json()["detail"]
    taken = client.patch("/v1/classes/c-00000", json={"name": "Green"}, headers={"X-API-Key": KEY})
    assert taken.status_code == 409 and taken.json()["title"] == "Name taken"


def test_merged_classes_answer_as_one_and_say_where_they_went(
    registry: Registry, client_of: ClientOf, photos: dict[str, bytes]
) -> None:
    from partgcd.registry.edits import merge

    client = client_of(source=registry.path)
    before = client.post("/v1/classify?top_k=3", content=photos["grey"], headers=PNG).json()["results"][0][
        "top"
    ]
    confidence = {each["name"]: each["confidence"] for each in before}
    merge(registry, "red", "green")
    client.app.state.service.holder.refresh()  # type: ignore[attr-defined]
    after = client.post("/v1/classify?top_k=3", content=photos["grey"], headers=PNG).json()["results"][0][
        "top"
    ]
    found = {each["name"]: each["confidence"] for each in after}
    assert set(found) == {"red", "blue"}
    assert found["red"] == pytest.approx(confidence["red"] + confidence["green"], abs=1e-5)
    gone = client.get("/v1/classes/c-00001").json()
    assert gone["status"] == "merged" and gone["merged_into"] == "c-00000" and gone["name"] is None


def test_a_damaged_log_of_names_leaves_the_old_names(
    registry: Registry, client_of: ClientOf, photos: dict[str, bytes]
) -> None:
    client = client_of(source=registry.path, api_key=KEY)
    registry.log.write_text("nonsense\n{}\n")
    client.app.state.service.holder.refresh()  # type: ignore[attr-defined]
    told = client.get("/readyz", headers={"X-API-Key": KEY}).json()
    assert told["ready"] and str(registry.path) in told["refused"]["error"]
    for headers in ({}, {"X-API-Key": "wrong key"}):  # a stranger learns that there is one, and no path
        response = client.get("/readyz", headers=headers)
        assert response.json()["refused"] == {
            "model_version": None,
            "error": None,
            "since": told["refused"]["since"],
        }
        assert str(registry.path) not in response.text
    keyed = {**PNG, "X-API-Key": KEY}
    assert client.post("/v1/classify", content=photos["red"], headers=keyed).status_code == 200


def test_a_server_needs_no_torch(registry: Registry) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from partgcd.serving.app import build_app\n"
        "from partgcd.serving import embedded\n"
        "from partgcd.serving.metrics import Metrics\n"
        "from partgcd.serving.service import Service\n"
        "from partgcd.serving.settings import ServeSettings\n"
        "from partgcd.serving.sources import open_source\n"
        "from partgcd.export.check import check_bundle\n"
        f"settings = ServeSettings(source=Path({str(registry.path)!r}))\n"
        "service = Service(settings, open_source(settings), Metrics())\n"
        "service.holder.start()\n"
        "check_bundle(service.holder.source.current().path)\n"
        "print(sorted(set(sys.modules) & {'timm', 'sklearn', 'ray', 'scipy', 'matplotlib'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"
