"""The configuration that Ray Serve starts from: every deployment listed, every limit stated, no secret in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from partgcd.config.errors import UserError
from partgcd.disk.files import write_text
from partgcd.serving.settings import KEY_VARIABLE, ServeSettings

APPLICATION, DEPLOYMENT = "partgcd", "classify"
IMPORT_PATH = "partgcd.serving.deployment:application"

_HEADER = f"""\
# Ray Serve: one deployment that is ingress and model in one.
# Only user_config may change while requests are answered: serve deploy FILE then takes the new model without a
# pause. A registry or link in 'source' is followed by every replica, without any deploy.
# An API key is read from {KEY_VARIABLE} in the replicas' environment, never from here.
"""


@dataclass(frozen=True)
class Deployed:
    """How many replicas there are, and what each may take. ``most`` above ``least`` follows the load."""

    least: int = 1
    most: int = 1
    cpus: int = 1
    gpu: bool = False

    @classmethod
    def from_words(cls, replicas: str, cpus: int, gpu: bool) -> Deployed:
        """From the command line: ``replicas`` is a number or least:most.

        Raises:
            UserError: it is neither.
        """
        match = re.fullmatch(r"([1-9]\d{0,3})(?::([1-9]\d{0,3}))?", replicas)
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if most < least:
            raise UserError(f"--replicas '{replicas}' is neither a number nor least:most, like 1:4")
        return cls(least, most, cpus, gpu)


def serve_config(settings: ServeSettings, deployed: Deployed, host: str, port: int) -> dict[str, Any]:
    """The Serve config, as `serve deploy` takes it."""
    limits = settings.limits
    given = settings.model_copy(
        update={"cpus": deployed.cpus, "provider": "cuda" if deployed.gpu else settings.provider}
    ).model_dump(mode="json", exclude={"api_key", "source", "alias"})
    if settings.collect is not None:
        given["collect"]["folder"] = str(settings.collect.folder.absolute())
    deployment: dict[str, Any] = {
        "name": DEPLOYMENT,
        # The replica itself refuses what its queue does not hold, and says why; these are the net below.
        "max_ongoing_requests": limits.max_queue + 16,
        "max_queued_requests": 2 * limits.max_queue,
        "backpressure_config": {"status_code": 503, "retry_after_s": 1.0},
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 30.0,
        "graceful_shutdown_wait_loop_s": 1.0,
        "graceful_shutdown_timeout_s": limits.request_timeout_s + 5.0,
        "ray_actor_options": {"num_cpus": float(deployed.cpus), "num_gpus": 1.0 if deployed.gpu else 0.0},
        "user_config": {"source": str(settings.source.absolute()), "alias": settings.alias},
    }
    if deployed.most > deployed.least:
        deployment["autoscaling_config"] = {
            "min_replicas": deployed.least,
            "max_replicas": deployed.most,
            # Twice what a replica works on at once: it is busy, and nobody waits long.
            "target_ongoing_requests": 2.0 * (settings.workers or deployed.cpus),
            "upscale_delay_s": 10.0,
            "downscale_delay_s": 300.0,
        }
    else:
        deployment["num_replicas"] = deployed.least
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": host,
            "port": port,
            "request_timeout_s": limits.read_timeout_s + limits.request_timeout_s + 10.0,
        },
        "logging_config": {"encoding": "JSON", "log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {"settings": given},
                "deployments": [deployment],
            }
        ],
    }


def ray_service(config: dict[str, Any], image: str, deployed: Deployed, claim: str) -> dict[str, Any]:
    """KubeRay's RayService (ray.io/v1) that carries ``config``.

    Args:
        image: with this program in it, see deploy/Dockerfile.
        claim: persistent volume claim that holds the registry or bundle, mounted where the config looks for it.
    """
    source = config["applications"][0]["deployments"][0]["user_config"]["source"]
    mount = {"name": "models", "mountPath": source}
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim}}
    # Ray's own port is open inside the cluster: it runs what it is sent, so it asks for a token.
    secret = {"name": "partgcd", "optional": False}
    environment = [
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {**secret, "key": "ray-token"}}},
        {"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": {**secret, "key": "api-key"}}},
    ]

    def pod(name: str, cpus: float, memory: str, gpu: bool) -> dict[str, Any]:
        amounts: dict[str, str] = {"cpu": f"{cpus:g}", "memory": memory}
        if gpu:
            amounts["nvidia.com/gpu"] = "1"
        container = {
            "name": name, "image": image, "env": environment, "volumeMounts": [mount],
            "resources": {"requests": amounts, "limits": amounts},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }  # fmt: skip
        return {
            "spec": {
                "containers": [container], "volumes": [volume],
                "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
            }
        }  # fmt: skip

    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "partgcd"},
        "spec": {
            "serveConfigV2": _text(config),
            "rayClusterConfig": {
                "enableInTreeAutoscaling": deployed.most > deployed.least,
                "headGroupSpec": {
                    # The head schedules and answers HTTP; models live on the workers.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": pod("ray-head", 2, "4Gi", False),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "replicas",
                        "replicas": deployed.least,
                        "minReplicas": deployed.least,
                        "maxReplicas": deployed.most,
                        "rayStartParams": {},
                        "template": pod("ray-worker", deployed.cpus, "4Gi", deployed.gpu),
                    }
                ],
            },
        },
    }


def write_yaml(path: Path, config: dict[str, Any]) -> None:
    """Write a config where `serve deploy` or `kubectl apply` reads it."""
    write_text(path, _HEADER + _text(config))


class _Plain(yaml.SafeDumper):
    """Without references between equal parts, and long texts as people write them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Plain.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, "|" if "\n" in text else None
    ),
)


def _text(config: dict[str, Any]) -> str:
    found: str = yaml.dump(config, Dumper=_Plain, sort_keys=False, width=110)
    return found
