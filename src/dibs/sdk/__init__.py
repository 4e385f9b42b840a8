"""dibs from Python: the same services as the command line, sync and async. Import from `dibs`, not from here."""
