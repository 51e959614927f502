"""Versions of a model, who is who among its classes, and what people changed: all that serving needs, without torch."""
