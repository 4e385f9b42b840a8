"""Sandboxes: their life from request to receipt. The use cases that the command line and the SDK share."""
