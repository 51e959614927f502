"""A run told as one self-contained page."""
