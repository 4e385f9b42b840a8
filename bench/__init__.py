"""Benchmarks. `make bench` runs them all; every figure is a ratio of things measured in the same run."""
