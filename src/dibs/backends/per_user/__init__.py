"""The local backend for all users of a host: each sandbox runs as the user who asked for it, never as root."""
