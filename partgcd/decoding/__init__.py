"""From an image file of any kind to upright RGB pixels, in bounded time and memory: the one decoder."""
