"""Rediscovery: new classes in new photos, while those that people use keep their ids."""
