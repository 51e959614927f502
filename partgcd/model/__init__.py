"""Heads, losses, and the module that joins them."""
