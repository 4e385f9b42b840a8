"""What must be known of the place where a TrainJob will run, to say what it means: claims, classes, CRDs.

The caller fills it: from files (`dibs train render`), from a cluster, or from the objects that a gateway keeps.
`None` means that it was not looked up; an empty mapping that there is nothing. The two are never the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]

COSCHEDULING_CRD = "podgroups.scheduling.x-k8s.io"
VOLCANO_CRD = "podgroups.scheduling.volcano.sh"
COMPUTE_DOMAIN_CRD = "computedomains.resource.nvidia.com"


class SshKey(msgspec.Struct, frozen=True):
    """A key pair for MPI's launcher, as text. Never printed in messages."""

    private: str
    public: str


class Facts(msgspec.Struct, frozen=True):
    """`templates`, `claims`: of the job's namespace, by name. `classes`: DeviceClasses by name. `crds`: by full name.

    `claims_enabled`: whether the place takes DRA claims of TrainJobs at all (upstream: a feature gate).
    `ssh_key`: without it the Secret that MPI needs is left to the submitter.
    """

    templates: Mapping[str, Json] | None = None
    claims: Mapping[str, Json] | None = None
    classes: Mapping[str, Json] = {}
    crds: frozenset[str] | None = None
    claims_enabled: bool = True
    ssh_key: SshKey | None = None
    now: str = ""
