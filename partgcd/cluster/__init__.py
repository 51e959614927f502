"""Algorithms on arrays, without state: clustering, matching, nearest neighbours, metrics."""
