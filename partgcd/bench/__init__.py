"""Measured quality: methods x data sets x seeds, results as files."""
