"""``partgcd serve``: a bundle or a registry behind HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from partgcd.serving.settings import ServeSettings


def serve(
    source: Annotated[Path, typer.Argument(help="A bundle, a link to one, or a registry.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen at; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    alias: Annotated[str, typer.Option(help="Alias or version of a registry.")] = "champion",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="PARTGCD_API_KEY",
            show_envvar=True,
            help="Key that everybody has to send, except for health.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="More Host headers to answer to, repeatable; * for all."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origins of other pages that may send, repeatable, like https://photos.example."),
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option(help="Keep incoming images in this folder. Off if not given.", show_default=False),
    ] = None,
    collect_what: Annotated[
        str, typer.Option(help="all, unfamiliar (novel ones), or unsure (those and unsure ones).")
    ] = "all",
    collect_below: Annotated[float, typer.Option(help="Confidence below which an answer is unsure.")] = 0.5,
    collect_rate: Annotated[float, typer.Option(help="Images kept a minute at most.")] = 60.0,
    collect_quota: Annotated[float, typer.Option(help="Size of the folder at most, MB.")] = 1000.0,
    workers: Annotated[int, typer.Option(help="Images worked on at once; 0 is one a CPU.", min=0)] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads an image; 0 shares the CPUs.", min=0)] = 0,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, repeatable: max_body_mb, max_files, max_megapixels, max_queue, ..."),
    ] = None,
    poll: Annotated[float, typer.Option(help="How often to look for a new model, seconds.")] = 1.0,
    engine: Annotated[str, typer.Option(help="embedded, or ray (Ray Serve).")] = "embedded",
    replicas: Annotated[str, typer.Option(help="Of Ray: a number, or least:most to follow the load.")] = "1",
    replica_cpus: Annotated[int, typer.Option(help="Of Ray: CPUs of a replica.", min=1)] = 1,
    gpu: Annotated[bool, typer.Option("--gpu", help="Of Ray: a GPU for each replica.")] = False,
    write_config: Annotated[
        Path | None, typer.Option(help="Of Ray: only write the Serve config here.", show_default=False)
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Answer over HTTP, until SIGTERM or Ctrl-C. The model changes with the bundle's folder or the registry's alias.

    Example: partgcd serve model --port 8000, then curl -F image=@photo.jpg http://127.0.0.1:8000/v1/classify
    """
    from partgcd.config.errors import UserError
    from partgcd.serving.logs import log_as_json

    levels = ("debug", "info", "warning", "error")
    if log_level not in levels:
        raise UserError(f"no log level '{log_level}': use {', '.join(levels)}")
    if engine not in ("embedded", "ray"):
        raise UserError(f"no engine '{engine}': use embedded or ray")
    if write_config is not None and engine != "ray":
        raise UserError("--write-config writes a Ray Serve config: add --engine ray")
    kept = None
    if collect is not None:
        kept = {
            "folder": collect, "what": collect_what, "below": collect_below, "per_minute": collect_rate,
            "quota_mb": collect_quota,
        }  # fmt: skip
    settings = checked({
        "source": source, "alias": alias, "api_key": api_key or None, "collect": kept, "workers": workers,
        "threads": threads, "limits": dict(map(_pair, limit or ())), "poll_s": poll,
        "allow_hosts": _hosts(host, allow_host or []), "allow_origins": tuple(allow_origin or ()),
    })  # fmt: skip
    if engine == "ray":
        from partgcd.serving.ray_config import Deployed, serve_config, write_yaml
        from partgcd.serving.ray_engine import serve_on_ray

        deployed = Deployed.from_words(replicas, replica_cpus, gpu)
        config = serve_config(settings, deployed, host, port)
        if write_config is not None:
            write_yaml(write_config, config)
            typer.echo(f"wrote {write_config}: serve deploy {write_config}")
            return
        serve_on_ray(config, settings, _ready)
        return
    log_as_json(log_level)
    from partgcd.serving.embedded import serve as serve_embedded

    serve_embedded(settings, host, port, _ready)


def checked(values: dict[str, Any]) -> ServeSettings:
    """Settings of a server.

    Raises:
        UserError: one is out of its range. No value is repeated: one of them is secret.
    """
    from pydantic import ValidationError

    from partgcd.config.errors import UserError
    from partgcd.serving.settings import ServeSettings

    try:
        return ServeSettings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'settings'}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_input=False)
        )
        raise UserError(problems) from None


def _pair(word: str) -> tuple[str, str]:
    from partgcd.config.errors import UserError

    name, equals, value = word.partition("=")
    if not equals:
        raise UserError(f"--limit '{word}' is not NAME=VALUE, like max_body_mb=64")
    return name, value


def _hosts(host: str, more: list[str]) -> tuple[str, ...]:
    """Names that are answered to: this machine's, the address listened at unless it stands for all, and more."""
    from partgcd.serving.settings import LOCAL_HOSTS

    own = [] if host in ("", "0.0.0.0", "::") else [host]
    return tuple(dict.fromkeys([*LOCAL_HOSTS, *own, *more]))


def _ready(address: str) -> None:
    typer.echo(f"serving at {address} ({os.getpid()})")
