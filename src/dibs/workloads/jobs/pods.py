"""A pod of a rendered job as the sandbox that stands for it: every field of the pod ends in it, or is refused by name.

`plan` calls it for each replicated job. It looks at nothing and makes nothing: the folders of volumes are only named.
What a host gives anyway (tolerations, the name of a scheduler, open ports) is taken as delivered; what only a cluster
can do is refused with its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dibs.backends.installed import declared
from dibs.errors import InvalidRequest, Problem
from dibs.quantity import Quantity
from dibs.request.model import Request
from dibs.request.parse import VENDOR_KEYS
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.train.accelerators import spec_of
from dibs.train.facts import Facts
from dibs.train.names import COMPLETION_INDEX
from dibs.train.refusals import Refusals
from dibs.workloads.jobs.volumes import Volumes

Json = dict[str, Any]

IMAGE_OPTIONAL: Final = "train.dibs/image"  # on a runtime: "optional" where the host's own files will do as well
_MIG: Final = re.compile(r"nvidia\.com/mig-([0-9]+g\.[0-9]+gb(?:\.me)?)")
_VARIABLE: Final = re.compile(r"\$(\$)?\(([-._A-Za-z0-9]+)\)")
# Of a pod: what is used here, and what a single host with one scheduler gives to everyone.
_POD_USED: Final = frozenset(
    ("containers", "volumes", "resourceClaims", "securityContext", "restartPolicy", "terminationGracePeriodSeconds",
     "hostNetwork")
)  # fmt: skip
_POD_GIVEN: Final = frozenset(
    ("tolerations", "schedulerName", "dnsPolicy", "enableServiceLinks", "automountServiceAccountToken", "subdomain",
     "preemptionPolicy", "setHostnameAsFQDN")
)  # fmt: skip
_CONTAINER_USED: Final = frozenset(
    ("name", "image", "command", "args", "env", "workingDir", "resources", "volumeMounts", "securityContext", "ports")
)
_CONTAINER_GIVEN: Final = frozenset(("imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"))
_SECURITY: Final = frozenset(("runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem"))
_SECURITY_GIVEN: Final = frozenset(("allowPrivilegeEscalation", "fsGroup", "fsGroupChangePolicy", "seccompProfile"))
_MOUNT: Final = frozenset(("name", "mountPath", "readOnly", "recursiveReadOnly"))


class Pod(msgspec.Struct):
    """One pod of a replicated job, with what it takes to say it as a sandbox. `path`: where it stands in the JobSet."""

    name: str
    index: int
    spec: Json
    container: Json
    path: str
    facts: Facts
    volumes: Volumes
    found: Refusals
    image_optional: bool = False

    def refuse(self, field: str, value: object, reason: str, remedy: str) -> None:
        self.found.invalid(f"{self.path}.{field}", value, reason, remedy)

    # -- the parts ----------------------------------------------------------------------------------------------------

    def sandbox(self, backend: str, network: str, workdir: str) -> SandboxSpec:
        """The sandbox; what is wrong is added to `found`."""
        self._check_fields()
        env = self._environment()
        words: Json = {"name": self.name, "backend": backend, "env": env, "command": self._command(env)}
        if self.container.get("command"):
            words["entrypoint"] = []
        image = self.container.get("image", "")
        if image and not (declared(backend).root == "host" and self.image_optional):
            words["image"] = image
        if network:
            words["network"] = network
        if self.container.get("workingDir") or (workdir and "image" not in words):
            words["workdir"] = self.container.get("workingDir") or workdir
        words |= self._resources() | self._security()
        mounts, shm = self._mounts()
        words |= {"mounts": mounts} if mounts else {}
        words |= {"shm": shm} if shm else {}
        if (grace := self.spec.get("terminationGracePeriodSeconds")) is not None:
            words["grace"] = f"{grace}s"
        else:
            words["grace"] = "10s"
        try:
            spec = parse_spec(words)
        except InvalidRequest as error:
            for one in error.problems:
                self.refuse(f"containers[node]: {one.field}", one.value, one.reason, one.remedy)
            return SandboxSpec(name=self.name)
        claim = self._claim(spec.resources)
        if claim is not None:
            resources = msgspec.structs.replace(spec.resources, gpus=(), claim=claim)
            spec = msgspec.structs.replace(spec, resources=resources)
        return spec

    def _check_fields(self) -> None:
        """What only a cluster can do is refused."""
        for field in sorted(set(self.spec) - _POD_USED - _POD_GIVEN):
            if self.spec[field] not in (None, [], {}, "", False):
                remedy = "leave it out, or run the job on a cluster"
                self.refuse(field, self.spec[field], "a job without a cluster cannot give this", remedy)
        for field in sorted(set(self.container) - _CONTAINER_USED - _CONTAINER_GIVEN):
            if self.container[field] not in (None, [], {}, "", False):
                remedy = "leave it out, or run the job on a cluster"
                self.refuse(f"containers[{self.container['name']}].{field}", self.container[field],
                            "a job without a cluster cannot give this", remedy)  # fmt: skip
        for port in self.container.get("ports", []):
            if port.get("hostPort"):
                path = f"containers[{self.container['name']}].ports[{port['containerPort']}].hostPort"
                self.refuse(path, port["hostPort"], "a port of a rank is not opened on the host", "leave it out")
        others = [one["name"] for one in self.spec["containers"] if one is not self.container]
        if others:
            reason = "a rank is one sandbox with one container"
            self.refuse("containers", ", ".join(others), reason, "leave the others out, or run the job on a cluster")

    def _environment(self) -> dict[str, str]:
        env: dict[str, str] = {}
        for one in self.container.get("env", []):
            name = one["name"]
            if "valueFrom" not in one:
                env[name] = _expanded(one.get("value", ""), env)
                continue
            source = one["valueFrom"].get("fieldRef", {}).get("fieldPath", "")
            known = {COMPLETION_INDEX: str(self.index), "metadata.name": self.name}
            if source in known:
                env[name] = known[source]
            else:
                reason = "only a cluster can fill this in"
                self.refuse(
                    f"containers[{self.container['name']}].env[{name}]", one["valueFrom"], reason, "set a value"
                )
        return env

    def _command(self, env: Mapping[str, str]) -> list[str]:
        words = [*self.container.get("command", []), *self.container.get("args", [])]
        return [_expanded(word, env) for word in words]

    def _resources(self) -> Json:
        """Limits, and devices that are asked for as extended resources."""
        found: Json = {}
        said: Json = self.container.get("resources", {})
        limits, requests = said.get("limits", {}), said.get("requests", {})
        selectors: list[str] = []
        path = f"containers[{self.container['name']}].resources"
        for name in sorted({**requests, **limits}):
            amount = limits.get(name, requests.get(name))
            if name in ("cpu", "memory"):
                if name in requests:
                    self._agree(name, requests[name], limits.get(name), path)
                if name in limits:
                    found[name] = amount if isinstance(amount, str) else str(Quantity.parse(amount))
            elif name in VENDOR_KEYS:
                if (count := Quantity.parse(amount)).nanos:
                    found[name] = count.as_integer() if count.is_integer() else str(count)
            elif mig := _MIG.fullmatch(name):
                selectors.append(f"nvidia:{mig[1]}:{Quantity.parse(amount)}")
            else:
                part = "limits" if name in limits else "requests"
                remedy = "leave it out; devices are asked for as nvidia.com/gpu, amd.com/gpu, intel.com/gpu or by claim"
                self.refuse(f"{path}.{part}[{name}]", amount, "this host has no such resource to give", remedy)
        if selectors:
            found["gpu"] = selectors
        return found

    def _agree(self, name: str, asked: Any, limit: Any, path: str) -> None:
        """dibs limits, and reserves no part of cpu or memory: a request must say what the limit says."""
        field = f"{path}.requests[{name}]"
        if limit is None:
            reason = f"there is no limit of {name} beside it; dibs sets limits and reserves nothing without one"
            self.refuse(field, asked, reason, f"say it in resources.limits[{name}], or run the job on a cluster")
        elif Quantity.parse(asked) != Quantity.parse(limit):
            reason = f"the limit of {name} is {limit}: dibs cannot reserve a part and allow the rest"
            self.refuse(field, asked, reason, f"make it the same as resources.limits[{name}], or leave it out")

    def _claim(self, resources: Request) -> Json | None:
        """What its claims ask for, as one claim: the names of requests get the claim's name in front."""
        used = self.container.get("resources", {}).get("claims", [])
        sources = {one["name"]: one for one in self.spec.get("resourceClaims", [])}
        requests: list[Json] = []
        constraints: list[Json] = []
        for reference in used:
            path = f"containers[{self.container['name']}].resources.claims[{reference['name']}]"
            source = sources.get(reference["name"])
            if source is None:
                continue  # refused when the job was rendered
            if source.get("resourceClaimName"):
                reason = "a claim that several ranks share cannot be had without a cluster: a device is one sandbox's"
                self.refuse(path, source["resourceClaimName"], reason, "use a resourceClaimTemplateName")
                continue
            if reference.get("request"):
                reason = "a rank has one container, which gets all that its claims allocate"
                self.refuse(f"{path}.request", reference["request"], reason, "leave the request out")
            spec, _ = spec_of(source, self.facts)
            if spec is None:
                continue  # as above
            devices = spec.get("devices", {})
            prefix = f"{reference['name']}-" if len(used) > 1 else ""
            requests += [{**one, "name": f"{prefix}{one['name']}"} for one in devices.get("requests", [])]
            constraints += [
                {**one, "requests": [f"{prefix}{name}" for name in one["requests"]]} if one.get("requests") else one
                for one in devices.get("constraints", [])
            ]
            if devices.get("config"):
                reason = "the configuration of a device is its driver's, and there is none without a cluster"
                self.refuse(f"{path}.config", devices["config"], reason, "leave it out")
        if not requests:
            return None
        if resources.gpus:
            from dibs.request.claim import claim_of

            both = claim_of(resources, self.name)
            assert both is not None  # it asks for GPUs
            requests += [{**one, "name": f"extended-{one['name']}"} for one in both["spec"]["devices"]["requests"]]
        return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}

    def _security(self) -> Json:
        said: Json = {**self.spec.get("securityContext", {}), **self.container.get("securityContext", {})}
        for field in sorted(set(said) - _SECURITY - _SECURITY_GIVEN):
            if field == "capabilities" and not (said[field] or {}).get("add"):
                continue  # to drop some asks for less
            if field == "privileged" and not said[field]:
                continue
            self.refuse(f"securityContext.{field}", said[field], "a sandbox cannot have this", "leave it out")
        found: Json = {}
        user, group = said.get("runAsUser"), said.get("runAsGroup")
        if user is not None:
            found["user"] = str(user) if group is None else f"{user}:{group}"
        elif group is not None:
            self.refuse("securityContext.runAsGroup", group, "a group needs a user", "set runAsUser as well")
        if said.get("runAsNonRoot") and user in (None, 0):
            self.refuse("securityContext.runAsNonRoot", True, "it would run as root", "set runAsUser")
        if said.get("readOnlyRootFilesystem"):
            found["read_only"] = True
        return found

    def _user(self) -> int | None:
        said = {**self.spec.get("securityContext", {}), **self.container.get("securityContext", {})}
        return said.get("runAsUser")

    def _mounts(self) -> tuple[list[str], str]:
        """Mounts, and the size of /dev/shm where a volume in memory lies there."""
        mounts: list[str] = []
        shm = ""
        sources = {one["name"]: one for one in self.spec.get("volumes", [])}
        for one in self.container.get("volumeMounts", []):
            path = f"containers[{self.container['name']}].volumeMounts[{one['mountPath']}]"
            for field in sorted(set(one) - _MOUNT):
                if one[field] not in (None, "", "None"):
                    self.refuse(f"{path}.{field}", one[field], "a sandbox cannot have this", "leave it out")
            source = sources.get(one["name"])
            if source is None:
                continue  # refused when the job was rendered
            memory = source.get("emptyDir", {}).get("medium") == "Memory" if "emptyDir" in source else False
            if memory and one["mountPath"].rstrip("/") == "/dev/shm":  # noqa: S108 - a path of a pod
                shm = str(source["emptyDir"].get("sizeLimit", "")) or "1Gi"
                continue
            where = f"{self.path}.volumes[{one['name']}]"
            folder = self.volumes.source(self.name, source, self.found, where, self._user())
            if folder is not None:
                writable = "" if one.get("readOnly") or folder.read_only else ":rw"
                mounts.append(f"{folder.path}:{one['mountPath']}{writable}")
        return mounts, shm


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: unknown names stay, `$$(NAME)` is not expanded."""

    def one(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        return env.get(found[2], found[0])

    return _VARIABLE.sub(one, text)


def problems_of(found: Refusals) -> list[Problem]:
    return [one.problem() for one in found]
