"""From preset, file, ``--set`` and flags to one checked tree, later ones winning."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from partgcd.config.errors import UserError
from partgcd.config.presets import PRESETS
from partgcd.config.tree import Settings


def load_settings(
    preset: str = "default",
    file: Path | None = None,
    assignments: list[str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Resolve the settings of a run.

    Args:
        preset: a name in `PRESETS`.
        file: YAML file shaped like the tree (a run's ``config.yaml`` is one).
        assignments: ``a.b=value`` strings, values in YAML.
        flags: dotted key to value; None means "not given".

    Raises:
        UserError: all problems at once, in one line.
    """
    if preset not in PRESETS:
        raise UserError(f"no preset '{preset}': choose one of {', '.join(PRESETS)}")
    tree: dict[str, Any] = {}
    for key, value in PRESETS[preset].items():
        _put(tree, key, value)
    if file is not None:
        _merge(tree, _read(file))
    for text in assignments or []:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set takes a.b=value, not '{text}'")
        try:
            _put(tree, key.strip(), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise UserError(f"--set {key}: '{value}' is not a YAML value") from error
    for key, value in (flags or {}).items():
        if value is not None:
            _put(tree, key, value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise UserError(_explain(error)) from error


def to_yaml(settings: Settings) -> str:
    """The resolved tree as YAML; `load_settings(file=...)` gives it back unchanged."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)


def flatten(settings: Settings) -> dict[str, object]:
    """Dotted key to plain value, for comparing two trees."""
    return dict(_leaves(settings.model_dump(mode="json")))


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """``key: one != other`` for every setting that differs."""
    left, right = flatten(one), flatten(other)
    return [f"{key}: {left[key]} != {right[key]}" for key in left if left[key] != right[key]]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read(file: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"no settings file '{file}'") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        code = 1 if isinstance(error, OSError) else 2
        raise UserError(
            f"settings file '{file}' can't be read: {str(error).splitlines()[0]}", code
        ) from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"settings file '{file}' holds a {type(loaded).__name__}, not a mapping of sections")
    return loaded


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UserError(f"'{key}' names a section below '{section}', which is a value")
        tree = inner
    tree[leaf] = value


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _known(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield f"{prefix}{name}"
            yield from _known(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"] if part not in ("int", "literal['auto']"))
        if item["type"] == "extra_forbidden":
            close = difflib.get_close_matches(key, list(_known()), n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            line = f"unknown setting '{key}'{hint}"
        else:
            message = item["msg"].removeprefix("Value error, ")
            line = f"{key} = {item['input']!r}: {message}" if key else message
        if line not in lines:
            lines.append(line)
    return "settings: " + "; ".join(lines)
