"""Whole runs: configuration, run folders, comparisons, results."""
