"""The one place where a request becomes Kubernetes objects: a Pod, or a Sandbox or BatchSandbox around one.

Pure: a `SandboxSpec`, what the cluster offers and the options of this backend in; objects, the form that was chosen and
why out; or every problem at once. A simple count becomes the extended resource where the cluster has one, everything
else a ResourceClaimTemplate, and never both for the same devices. Nothing that cannot be expressed is left out quietly.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dibs.errors import InvalidRequest, Problem
from dibs.kube.base_template import BaseTemplate
from dibs.kube.client import PODS, Resource
from dibs.kube.inventory import ClusterInventory
from dibs.patterns import lazy_pattern
from dibs.quantity import Quantity
from dibs.request.claim import CLASS_ANY, CLASS_OF, CLASS_OR_PART, claim_of
from dibs.request.model import ALL, GpuSelector, Request, VolumeSpec
from dibs.request.pod_options import PodOptions
from dibs.request.spec import SandboxSpec

CONTAINER = "main"
CLAIM = "devices"
_MANAGED = {"app.kubernetes.io/managed-by": "dibs"}
_EXTENDED = {
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "intel": ("gpu.intel.com/xe", "gpu.intel.com/i915"),
}
_MIG_CLASS = "mig.nvidia.com"
_LABEL = lazy_pattern(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_NAME = lazy_pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_NUMERIC_USER = lazy_pattern(r"([0-9]+)(?::([0-9]+))?", re.ASCII)

Form = Literal["none", "extended resource", "claim"]
Kind = Literal["Pod", "Sandbox", "BatchSandbox"]
# In all their versions that are known here, the preferred first; what dibs says is the same in each.
KINDS: Mapping[Kind, tuple[Resource, ...]] = {
    "Pod": (PODS,),
    "Sandbox": tuple(
        Resource(f"agents.x-k8s.io/{version}", "sandboxes", "Sandbox") for version in ("v1beta1", "v1alpha1")
    ),
    "BatchSandbox": (Resource("sandbox.opensandbox.io/v1alpha1", "batchsandboxes", "BatchSandbox"),),
}
_TEMPLATES = {"Sandbox": "podTemplate", "BatchSandbox": "template"}
SANDBOX = "dibs.dev/sandbox"  # label: the sandbox's id
LABELS = "dibs.dev/labels"  # annotation: the labels of the request that are none to Kubernetes, as JSON
TTL = "dibs.dev/ttl"  # annotation: seconds from the start of the command, where dibs keeps it and not the kubelet
GATE = "dibs.dev/start"  # scheduling gate: the pod is created, and nothing may happen yet
RELEASED = "dibs.dev/released"  # annotation of what a controller makes pods of: the uid of the one pod that may run
VOLUME = "dibs-volume-"  # what the pod calls a named volume, with its number
_SIZE = 1 << 30  # of a volume that is created without a size, as OpenSandbox's server makes it
_CLAIM_NAME = lazy_pattern(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
FINALIZER = "dibs.dev/exit"  # keeps an ended pod until its exit was read


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster has to offer, as far as the form of a request depends on it."""

    extended: frozenset[str] = frozenset()  # resources that some node has, or that a DeviceClass serves
    classes: tuple[str, ...] = ()
    has_dra: bool = True

    @classmethod
    def of(cls, inventory: ClusterInventory) -> Offers:
        offered = {
            name for node in inventory.nodes for name, amount in node.status.allocatable.items() if amount != "0"
        }
        offered |= {one.spec.extended_resource_name for one in inventory.classes if one.spec.extended_resource_name}
        return cls(
            extended=frozenset(offered),
            classes=tuple(one.metadata.name for one in inventory.classes),
            has_dra=inventory.version.has_dra,
        )


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one sandbox. The template is created before its workload, which then owns it."""

    workload: dict[str, Any]
    template: dict[str, Any] | None = None
    form: Form = "none"
    why: str = ""


def is_claim_name(name: str) -> bool:
    return _CLAIM_NAME.fullmatch(name) is not None


def volume_claim(volume: VolumeSpec) -> dict[str, Any]:
    """The PersistentVolumeClaim of a named volume that is to be created. Nothing owns it: it outlives its sandboxes."""
    size = str(Quantity((volume.size_bytes or _SIZE) * 10**9, binary=True))
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume.name, "labels": dict(_MANAGED)},
        "spec": {
            "accessModes": list(volume.access_modes) or ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **({"storageClassName": volume.storage_class} if volume.storage_class else {}),
        },
    }


def volume_mounts(volumes: Sequence[VolumeSpec]) -> list[tuple[str, VolumeSpec]]:
    """Each volume with what its pod calls the claim; two folders of one claim are one volume of the pod."""
    claims = list(dict.fromkeys(one.name for one in volumes))
    return [(f"{VOLUME}{claims.index(one.name)}", one) for one in volumes]


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How dibs finds a workload again, and holds it: without them it is a plain object that runs at once."""

    sandbox: str
    ttl_seconds: float | None = None  # kept by dibs, because it may be renewed; `spec.ttl_seconds` is the kubelet's


