"""The Common Expression Language (CEL), checked, bounded and compiled to Python functions."""
