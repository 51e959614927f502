"""A model that goes on: a registry of versions, classes that keep their ids, and rediscovery in new photos."""
