"""The fit loop on many workers: Ray Train starts them, watches them and starts them again."""
