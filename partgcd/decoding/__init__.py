"""Readers of each image format, bounded in time and memory; `data/decode.py` is what everybody else reads images with."""
