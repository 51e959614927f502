"""Which methods there are. A new one is a file of its own, a line here, and a test."""

from __future__ import annotations

from partgcd.config.errors import UserError
from partgcd.config.tree import Settings
from partgcd.methods import cms, ema, gcd, kmeans, lego, partgcd, simgcd
from partgcd.methods.method import Method

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD for module in (partgcd, simgcd, gcd, kmeans, lego, ema, cms)
}


def method_of(settings: Settings) -> Method:
    """The method that ``settings`` ask for.

    Raises:
        UserError: there is none of that name.
    """
    name = settings.discovery.method
    if name not in METHODS:
        raise UserError(f"discovery.method: there is no method '{name}': choose from {', '.join(METHODS)}")
    return METHODS[name]
