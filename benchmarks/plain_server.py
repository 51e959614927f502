"""What one writes in an afternoon: FastAPI, an upload, torch in eager mode. The other side of benchmarks/serving.py.

Decoding and the answer are this project's own, so that both sides do the same work. A plain def handler: FastAPI
runs it in a thread, torch takes the threads it likes.

    python benchmarks/plain_server.py RUN
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from load import free_port

from partgcd.data.decode import decode
from partgcd.data.pixels import evaluation_view
from partgcd.discovery.predict import predict
from partgcd.export.source import open_source
from partgcd.run.folder import RunFolder


def main() -> None:
    source = open_source(RunFolder.open(Path(sys.argv[1])))
    names = [str(each["name"]) for each in source.classes]
    torch.set_num_threads(len(__import__("os").sched_getaffinity(0)))
    app = FastAPI()

    @torch.no_grad()
    def answer(data: bytes) -> dict[str, Any]:
        pixels = torch.from_numpy(evaluation_view(decode(data), source.settings.data)[None])
        tokens = source.model.backbone.trunk(pixels)
        found = predict(source.model, source.parts, tokens, source.settings.parts, source.settings.discovery)
        confidence, index = found.fused[0].max(dim=0)
        return {"name": names[int(index)], "confidence": float(confidence)}

    @app.post("/v1/classify")
    async def classify(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(answer, await request.body())

    port = free_port()
    answer_once(answer)
    print(f"serving at http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def answer_once(answer: Any) -> None:
    """The first run allocates."""
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    answer(file.getvalue())


if __name__ == "__main__":
    main()
