"""Readers of each image format, bounded in time and memory; everybody else reads images with `data/decode.py`."""