def render(
    spec: SandboxSpec,
    name: str,
    offers: Offers,
    options: PodOptions,
    kind: Resource = PODS,
    *,
    marks: Marks | None = None,
    base: BaseTemplate | None = None,
) -> Rendered:
    """The objects for a sandbox of this name, of one of `KINDS`; or InvalidRequest with everything that is wrong."""
    problems: list[Problem] = []
    _check(spec, name, options, problems)
    form, why, resources = _choose(spec.resources, offers, options, problems)
    claim = _claim(spec.resources, name, offers, problems) if form == "claim" else None
    if problems:
        raise InvalidRequest(problems)
    template = None
    if claim is not None:
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"{name}-{CLAIM}", "labels": dict(_MANAGED)},
            "spec": {"spec": claim},
        }
    odd = {key: value for key, value in spec.labels.items() if not _is_label(key, value)}
    labels = {key: value for key, value in spec.labels.items() if key not in odd}
    metadata: dict[str, Any] = {"labels": {**labels, **options.labels, **_MANAGED}}
    if options.annotations or odd:
        noted = {LABELS: msgspec.json.encode(odd).decode()} if odd else {}
        metadata["annotations"] = {**options.annotations, **noted}
    pod = _pod(spec, options, resources, f"{name}-{CLAIM}" if claim is not None else "")
    if marks is not None:
        _mark(metadata, pod, template, marks)
    if base is not None:
        merged = base.merged({"metadata": metadata, "spec": pod}, CONTAINER)
        metadata, pod = merged["metadata"], merged["spec"]
    return Rendered(workload=_workload(kind, name, metadata, pod), template=template, form=form, why=why)


def _is_label(key: str, value: str) -> bool:
    prefix, _, name = key.rpartition("/")
    fits = _LABEL.fullmatch(value) is not None and name != "" and _LABEL.fullmatch(name) is not None
    return fits and (not prefix or _CLAIM_NAME.fullmatch(prefix) is not None)


def _mark(metadata: dict[str, Any], pod: dict[str, Any], template: dict[str, Any] | None, marks: Marks) -> None:
    metadata["labels"][SANDBOX] = marks.sandbox
    if template is not None:
        template["metadata"]["labels"][SANDBOX] = marks.sandbox
    if marks.ttl_seconds is not None:
        metadata.setdefault("annotations", {})[TTL] = f"{marks.ttl_seconds:g}"
    pod["schedulingGates"] = [{"name": GATE}]
    # The command is not process 1, for which SIGTERM and SIGINT do nothing unless it handles them.
    pod["shareProcessNamespace"] = True


