"""The `kubernetes` backend: the port over a cluster's API server, with nothing installed in the sandbox.

The registry makes one for each configured cluster. Its verbs are in the modules that it inherits from, one on top of
the other: `connection` (clients and the watch), `creation` (objects), `placement` (the scheduler), `status` (status and
end), `streams` (exec, attach, logs), `observe` (observation), `files` (tar), `port_forward` (ports).

A command is not held back: a pod runs when its node is ready. A shell in the pod that waits for a word from dibs would
be an agent in the user's image, and images without a shell could not be run at all. So the pod is held before it is
scheduled (a scheduling gate) until its handle is in the ledger; the look into the container comes right after the
start, as with the engines, and a difference ends it.
"""

from __future__ import annotations

from dibs.backends.kubernetes.port_forward import Forwarding


class KubernetesBackend(Forwarding):
    """See `dibs.backends.port.Backend` and `Scheduler`."""
