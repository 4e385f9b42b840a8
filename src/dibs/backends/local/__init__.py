"""The embedded backend: bubblewrap on plain Linux, no daemon, no image."""
