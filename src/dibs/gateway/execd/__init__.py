"""OpenSandbox's execd, served by the gateway itself: nothing is installed in the sandbox, all goes through exec."""
