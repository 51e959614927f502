"""What answers: a bundle as it is, or a registry's champion as people want it. Light: imports no torch."""

from __future__ import annotations

from pathlib import Path

from partgcd.export.predictor import Predictor
from partgcd.export.session import Provider
from partgcd.registry.log import fold, read_log
from partgcd.registry.overlay import overlay_of, with_overlay
from partgcd.registry.versions import Registry


def is_registry(path: Path) -> bool:
    """Whether ``path`` is a registry's folder rather than a bundle's."""
    return (path / "registry.json").is_file()


def load_predictor(
    path: Path, threads: int = 0, provider: Provider = "auto", alias: str = "champion"
) -> Predictor:
    """The predictor of a bundle's folder, or of a registry's ``alias`` with its names, merges and splits.

    Raises:
        UserError: neither is there, or the bundle can't be used.
    """
    if not is_registry(path):
        return Predictor.load(path, threads, provider)
    registry = Registry(path)
    predictor = Predictor.load(registry.resolve(alias), threads, provider)
    return with_overlay(predictor, overlay_of(predictor.bundle, fold(read_log(registry.log))))
