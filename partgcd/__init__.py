"""Generalized category discovery with part knowledge: images in, categories out, and they keep their names.

The Python door is `partgcd.api`; its names are here, too, and nothing is loaded before one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partgcd.api import (
        Discoverer,
        SemiSupervisedKMeans,
        estimate_classes,
        export,
        load,
        rediscover,
        split_accuracy,
        train,
    )

__version__ = "0.1.0"

__all__ = [
    "Discoverer",
    "SemiSupervisedKMeans",
    "estimate_classes",
    "export",
    "load",
    "rediscover",
    "split_accuracy",
    "train",
]


def __getattr__(name: str) -> Any:
    # Rooms are found as attributes once they are imported; only the names above begin an import here.
    if name in __all__:
        from partgcd import api

        return getattr(api, name)
    raise AttributeError(f"module 'partgcd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
