"""Where a fit runs and what it leaves on disk."""
