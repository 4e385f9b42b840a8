"""Which resources and device classes are accelerators that want a process each, and how many a pod asks for.

`processes`, `gang` and `pods` ask. What counts is the class of a device, never a name that contains "gpu": so
`nvidia.com/gpumem` is none and `google.com/tpu` is one. What is unknown here is named, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dibs.quantity import Quantity
from dibs.train.facts import Facts
from dibs.train.names import PROCESSES

Json = dict[str, Any]

# Extended resources whose unit is a device (or an exclusive part of one) that a process drives.
_RESOURCES: Final = re.compile(
    r"""nvidia\.com/(gpu|gpu\.shared|mig-[0-9a-z.+-]+)
      | amd\.com/(gpu|[a-z]{3}_nps[0-9])
      | gpu\.intel\.com/(i915|xe) | habana\.ai/gaudi
      | google\.com/tpu | cloud-tpus\.google\.com/.+
      | aws\.amazon\.com/(neuron|neurondevice|neuroncore)
      | huawei\.com/Ascend[0-9A-Za-z-]+ | cambricon\.com/mlu | hygon\.com/dcu | metax-tech\.com/gpu | qualcomm\.com/qaic
    """,
    re.VERBOSE,
)
# Known to be something else: network, interconnect, plumbing.
_NO_RESOURCES: Final = re.compile(
    r"""rdma/.+ | mellanox\.com/.+ | openshift\.io/.+ | vpc\.amazonaws\.com/.+ | networking\.gke\.io.*
      | nvidia\.com/(hostdev|gpumem|gpumem-percentage|gpucores) | intel\.com/(sgx|qat).*
      | smarter-devices/.+ | devices\.kubevirt\.io/.+
    """,
    re.VERBOSE,
)
_CLASSES: Final = frozenset(
    ("gpu", "part", "gpu-or-part", "simulated", "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com",
     "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com", "tpu.google.com", "neuron.aws.com", "gpu.example.com")
)  # fmt: skip
_NO_CLASSES: Final = frozenset(
    ("compute-domain-default-channel.nvidia.com", "compute-domain-daemon.nvidia.com", "imex.nvidia.com",
     "rdma", "nic", "dranet", "dra.net", "mrdma.google.com", "netdev.google.com")
)  # fmt: skip
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")


class Devices(msgspec.Struct):
    """What a container asks for. `unknown`: what could not be judged, with the reason; `sources`: what was counted."""

    count: int = 0
    resources: int = 0
    claimed: dict[str, int] = {}  # by device class, accelerators or not
    sources: list[str] = []
    unknown: list[str] = []

    @property
    def by_claim(self) -> int:
        return self.count - self.resources


def is_extended(resource: str) -> bool:
    return resource not in _PLAIN and not resource.startswith("hugepages-") and "/" in resource


def is_accelerator(resource: str, classes: Mapping[str, Json]) -> bool | None:
    """None: not known here."""
    for one in classes.values():
        if one.get("spec", {}).get("extendedResourceName") == resource:
            return class_is_accelerator(one.get("metadata", {}).get("name", ""), classes)
    if _RESOURCES.fullmatch(resource):
        return True
    return False if _NO_RESOURCES.fullmatch(resource) else None


def class_is_accelerator(name: str, classes: Mapping[str, Json]) -> bool | None:
    """None: not known here."""
    said = classes.get(name, {}).get("metadata", {}).get("labels", {}).get(PROCESSES)
    if said in ("per-device", "none"):
        return bool(said == "per-device")
    if name in _CLASSES:
        return True
    return False if name in _NO_CLASSES else None


def of_container(container: Json, pod: Json, facts: Facts) -> Devices:
    """The devices of one container: its extended resources, and what its claims ask for."""
    found = Devices()
    resources = container.get("resources", {})
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    for name in sorted(amounts):
        if not is_extended(name):
            continue
        judged = is_accelerator(name, facts.classes)
        if judged is None:
            found.unknown.append(f"resource {name}")
        elif judged:
            number = Quantity.parse(amounts[name])
            whole = number.as_integer() if number.is_integer() else 0
            found.count += whole
            found.resources += whole
            if whole:
                found.sources.append(f"{name}={whole}")
    sources = {one.get("name"): one for one in pod.get("resourceClaims", [])}
    for reference in resources.get("claims", []):
        claim = sources.get(reference.get("name"))
        if claim is not None:
            _add_claim(found, claim, reference.get("request", ""), facts)
    return found


def _add_claim(found: Devices, claim: Json, only: str, facts: Facts) -> None:
    name = claim["name"]
    spec, where = spec_of(claim, facts)
    if spec is None:
        found.unknown.append(f"claim {name}: {where}")
        return
    for request in spec.get("devices", {}).get("requests", []):
        if only and request.get("name") != only.partition("/")[0]:
            continue
        options = [request["exactly"]] if "exactly" in request else request.get("firstAvailable", [])
        if "/" in only:
            options = [one for one in options if one.get("name") == only.partition("/")[2]]
        _add_request(found, name, request.get("name", ""), options, facts)


def _add_request(found: Devices, claim: str, request: str, options: list[Json], facts: Facts) -> None:
    """One request of a claim; `options` are alternatives of which one will be allocated."""
    counted: set[int] = set()
    where = f"claim {claim}, request {request}"
    for option in options:
        if option.get("adminAccess"):
            return
        name = option.get("deviceClassName", "")
        judged = class_is_accelerator(name, facts.classes)
        if judged is None:
            found.unknown.append(f"{where}: device class {name}")
            return
        if option.get("allocationMode", "ExactCount") != "ExactCount":
            if judged:
                found.unknown.append(f"{where}: allocationMode {option['allocationMode']} is no number")
                return
            continue
        each = option.get("count", 1)
        if len(options) == 1:
            found.claimed[name] = found.claimed.get(name, 0) + each
        counted.add(each if judged else 0)
    if len(counted) > 1:
        found.unknown.append(f"{where}: firstAvailable has alternatives with {_listed(counted)} devices")
    elif number := next(iter(counted), 0):
        found.count += number
        found.sources.append(f"{where}: {number}")


def spec_of(claim: Json, facts: Facts) -> tuple[Json | None, str]:
    """The claim that a pod's entry leads to, or why it is not known."""
    if template := claim.get("resourceClaimTemplateName"):
        if facts.templates is None or template not in facts.templates:
            return None, f"ResourceClaimTemplate {template} is not known"
        return facts.templates[template].get("spec", {}).get("spec", {}), ""
    name = claim.get("resourceClaimName", "")
    if facts.claims is None or name not in facts.claims:
        return None, f"ResourceClaim {name} is not known"
    return facts.claims[name].get("spec", {}), ""


def _listed(numbers: set[int]) -> str:
    return " and ".join(str(number) for number in sorted(numbers))
