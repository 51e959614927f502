"""The settings tree and its presets."""
