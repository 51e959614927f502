"""The room for the HTTP API in front of an exported bundle."""
