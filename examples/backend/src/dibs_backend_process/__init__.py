"""A backend for dibs: child processes, without any isolation. An example, not for use."""
