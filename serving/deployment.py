"""The Ray Serve deployment: ingress and model in one, since a hop between the two costs more than it gives."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import FastAPI
from ray import serve

from partgcd.config.errors import UserError
from partgcd.export.predictor import Answer
from partgcd.serving.app import build_app
from partgcd.serving.logs import log_as_json
from partgcd.serving.metrics import Metrics
from partgcd.serving.ray_config import DEPLOYMENT
from partgcd.serving.ray_metrics import RayMetrics
from partgcd.serving.service import STUCK_S, Job, Service
from partgcd.serving.settings import KEY_VARIABLE, ServeSettings
from partgcd.serving.sources import open_source


@serve.deployment(name=DEPLOYMENT)
@serve.ingress()
class Replica:
    """One process that answers. ``settings`` as ServeSettings, without key, source and alias."""

    def __init__(self, settings: dict[str, Any]) -> None:
        log_as_json()
        given = {**settings, "api_key": os.environ.get(KEY_VARIABLE) or None, "source": "."}
        self._settings = ServeSettings.model_validate(given)
        runner = self._batched if self._settings.provider == "cuda" else None
        self.service = Service(self._settings, None, Metrics(RayMetrics()), runner)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(self.service, tell_id=False)  # Ray does

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve what ``user_config`` names ('source', 'alias'). What can't be served leaves the old model answering.

        Raises:
            UserError: there is no old model; where there is one, raising would take the service down.
        """
        holder = self.service.holder
        try:
            settings = self._settings.model_copy(update=_checked(user_config))
            holder.replace_source(await asyncio.to_thread(open_source, settings))
        except Exception as error:
            holder.refuse(None, error)
        else:
            await asyncio.to_thread(holder.refresh)
        if holder.predictor is None:
            raise UserError(holder.refused.error if holder.refused else "no model", 1)

    async def check_health(self) -> None:
        """Raises where this replica can't be relied on; Ray then replaces it."""
        if self.service.stuck_for() > STUCK_S:
            raise RuntimeError(f"no image was finished for {STUCK_S:g} s")

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.005)
    async def _batch(self, jobs: list[Job]) -> list[Answer]:
        return await self.service.run_in_pool(jobs)

    async def _batched(self, job: Job) -> Answer:
        answer: Answer = await self._batch(job)
        return answer


def application(args: dict[str, Any]) -> Any:
    """What the config's import_path names."""
    deployment: Any = Replica  # what the decorator made of it
    return deployment.bind(args["settings"])


def _checked(user_config: dict[str, Any]) -> dict[str, Any]:
    given = ServeSettings.model_validate(
        {"source": user_config["source"], "alias": user_config.get("alias", "champion")}
    )
    return {"source": given.source, "alias": given.alias}
