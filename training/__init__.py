"""The room for the adapter that puts the fit loop on many workers."""
