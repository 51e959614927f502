"""The application: API, pages and guard around a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from partgcd import __version__
from partgcd.serving import api, pages
from partgcd.serving.guard import Guard
from partgcd.serving.problems import handle_problems
from partgcd.serving.service import Service


def build_app(service: Service, tell_id: bool = True) -> FastAPI:
    """The ASGI application that answers with ``service``; its lifespan opens and closes it. See `Guard`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.open()
        yield
        await service.close()

    app = FastAPI(
        title="partgcd", version=__version__, summary="Puts images into categories, known and discovered.",
        docs_url=None, redoc_url=None, lifespan=lifespan,
    )  # fmt: skip
    app.state.service = service
    app.include_router(api.router)
    app.include_router(pages.router)
    handle_problems(app)
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics, tell_id=tell_id)
    return app
