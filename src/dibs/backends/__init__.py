"""Backends: where a plan becomes a running workload. They know the port, never each other."""
