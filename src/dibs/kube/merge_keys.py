"""Which lists of a Pod, a Job, a Deployment or a JobSet a strategic merge patch merges, and by which key.

`merge` reads it. A list that does not stand here is replaced; an object that does not stand here is merged key by key.
The keys are those of Kubernetes' API (`x-kubernetes-patch-merge-key` in its OpenAPI document); "" means a list of plain
values that is merged as a set. Note what is *not* merged: tolerations, envFrom, command, args, resources.claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Fields(NamedTuple):
    """`merged`: lists and their merge keys. `inside`: what lies below an object, or below the items of a list."""

    merged: Mapping[str, str] = {}
    inside: Mapping[str, Fields] = {}

    def below(self, key: str) -> Fields:
        return self.inside.get(key, PLAIN)


PLAIN: Final = Fields()

METADATA: Final = Fields({"ownerReferences": "uid", "finalizers": ""})

CONTAINER: Final = Fields(
    {"ports": "containerPort", "env": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath"}
)

POD_SPEC: Final = Fields(
    {
        "containers": "name",
        "ephemeralContainers": "name",
        "evictionResponders": "name",
        "hostAliases": "ip",
        "imagePullSecrets": "name",
        "initContainers": "name",
        "resourceClaims": "name",
        "schedulingGates": "name",
        "topologySpreadConstraints": "topologyKey",
        "volumes": "name",
    },
    {"containers": CONTAINER, "initContainers": CONTAINER, "ephemeralContainers": CONTAINER},
)

POD_STATUS: Final = Fields(
    {
        "conditions": "type",
        "hostIPs": "ip",
        "podIPs": "ip",
        "resourceClaimStatuses": "name",
        "nodeAllocatableResourceClaimStatuses": "resourceClaimName",
    }
)

POD_TEMPLATE: Final = Fields(inside={"metadata": METADATA, "spec": POD_SPEC})
JOB_SPEC: Final = Fields(inside={"template": POD_TEMPLATE})
JOB_TEMPLATE: Final = Fields(inside={"metadata": METADATA, "spec": JOB_SPEC})
JOBSET_SPEC: Final = Fields({"replicatedJobs": "name"}, {"replicatedJobs": Fields(inside={"template": JOB_TEMPLATE})})

POD: Final = Fields(inside={"metadata": METADATA, "spec": POD_SPEC, "status": POD_STATUS})
JOB: Final = Fields(inside={"metadata": METADATA, "spec": JOB_SPEC, "status": Fields({"conditions": "type"})})
DEPLOYMENT: Final = Fields(
    inside={
        "metadata": METADATA,
        "spec": Fields(inside={"template": POD_TEMPLATE}),
        "status": Fields({"conditions": "type"}),
    }
)
JOBSET_TEMPLATE: Final = Fields(inside={"metadata": METADATA, "spec": JOBSET_SPEC})

KINDS: Final[Mapping[str, Fields]] = {"Pod": POD, "Job": JOB, "Deployment": DEPLOYMENT}
