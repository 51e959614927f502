"""Generalized category discovery with part knowledge: images in, categories out, and they keep their names."""

__version__ = "0.1.0"
