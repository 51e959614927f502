from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Partgcd = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--limit", "max_files"), "NAME=VALUE"),
        (("--limit", "max_files=many"), "limits.max_files"),
        (("--limit", "nothing=1"), "limits.nothing"),
        (("--engine", "apache"), "use embedded or ray"),
        (("--log-level", "loud"), "use debug"),
        (("--write-config", "x.yaml"), "add --engine ray"),
        (("--collect", "in", "--collect-what", "some"), "collect.what"),
        (("--engine", "ray", "--replicas", "4:1"), "least:most"),
        (("--engine", "ray", "--replicas", "0"), "least:most"),
        ((), "no bundle in 'model'"),
    ],
)
def test_what_can_not_be_served_is_one_line(partgcd: Partgcd, words: tuple[str, ...], told: str) -> None:
    answer = partgcd("serve", "model", *words)
    assert answer.code == 2 and told in answer.error and answer.out == ""


def test_a_bad_key_is_refused_without_being_shown(partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = partgcd("serve", "model", "--api-key", "abc123")
    assert answer.code == 2 and "at least 8" in answer.error and "abc123" not in answer.err
    monkeypatch.setenv("PARTGCD_API_KEY", "xyz789")
    answer = partgcd("serve", "model")
    assert answer.code == 2 and "at least 8" in answer.error and "xyz789" not in answer.err


def test_a_ray_config_is_written_without_secrets(partgcd: Partgcd, tmp_path: Path) -> None:
    answer = partgcd(
        "serve", "model", "--engine", "ray", "--write-config", "serve.yaml", "--replicas", "1:3", "--replica-cpus",
        "2", "--api-key", "correct horse", "--host", "0.0.0.0", "--allow-host", "photos.example", "--collect", "in",
        "--limit", "max_queue=32", "--port", "8100",
    )  # fmt: skip
    assert answer.code == 0 and "serve deploy serve.yaml" in answer.out
    text = Path("serve.yaml").read_text()
    assert "correct" not in text
    config = yaml.safe_load(text)
    (app,) = config["applications"]
    (deployment,) = app["deployments"]
    assert config["http_options"]["port"] == 8100 and config["http_options"]["host"] == "0.0.0.0"
    assert deployment["user_config"] == {"source": str(tmp_path / "model"), "alias": "champion"}
    assert deployment["autoscaling_config"]["max_replicas"] == 3 and "num_replicas" not in deployment
    told = app["args"]["settings"]
    assert told["allow_hosts"] == ["127.0.0.1", "localhost", "::1", "photos.example"]
    assert told["collect"]["folder"] == str(tmp_path / "in") and told["cpus"] == 2
    assert told["limits"]["max_queue"] == 32
    assert json.dumps(config)  # plain values only


def test_the_embedded_server_gets_what_the_words_say(
    partgcd: Partgcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partgcd.serving import embedded

    seen: list[Any] = []
    monkeypatch.setattr(embedded, "serve", lambda *given: seen.append(given))
    answer = partgcd(
        "serve", "model", "--port", "0", "--host", "192.0.2.1", "--alias", "7", "--api-key", "correct horse",
        "--collect", "in", "--collect-what", "unsure", "--collect-below", "0.3", "--collect-rate", "5",
        "--collect-quota", "9", "--workers", "3", "--threads", "2", "--limit", "max_files=5",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    settings, host, port, ready = seen[0]
    assert (host, port, settings.alias, settings.workers, settings.threads) == ("192.0.2.1", 0, "7", 3, 2)
    assert settings.allow_hosts == ("127.0.0.1", "localhost", "::1", "192.0.2.1")
    assert settings.api_key.get_secret_value() == "correct horse" and settings.limits.max_files == 5
    kept = settings.collect
    assert (kept.what, kept.below, kept.per_minute, kept.quota_mb) == ("unsure", 0.3, 5, 9)
    ready("http://127.0.0.1:1")
