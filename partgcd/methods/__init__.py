"""One file a method: how it starts, what it asks once an epoch, its loss terms and its heads."""
