"""The user's error lives with the settings, the lowest room; it is named here for its neighbours."""

from partgcd.config.errors import UserError

__all__ = ["UserError"]
