"""The fit loop and what it asks once an epoch: assignments, candidates, metrics."""
