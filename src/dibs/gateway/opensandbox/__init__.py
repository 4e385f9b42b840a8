"""OpenSandbox's lifecycle API, as its own clients use it: `opensandbox`, `osb` and the npm SDK, unmodified.

`app` mounts `route_handlers()`. It speaks OpenSandbox's words at the edge and ours behind
it: `requests` turns a body into our request, `views` our rows into their answers. It decides nothing about devices.
"""

from dibs.gateway.opensandbox.routes import route_handlers

__all__ = ["route_handlers"]
