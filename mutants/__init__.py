"""Mutation testing: small faults in the code that decides, and whether the tests notice. See `__main__`."""
