"""What deploy/ holds for rediscovery is read as systemd, Kubernetes and the command line would read it."""

from __future__ import annotations

import configparser
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cronsim import CronSim
from typer.main import get_command

from partgcd.cli.main import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return parsed


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return loaded


def commands() -> dict[str, list[str]]:
    """The rediscover command line of every file."""
    pod = manifest("rediscover-cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    ray = manifest("rediscover-raycronjob.yaml")["spec"]["jobTemplate"]
    return {
        "systemd": shlex.split(unit("partgcd-rediscover.service")["Service"]["ExecStart"]),
        "cronjob": [*pod["containers"][0]["command"], *pod["containers"][0]["args"]],
        "raycronjob": shlex.split(ray["entrypoint"]),
    }


@pytest.mark.parametrize("where", ["systemd", "cronjob", "raycronjob"])
def test_the_command_line_is_one_that_there_is(where: str) -> None:
    program, name, *words = commands()[where]
    assert Path(program).name == "partgcd" and name == "rediscover"
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, words) as context:
        assert context.params["min_new"] == 200 and context.params["every"] is None
        assert context.params["registry"].name == "models" and context.params["new"].name == "inbox"


def test_exit_codes_that_are_no_failure_are_none_for_the_machinery() -> None:
    assert unit("partgcd-rediscover.service")["Service"]["SuccessExitStatus"].split() == ["3", "75"]
    job = manifest("rediscover-cronjob.yaml")["spec"]["jobTemplate"]["spec"]
    rule = job["podFailurePolicy"]["rules"][0]
    assert rule["action"] == "FailJob" and {3, 75} <= set(rule["onExitCodes"]["values"])
    assert rule["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # what a pod failure policy needs


@pytest.mark.parametrize("name", ["rediscover-cronjob.yaml", "rediscover-raycronjob.yaml"])
def test_kubernetes_files_name_kind_and_schedule(name: str) -> None:
    loaded = manifest(name)
    assert (loaded["apiVersion"], loaded["kind"]) in {("batch/v1", "CronJob"), ("ray.io/v1", "RayCronJob")}
    assert next(CronSim(loaded["spec"]["schedule"], datetime(2026, 1, 1, tzinfo=UTC))).hour == 3
    text = (DEPLOY / name).read_text(encoding="utf-8")
    mounted = set(re.findall(r"mountPath: (\S+)", text))
    assert mounted == {"/models", "/inbox"}  # the registry is the one that rayservice.yaml serves
    assert re.findall(r"claimName: (\S+)", text) == ["partgcd-models", "partgcd-inbox"]


def test_one_run_at_a_time_and_missed_ones_do_not_pile_up() -> None:
    assert manifest("rediscover-cronjob.yaml")["spec"]["concurrencyPolicy"] == "Forbid"
    timer = unit("partgcd-rediscover.timer")
    assert timer["Timer"]["Persistent"] == "true" and timer["Install"]["WantedBy"] == "timers.target"
    assert timer["Timer"]["OnCalendar"].endswith("03:00:00")
    assert unit("partgcd-rediscover.service")["Service"]["Type"] == "oneshot"
