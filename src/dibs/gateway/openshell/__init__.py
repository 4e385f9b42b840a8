"""OpenShell's gRPC service, for its own SDK, unmodified: the same tenants, tokens, ledger and queue as over HTTP.

`gateway.server` starts it where `openshell` is set. Everything below needs grpcio and protobuf, which the extra
`dibs[openshell]` brings; nothing else in dibs loads them.
"""

from __future__ import annotations

import os

# gRPC's handlers of fork(2) would meet the gateway's threads; whatever dibs starts is executed anew and needs none.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
