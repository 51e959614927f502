"""What deploy/ holds for serving is what the code generates, and is what the programs that read it take."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from partgcd.serving.ray_config import Deployed, ray_service, serve_config
from partgcd.serving.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def generated() -> dict[str, dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, dict[str, Any]] = module.generated()
    return found


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_the_files_are_what_the_code_generates(name: str) -> None:
    assert yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8")) == generated()[name]


# The fields of KubeRay's RayService (ray.io/v1) and of the pods in it that may be set; any other is a mistake.
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
AMOUNTS = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Mi|Gi)?$"},
}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
CONTAINER = closed(
    ["name", "image"],
    name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
    image=TEXT,
    env={
        "type": "array",
        "items": closed(
            ["name"],
            name=TEXT,
            value=TEXT,
            valueFrom=closed([], secretKeyRef=closed(["key"], name=TEXT, key=TEXT, optional=FLAG)),
        ),
    },
    volumeMounts={
        "type": "array",
        "items": closed(["name", "mountPath"], name=TEXT, mountPath=TEXT, readOnly=FLAG),
    },
    resources=closed([], requests=AMOUNTS, limits=AMOUNTS),
    securityContext=closed(
        [],
        allowPrivilegeEscalation=FLAG,
        capabilities=closed([], drop={"type": "array", "items": TEXT}),
    ),
)
POD = closed(
    ["spec"],
    metadata={"type": "object"},
    spec=closed(
        ["containers"],
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        volumes={
            "type": "array",
            "items": closed(
                ["name"],
                name=TEXT,
                persistentVolumeClaim=closed(["claimName"], claimName=TEXT, readOnly=FLAG),
            ),
        },
        securityContext=closed([], runAsNonRoot=FLAG, runAsUser=NUMBER, fsGroup=NUMBER),
    ),
)
RAY_SERVICE = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=closed(["name"], name={"type": "string", "maxLength": 47}),
    spec=closed(
        ["serveConfigV2", "rayClusterConfig"],
        serveConfigV2=TEXT,
        rayClusterConfig=closed(
            ["headGroupSpec"],
            rayVersion=TEXT,
            enableInTreeAutoscaling=FLAG,
            headGroupSpec=closed(["rayStartParams", "template"], rayStartParams=TEXTS, template=POD),
            workerGroupSpecs={
                "type": "array",
                "items": closed(
                    ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                    groupName=TEXT,
                    replicas=NUMBER,
                    minReplicas=NUMBER,
                    maxReplicas=NUMBER,
                    rayStartParams=TEXTS,
                    template=POD,
                ),
            },
        ),
    ),
)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_ray_service_carries_a_serve_config(gpu: bool) -> None:
    pytest.importorskip("ray")
    from ray.serve.schema import ServeDeploySchema

    config = serve_config(ServeSettings(source=Path("/models")), Deployed(1, 4, 2, gpu), "0.0.0.0", 8000)
    service = ray_service(config, "image:tag", Deployed(1, 4, 2, gpu), "claim")
    jsonschema.validate(service, RAY_SERVICE)
    inner = yaml.safe_load(service["spec"]["serveConfigV2"])
    assert inner == config
    told = ServeDeploySchema.model_validate(inner)
    (deployment,) = told.applications[0].deployments
    assert told.applications[0].import_path == "partgcd.serving.deployment:application"
    assert deployment.max_queued_requests > 0 and told.http_options.request_timeout_s
    assert deployment.ray_actor_options.num_gpus == (1 if gpu else 0)  # type: ignore[union-attr]
    workers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    (container,) = workers["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) is gpu
    modes = {each["name"]: each.get("value") for each in container["env"]}
    assert modes["RAY_AUTH_MODE"] == "token" and modes["PARTGCD_API_KEY"] is None


def test_a_field_that_kuberay_does_not_know_is_seen() -> None:
    service = generated()["rayservice.yaml"]
    service["spec"]["rayClusterConfig"]["headGroupSpecs"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(service, RAY_SERVICE)


KNOWN = {
    "ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
}  # fmt: skip


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


DOCKERFILE = instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))


def test_the_dockerfile_has_both_targets_and_copies_what_is_there() -> None:
    assert {name for name, _ in DOCKERFILE} <= KNOWN and DOCKERFILE[0][0] == "ARG"
    stages: list[str] = []
    arguments = {rest.partition("=")[0] for name, rest in DOCKERFILE if name == "ARG"}
    for name, rest in DOCKERFILE:
        for variable in re.findall(r"\$\{(\w+)\}", rest) if name == "FROM" else []:
            assert variable in arguments
        if name == "FROM":
            stages.append(rest.split()[-1])
        if name == "COPY":
            *sources, target = [word for word in rest.split() if not word.startswith("--")]
            origin = re.search(r"--from=(\w+)", rest)
            assert target
            if origin is not None:
                assert origin[1] in stages
                continue
            for each in sources:
                assert (ROOT / each).exists(), each
    assert stages == ["wheel", "cpu", "gpu"]


def test_the_image_holds_every_package_of_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {
        word for name, rest in DOCKERFILE if name == "COPY" and "--from" not in rest for word in rest.split()
    }
    folders = set(settings["tool"]["setuptools"]["package-dir"].values())
    assert folders | {settings["project"]["readme"], "LICENSE", "pyproject.toml"} <= copied
    extras = set(settings["project"]["optional-dependencies"])
    assert {"cpu", "gpu"} <= extras


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_the_image_serves_without_root(stage: str) -> None:
    import json

    import typer

    from partgcd.cli.main import app

    begun = [
        place
        for place, (name, rest) in enumerate(DOCKERFILE)
        if name == "FROM" and rest.endswith(f" {stage}")
    ]
    stages = [place for place, (name, _) in enumerate(DOCKERFILE) if name == "FROM" and place > begun[0]]
    own = DOCKERFILE[begun[0] : stages[0] if stages else None]
    told = dict(own)
    assert told["USER"] == "partgcd"
    assert any(f"[{stage}]" in rest for name, rest in own if name == "RUN")
    assert json.loads(told["ENTRYPOINT"]) == ["partgcd"]
    words = json.loads(told["CMD"])
    command: Any = typer.main.get_command(app)
    command.commands[words[0]].make_context(words[0], words[1:])
    health = shlex.split(told["HEALTHCHECK"].partition("CMD")[2])
    assert "/readyz" in "".join(health)
