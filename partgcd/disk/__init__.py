"""Atomic files and locks: the only home of either."""
