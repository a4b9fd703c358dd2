"""Measure Holdfast beside its limits and its peers: `python -m benchmarks`."""
