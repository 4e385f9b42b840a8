"""The HTTP server: `dibs serve`. Loaded by that command alone; nothing below it may import it."""
