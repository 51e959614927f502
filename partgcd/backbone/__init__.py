"""Backbones: a frozen trunk, one trainable block, and their weights."""
