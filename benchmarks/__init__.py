"""Measure Stepfast beside its limits and its peers: `python -m benchmarks`."""
