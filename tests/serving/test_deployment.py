"""The deployment's own rules, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ray")

from partgcd.config.errors import UserError
from partgcd.export.predictor import Predictor
from partgcd.serving.body import Upload
from partgcd.serving.deployment import Replica
from partgcd.serving.metrics import DEFINITIONS
from partgcd.serving.ray_engine import environment
from partgcd.serving.ray_metrics import RayMetrics
from partgcd.serving.settings import ServeSettings

BundleOf = Callable[..., Path]
SETTINGS = ServeSettings(source=Path("x"), workers=1, provider="cpu").model_dump(
    mode="json", exclude={"api_key", "source", "alias"}
)


@pytest.fixture
def replica() -> Any:
    made = Replica.func_or_class.__mro__[1](SETTINGS)  # the class below Serve's wrappers
    yield made
    made.service._pool.shutdown()


def version(replica: Any) -> str | None:
    found = replica.service.holder.predictor
    return None if found is None else str(found.version)


def test_reconfiguring_never_takes_a_serving_model_away(replica: Any, bundle: Path, bundle_of: BundleOf,
                                                        tmp_path: Path) -> None:  # fmt: skip
    asyncio.run(replica.reconfigure({"source": str(bundle)}))
    first = version(replica)
    assert first == (bundle / "manifest.sha256").read_text()[:64]
    bad = bundle_of(tmp_path / "bad", flavour=1)
    (bad / "MODEL_CARD.md").write_text("changed")
    for wrong in (
        {"source": str(tmp_path / "nothing")},
        {"source": str(bad)},
        {},
        {"source": 7},
        {"nonsense": 1},
    ):
        asyncio.run(replica.reconfigure(wrong))
        assert version(replica) == first and replica.service.holder.refused is not None, wrong
    new = bundle_of(tmp_path / "new", flavour=2)
    asyncio.run(replica.reconfigure({"source": str(new), "alias": "champion"}))
    assert version(replica) == (new / "manifest.sha256").read_text()[:64]
    assert replica.service.holder.refused is None


def test_a_first_model_that_can_not_be_loaded_fails_the_start(replica: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no bundle"):
        asyncio.run(replica.reconfigure({"source": str(tmp_path)}))


def test_a_stuck_replica_is_unhealthy(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(replica.check_health())
    monkeypatch.setattr(replica.service, "stuck_for", lambda: 61.0)
    with pytest.raises(RuntimeError):
        asyncio.run(replica.check_health())


def test_requests_are_gathered_into_batches_on_a_gpu(
    bundle: Path, photos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = MagicMock()
    context._deployment_config.max_ongoing_requests = 80
    monkeypatch.setattr("ray.serve.get_replica_context", lambda: context)
    made = Replica.func_or_class.__mro__[1]({**SETTINGS, "provider": "cuda"})
    service = made.service
    service.settings = service.settings.model_copy(update={"provider": "cpu"})  # batches without the card
    service.holder._load = lambda path: (Predictor.load(path, 1, "cpu"),)
    sizes: list[int] = []
    run = service._run
    service._run = lambda jobs: (sizes.append(len(jobs)), run(jobs))[1]

    async def scene() -> list[str]:
        await made.reconfigure({"source": str(bundle)})
        uploads = [Upload(photos[name]) for name in ("red", "green", "blue")] * 4
        _, results = await service.classify(uploads, 1, False)
        return [each.found.best.name for each in results]

    assert asyncio.run(scene()) == ["red", "green", "blue"] * 4
    assert sum(sizes) == 12 and len(sizes) < 12 and max(sizes) <= 16
    service._pool.shutdown()


def test_ray_gets_every_metric() -> None:
    metrics = RayMetrics()
    for name, each in DEFINITIONS.items():
        metrics.record(name, 1.0, dict.fromkeys(each.labels, "x"))


def test_ray_is_told_how_to_authenticate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "PARTGCD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    settings = ServeSettings.model_validate({"source": "x", "api_key": "correct horse"})
    found = environment(settings)
    assert found["RAY_AUTH_MODE"] == "token" and len(found["RAY_AUTH_TOKEN"]) == 64
    assert found["RAY_AUTH_TOKEN"] != environment(settings)["RAY_AUTH_TOKEN"]
    assert found["PARTGCD_API_KEY"] == "correct horse"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert environment(settings)["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in environment(
        settings
    )