def owner_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """A reference to the owner of a template, so that it goes when the workload does."""
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
        "uid": workload["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _workload(made: Resource, name: str, metadata: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    marked = SANDBOX in metadata["labels"]
    if made == PODS:
        kept = {"finalizers": [FINALIZER]} if marked else {}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata, **kept}, "spec": pod}
    spec: dict[str, Any] = {_TEMPLATES[made.kind]: {"metadata": metadata, "spec": pod}}
    if made.kind == "BatchSandbox":
        spec["replicas"] = 1
    labels = {**_MANAGED, **({SANDBOX: metadata["labels"][SANDBOX]} if marked else {})}
    return {"apiVersion": made.api, "kind": made.kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


# -- devices


def _choose(
    request: Request, offers: Offers, options: PodOptions, problems: list[Problem]
) -> tuple[Form, str, dict[str, str]]:
    """Extended resource or claim: which, why, and the resource's name and count."""
    if any(selector.count == ALL for selector in request.gpus):
        problems.append(
            Problem("COUNT_NEEDED", "gpu", "all", "a count is needed: a cluster has no `all`", "say how many: --gpu 2")
        )
        return "none", "", {}
    if request.devices:
        problems.append(
            Problem(
                "EXACT_DEVICE_ON_CLUSTER",
                "device",
                ", ".join(request.devices),
                "exact devices are named by a host; on a cluster the scheduler chooses",
                "ask by model, memory or --where instead",
            )
        )
        return "none", "", {}
    if not request.wants_devices:
        return "none", "no devices are asked for", {}
    counts, obstacle = _as_extended(request, offers)
    if options.devices == "extended" and obstacle:
        problems.append(
            Problem("EXTENDED_RESOURCE_CANNOT", "devices", "extended", obstacle, "use devices: claim, or auto")
        )
        return "none", "", {}
    if not obstacle and options.devices != "claim":
        names = ", ".join(f"{count} {name}" for name, count in counts.items())
        return "extended resource", f"a plain count, and the cluster offers {names.partition(' ')[2]}", counts
    if not offers.has_dra:
        problems.append(
            Problem("CLUSTER_TOO_OLD", "gpu", "", f"{obstacle or 'a claim was asked for'}; the cluster has no claims")
        )
        return "none", "", {}
    return "claim", obstacle or "a claim was asked for", {}


def _as_extended(request: Request, offers: Offers) -> tuple[dict[str, str], str]:
    """The request as extended resources; or why it cannot be one."""
    if request.claim is not None:
        return {}, "it is a claim"
    if request.where:
        return {}, "an extended resource cannot say --where"
    counts: dict[str, int] = {}
    for selector in request.gpus:
        if selector.models or selector.memory is not None:
            return {}, "an extended resource cannot say model or memory"
        names = _names_of(selector)
        found = [name for name in names if name in offers.extended]
        if not found:
            return {}, f"no node offers {' or '.join(names)}"
        if len(found) > 1 and selector.vendor is None:
            return {}, f"the cluster offers {' and '.join(found)}, and no vendor is named"
        counts[found[0]] = counts.get(found[0], 0) + int(selector.count)
    return {name: str(count) for name, count in counts.items()}, ""


def _names_of(selector: GpuSelector) -> tuple[str, ...]:
    if selector.profile:
        return (f"nvidia.com/mig-{selector.profile}",)
    if selector.vendor is not None:
        return _EXTENDED.get(selector.vendor, (f"{selector.vendor}.com/gpu",))
    return tuple(name for names in _EXTENDED.values() for name in names)


def _claim(request: Request, name: str, offers: Offers, problems: list[Problem]) -> dict[str, Any] | None:
    """The spec of the claim, with classes that the cluster has."""
    claim = claim_of(request, name)
    assert claim is not None
    spec: dict[str, Any] = claim["spec"]
    if request.claim is not None:
        for one in spec.get("devices", {}).get("requests", ()):
            parts = one.get("firstAvailable") or [one.get("exactly") or {}]
            for part in parts:
                wanted = part.get("deviceClassName", "")
                if wanted not in offers.classes:
                    problems.append(_no_class(wanted, offers))
        return spec
    requests = []
    for one in spec["devices"]["requests"]:
        exactly = one["exactly"]
        found = _classes_for(exactly["deviceClassName"], offers)
        if not found:
            problems.append(_no_class(exactly["deviceClassName"], offers))
        elif len(found) == 1:
            requests.append({"name": one["name"], "exactly": {**exactly, "deviceClassName": found[0]}})
        else:
            rest = {key: value for key, value in exactly.items() if key != "deviceClassName"}
            alternatives = [
                {"name": f"from-{index}", "deviceClassName": chosen, **rest} for index, chosen in enumerate(found)
            ]
            requests.append({"name": one["name"], "firstAvailable": alternatives})
    return {"devices": {"requests": requests}}


def _classes_for(wanted: str, offers: Offers) -> list[str]:
    """The classes of the cluster that stand for one of ours, in order of preference."""
    if wanted in offers.classes:
        return [wanted]
    if wanted == CLASS_ANY:
        return [name for name in CLASS_OF.values() if name in offers.classes]
    if wanted == CLASS_OR_PART:
        return [name for name in (_MIG_CLASS, *CLASS_OF.values()) if name in offers.classes]
    return []


def _no_class(wanted: str, offers: Offers) -> Problem:
    listed = ", ".join(offers.classes) or "none"
    return Problem(
        "CLASS_MISSING",
        "gpu",
        wanted,
        "the cluster has no such DeviceClass, and none that stands for it",
        f"install the DRA driver, or name one of its classes in a claim: {listed}",
    )


# -- the pod


def _pod(spec: SandboxSpec, options: PodOptions, devices: dict[str, str], template: str) -> dict[str, Any]:
    limits: dict[str, str] = {}
    if spec.resources.cpu_millis is not None:
        limits["cpu"] = f"{spec.resources.cpu_millis}m"
    if spec.resources.memory_bytes is not None:
        limits["memory"] = str(Quantity(spec.resources.memory_bytes * 10**9, binary=True))
    limits.update(devices)
    resources: dict[str, Any] = {"limits": limits, "requests": dict(limits)} if limits else {}
    if template:
        resources["claims"] = [{"name": CLAIM}]
    container: dict[str, Any] = {"name": CONTAINER, "image": spec.image, **_command(spec)}
    if spec.env:
        container["env"] = [{"name": key, "value": value} for key, value in spec.env.items()]
    if spec.workdir:
        container["workingDir"] = spec.workdir
    if resources:
        container["resources"] = resources
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **({"readOnlyRootFilesystem": True} if spec.read_only else {}),
    }
    if spec.tty:
        container["tty"] = container["stdin"] = True
    if spec.interactive:
        container["stdin"] = container["stdinOnce"] = True
    pod: dict[str, Any] = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(spec.grace_seconds),
        "securityContext": _security(spec, options),
    }
    if spec.ttl_seconds is not None:
        pod["activeDeadlineSeconds"] = math.ceil(spec.ttl_seconds)
    mounts: list[dict[str, Any]] = []
    volumes: dict[str, dict[str, Any]] = {}
    if spec.shm_bytes is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - in the pod
        size = str(Quantity(spec.shm_bytes * 10**9, binary=True))
        volumes["shm"] = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    for name, one in volume_mounts(spec.volumes):
        volumes[name] = {"name": name, "persistentVolumeClaim": {"claimName": one.name}}
        mounts.append(
            {
                "name": name,
                "mountPath": posixpath.normpath(one.target),
                **({"subPath": one.sub_path} if one.sub_path else {}),
                **({} if one.writable else {"readOnly": True}),
            }
        )
    if mounts:
        container["volumeMounts"] = mounts
        pod["volumes"] = list(volumes.values())
    if template:
        pod["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    return {**pod, **_placement(spec, options)}


def _placement(spec: SandboxSpec, options: PodOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    selector = dict(options.node_selector)
    if spec.platform:
        system, _, machine = spec.platform.partition("/")
        selector["kubernetes.io/os"] = system
        if machine:
            selector["kubernetes.io/arch"] = machine.partition("/")[0]
    if selector:
        found["nodeSelector"] = selector
    if options.tolerations:
        found["tolerations"] = [msgspec.to_builtins(one) for one in options.tolerations]
    if options.affinity is not None:
        found["affinity"] = options.affinity
    named = {
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        "runtimeClassName": options.runtime_class,
    }
    found |= {field: value for field, value in named.items() if value}
    if options.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    return found


def _security(spec: SandboxSpec, options: PodOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user := _NUMERIC_USER.fullmatch(spec.user):
        found["runAsUser"] = int(user[1])
        if user[2]:
            found["runAsGroup"] = int(user[2])
    if options.run_as_non_root:
        found["runAsNonRoot"] = True
    return found


def _command(spec: SandboxSpec) -> dict[str, Any]:
    """Kubernetes' `command` replaces the entry point, its `args` what follows it."""
    if spec.entrypoint is None:
        return {"args": list(spec.command)} if spec.command else {}
    if not spec.entrypoint:
        return {"command": list(spec.command)} if spec.command else {}
    return {"command": list(spec.entrypoint), **({"args": list(spec.command)} if spec.command else {})}


def _check(spec: SandboxSpec, name: str, options: PodOptions, problems: list[Problem]) -> None:
    """What a pod cannot be, each by name."""

    def refuse(field: str, value: object, reason: str, remedy: str) -> None:
        problems.append(Problem("UNSUPPORTED_ON_KUBERNETES", field, str(value), reason, remedy))

    if not _NAME.fullmatch(name) or len(name) > 50:
        refuse("name", name, "not a name for a pod", "use up to 50 lower-case letters, digits and dashes")
    if not spec.image:
        refuse("image", "", "a pod needs an image", "add --image")
    if spec.root not in ("host", ""):
        refuse("root", spec.root, "a pod has its image as root", "use --image")
    if spec.network in ("host", "none"):
        refuse("network", spec.network, "a pod has the network of its cluster", "use private, or leave it out")
    if spec.publish:
        refuse("publish", spec.publish[0].port, "ports of a pod are not published on a host", "use a Service")
    for mount in spec.mounts:
        refuse("mounts", mount.source, "folders of a host are not on a cluster", "use a volume or an image")
    if spec.resources.pids is not None:
        refuse(
            "pids", spec.resources.pids, "a pod has no limit of its own for processes", "the kubelet has podPidsLimit"
        )
    if spec.resources.allow_busy:
        refuse("allow_busy", "true", "the scheduler does not know who else uses a device", "leave it out")
    if spec.user and not _NUMERIC_USER.fullmatch(spec.user):
        refuse("user", spec.user, "a pod takes numeric ids", "write UID or UID:GID")
    for key, value in {**spec.labels, **options.labels}.items():
        if key in options.labels and not _is_label(key, value):
            refuse("label", f"{key}={value}", "not a label of Kubernetes", "use letters, digits, dots and dashes")
        elif spec.labels.get(key, value) != value:
            said = f"{spec.labels[key]} and {value}"
            refuse("label", said, f"the label {key} is given twice, with different values", "say it once")
        elif key in _MANAGED or key == SANDBOX:
            refuse("label", key, "dibs sets this label", "choose another")
