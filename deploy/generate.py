"""Writes serve.yaml and rayservice.yaml beside this file, from the code that serves: python deploy/generate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partgcd.serving.ray_config import Deployed, ray_service, serve_config, write_yaml
from partgcd.serving.settings import ServeSettings

HERE = Path(__file__).resolve().parent
IMAGE = "partgcd:cpu"
CLAIM = "partgcd-models"


def generated() -> dict[str, dict[str, Any]]:
    """{file name: content} of what is generated."""
    settings = ServeSettings.model_validate({"source": "/models", "allow_hosts": ["*"]})
    deployed = Deployed(least=1, most=4, cpus=2)
    config = serve_config(settings, deployed, "0.0.0.0", 8000)
    return {"serve.yaml": config, "rayservice.yaml": ray_service(config, IMAGE, deployed, CLAIM)}


if __name__ == "__main__":
    for name, content in generated().items():
        write_yaml(HERE / name, content)
