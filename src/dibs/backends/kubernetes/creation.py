"""Making the objects of a sandbox, and unmaking what was not finished.

`create` makes the workload with a scheduling gate: it exists, and nothing happens to it, until its handle is in the
ledger and `release` takes the gate away. So a crash in between leaves an object that holds nothing, and that `discard`
finds by its name. The claim template comes first, or Kubernetes would look for it in vain and come back to it in its
own time; the workload then becomes its owner, so that both go together. The handle is recorded after that: a template
without an owner belongs to a sandbox that is made again or discarded.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from dibs.backends.kubernetes.connection import unavailable
from dibs.backends.kubernetes.owners import Owners
from dibs.backends.kubernetes.pods import ENDED_BY, SandboxPod, exit_of
from dibs.backends.port import (
    Capability,
    Expectation,
    Forecast,
    Handle,
    MountFact,
    Network,
    Realisation,
    Volume,
    Workload,
)
from dibs.backends.volumes import missing
from dibs.errors import DibsError, InvalidRequest, NoMatch, Problem, Unsupported
from dibs.kube import errors
from dibs.kube.base_template import BaseTemplate, read_template
from dibs.kube.client import PODS, TEMPLATES, VOLUME_CLAIMS
from dibs.kube.inventory import ClusterInventory, read_inventory
from dibs.kube.preflight import Fit, fit
from dibs.kube.render import (
    CLAIM,
    FINALIZER,
    GATE,
    SANDBOX,
    Marks,
    Offers,
    Rendered,
    is_claim_name,
    owner_of,
    render,
    volume_claim,
    volume_mounts,
)
from dibs.kube.verdicts import NodeVerdict
from dibs.request.fields import PASSED
from dibs.request.model import Request, VolumeSpec
from dibs.request.pod_options import read_options
from dibs.request.spec import SandboxSpec

_FRESH = 2.0  # seconds for which what was read of a cluster is good enough to plan with
_UNMAKING = 60.0  # seconds in which a node ends what it runs
_MOST_ANSWERS = 12  # of nodes, that an explanation lists
_MOST_NODES = 6  # that are named with one answer
_TRIES = 5  # to change an object that others change too


class Creation(Owners):
    """Rendering, creating, discarding."""

    holds = False

    _inventory: tuple[float, ClusterInventory] | None = None  # and when it was read
    _empty: tuple[float, ClusterInventory] | None = None
    _fitted: tuple[ClusterInventory, bytes, Fit] | None = None
    _template: BaseTemplate | None = None
    _reading = threading.Lock()

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        if limit == "pids":
            return Capability(
                ok=False, reason="a pod has no limit of its own for processes", remedy="the kubelet has podPidsLimit"
            )
        return Capability(ok=True)

    def can_network(self, network: Network) -> Capability:
        if network == "private":
            return Capability(ok=True)
        return Capability(
            ok=False, reason="a pod has the network of its cluster", remedy="use private, or leave it out"
        )

    def inspect_image(self, image: str) -> None:  # noqa: ARG002 - the node pulls it
        """Read the cluster now: `render` is called while others wait for the ledger."""
        self.inventory_when_empty()

    def check_volumes(self, volumes: Sequence[Volume]) -> list[Problem]:
        found = []
        for volume in volumes:
            if not is_claim_name(volume.name):
                reason = "a PersistentVolumeClaim cannot have this name"
                remedy = "use lower-case letters, digits, - and ."
                found.append(Problem("VOLUME_INVALID", "volumes", volume.name, reason, remedy))
                continue
            claim = self._volume_claim(volume.name)
            if claim is None:
                found += [] if volume.create else [missing(volume)]
            elif claim["metadata"].get("deletionTimestamp"):
                reason = f"the PersistentVolumeClaim in {self.namespace} is being deleted"
                remedy = "wait until it is gone, or name another one"
                found.append(Problem("VOLUME_INVALID", "volumes", volume.name, reason, remedy))
        return found

    def inventory(self, since: float = 0.0) -> ClusterInventory:
        """What the cluster has, read a moment ago and not before `since`; all who ask share it."""
        with self._reading:
            now = time.monotonic()
            if self._inventory is None or self._inventory[0] < max(since, now - _FRESH):
                self._inventory = (now, read_inventory(self.cluster(), version=self.version()))
            return self._inventory[1]

    def inventory_when_empty(self) -> ClusterInventory:
        """The same as if nothing ran: all that is needed to render a request, and to refuse what can never fit."""
        with self._reading:
            now = time.monotonic()
            if self._empty is None or self._empty[0] < now - _FRESH:
                self._empty = (now, read_inventory(self.cluster(), in_use=False, version=self.version()))
            return self._empty[1]

    # -- rendering

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002 - nothing is kept on this host
        self._check(workload)
        rendered = self._rendered(workload, self.inventory_when_empty())
        return Realisation(self.name, _shown(rendered, workload), _expected(workload), _order(rendered))

    def _rendered(self, workload: Workload, inventory: ClusterInventory) -> Rendered:
        if self.settings.template and self._template is None:
            self._template = read_template(self.settings.template)
        rendered = render(
            _spec_of(workload), workload.id, Offers.of(inventory), read_options(workload.options), self.workloads,
            marks=Marks(sandbox=workload.id, ttl_seconds=workload.ttl_seconds if workload.private else None),
            base=self._template,
        )  # fmt: skip
        if self.settings.preflight:
            self._preflight(rendered, workload, inventory)
        return rendered

    def forecast(self, workload: Workload) -> Forecast:
        """The form that was chosen and why, and of each node whether it could take it now."""
        inventory = self.inventory()
        rendered = self._rendered(workload, inventory)
        notes = [f"{rendered.form}: {rendered.why}"] if rendered.form != "none" else []
        if not (inventory.read("nodes") and inventory.read("resourceslices")):
            return Forecast(notes=(*notes, "nodes or resource slices may not be read: the scheduler has to judge"))
        found = self._fit(rendered, inventory)
        if found.ever:  # of a cluster that is not judged beforehand, because it adds nodes
            notes.append("no node that is there now could ever run it; the cluster may add one (preflight = false)")
        notes += _told_nodes(found.nodes)
        near = f"on {found.nearest}: " if found.nearest and found.now else ""
        return Forecast(near + "; ".join(one.text for one in found.now), tuple(notes))

    def _fit(self, rendered: Rendered, inventory: ClusterInventory) -> Fit:
        """Where it could run; found once for the same request on the same inventory."""
        asked = msgspec.json.encode((pod_of(rendered.workload), rendered.template))
        known = self._fitted
        if known is None or known[0] is not inventory or known[1] != asked:
            found = fit(inventory, pod_of(rendered.workload), rendered.template, self.namespace)
            known = self._fitted = (inventory, asked, found)
        return known[2]

    def _preflight(self, rendered: Rendered, workload: Workload, inventory: ClusterInventory) -> None:
        """Raise NoMatch for what no node could run even if nothing else ran."""
        if not (inventory.read("nodes") and inventory.read("resourceslices")):
            return  # not judged; the scheduler says so if it does not fit
        found = self._fit(rendered, inventory)
        if found.ever:
            wanted = workload.delegated
            field, asked = wanted.written() if wanted is not None else ("sandbox", workload.name)
            where = f"on {found.nearest}, which comes nearest: " if found.nearest else ""
            raise NoMatch(
                Problem(f"CLUSTER_{one.code}", field, asked, where + one.text, one.remedy) for one in found.ever
            )

    def _check(self, workload: Workload) -> None:
        if not workload.command or not workload.command[0]:
            raise InvalidRequest("there is no command", field="command", code="COMMAND_INVALID")
        if workload.limits.pids is not None:
            able = self.can_limit("pids")
            raise Unsupported(
                able.reason, field="pids", value=str(workload.limits.pids), code="LIMIT_NOT_ENFORCEABLE",
                remedy=able.remedy,
            )  # fmt: skip
        if workload.devices:
            names = ", ".join(str(device.id) for device in workload.devices)
            raise Unsupported(
                "devices of a host cannot be passed to a cluster", field="device", value=names,
                code="EXACT_DEVICE_ON_CLUSTER", remedy="ask for a number, a model or a claim: the scheduler chooses",
            )  # fmt: skip

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:  # noqa: ARG002
        return realisation  # the node fetches the image

    def outdated(self, realisation: Realisation) -> bool:  # noqa: ARG002
        return False

    # -- creating

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        rendered = msgspec.convert(realisation.order, Rendered)
        self._make_volumes(workload.volumes)
        try:
            if rendered.template is not None:
                self._create_template(rendered.template, workload.id)
            made = self._create(rendered.workload, workload.id)
            if rendered.template is not None:
                owner = {"metadata": {"ownerReferences": [owner_of(made)]}}
                self.cluster().patch(TEMPLATES, rendered.template["metadata"]["name"], owner, self.namespace)
        except errors.Exists:
            self._delete(TEMPLATES, f"{workload.id}-{CLAIM}", workload.id)
            raise  # the workload is another's: nothing else of ours is there
        except DibsError as error:
            try:
                self.discard(Handle(self.name, workload.id, str(folder)))
            except DibsError as second:  # why it could not be made matters more; the delivery discards it once more
                error.add_note(f"and it could not be cleaned up yet: {second}")
            raise
        if not self.owns:
            self.remember(msgspec.convert(made, SandboxPod))
        data = {"namespace": self.namespace, "kind": self.kind, "name": workload.id, "uid": made["metadata"]["uid"]}
        return Handle(self.name, workload.id, str(folder), data=data)

    def _create(self, body: dict[str, Any], sandbox_id: str) -> Any:
        """The workload, made now or found again: its creator may have died before it recorded it."""
        try:
            return self.cluster().create(self.workloads, body, self.namespace)
        except errors.Exists:
            found = self.cluster().get(self.workloads, sandbox_id, dict[str, Any], self.namespace)
            if not _is_ours(found, sandbox_id):
                raise
            return found

    def _make_volumes(self, volumes: Sequence[Volume]) -> None:
        """Those that are to be created. One that was made meanwhile, by whomever, is what was asked for."""
        for volume in volumes:
            if volume.create and self._volume_claim(volume.name) is None:
                with suppress(errors.Exists):
                    self.cluster().create(VOLUME_CLAIMS, volume_claim(_volume_spec(volume)), self.namespace)

    def _volume_claim(self, name: str) -> dict[str, Any] | None:
        try:
            return self.cluster().get(VOLUME_CLAIMS, name, dict[str, Any], self.namespace)
        except errors.Missing:
            return None

    def _create_template(self, body: dict[str, Any], sandbox_id: str) -> None:
        """The template, made now or found again, if it does not go with an earlier workload."""
        name = body["metadata"]["name"]
        for left in reversed(range(_TRIES)):
            try:
                self.cluster().create(TEMPLATES, body, self.namespace)
                return
            except errors.Exists:
                found = self._template_called(name)
                if found is None and left:
                    continue
                if found is None or not left or not _is_ours(found, sandbox_id):
                    raise
                owners = [one.get("uid") for one in found["metadata"].get("ownerReferences", ())]
                if not owners or self._uid(sandbox_id) in owners:
                    return
                self._delete(TEMPLATES, name, sandbox_id)

    def _template_called(self, name: str) -> dict[str, Any] | None:
        try:
            return self.cluster().get(TEMPLATES, name, dict[str, Any], self.namespace)
        except errors.Missing:
            return None

    def _uid(self, sandbox_id: str) -> str:
        try:
            found = self.cluster().get(self.workloads, sandbox_id, dict[str, Any], self.namespace)
        except errors.Missing:
            return ""
        return str(found["metadata"]["uid"])

    def release(self, handle: Handle, pod: SandboxPod) -> None:
        """Take the gate away: from now on the scheduler and the kubelet do what they do. Repeatable."""
        for _ in range(_TRIES):
            if not pod.gated:
                return
            self.commit(handle, pod)
            # Item by item: controllers write into a pod as soon as it is there, and that is no conflict.
            body = {
                "metadata": {"uid": pod.metadata.uid, "finalizers": [FINALIZER]},
                "spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]},
            }
            try:
                self.cluster().patch(PODS, pod.metadata.name, body, self.namespace, kind="strategic-merge")
                return
            except errors.Changed:  # it was made anew
                found = self.pod(handle)
                if found is None:
                    return
                pod = found
        raise unavailable("its pod is changed by others all the time", handle)

    # -- unmaking

    def discard(self, handle: Handle) -> None:
        name = handle.sandbox_id
        pod = self.pod(handle)
        if pod is not None and exit_of(pod) is None and not pod.gated:
            told = self.end(handle, pod, "stopped", 0.0)
            pod = self.wait_for(handle, lambda one: one is None or exit_of(one) is not None, _UNMAKING, told)
            if pod is not None and exit_of(pod) is None:
                raise unavailable(f"node {pod.spec.node_name} has not ended it within a minute", handle, "NODE_SILENT")
        self._remove(handle, pod)
        self._delete(TEMPLATES, f"{name}-{CLAIM}", name)
        self.unfollow(name)

    def _remove(self, handle: Handle, pod: SandboxPod | None) -> None:
        """Delete the objects of a workload that has ended or never began. Repeatable."""
        if self.owns:
            self._delete(self.workloads, handle.sandbox_id, handle.sandbox_id)  # or its controller makes another pod
            self.remove_others(handle)
            self._delete(TEMPLATES, f"{handle.sandbox_id}-{CLAIM}", handle.sandbox_id)
            pod = self.pod(handle)
        for _ in range(_TRIES):
            if pod is None:
                return
            if not pod.metadata.deletion_timestamp or pod.metadata.deletion_grace_period_seconds:
                try:
                    self.cluster().delete(PODS, pod.metadata.name, self.namespace, grace=0)
                except errors.Missing:
                    return
            left = [one for one in pod.metadata.finalizers if one != FINALIZER]
            if left != list(pod.metadata.finalizers):
                body = {"metadata": {"finalizers": left or None, "uid": pod.metadata.uid}}
                with suppress(errors.Missing, errors.Changed):  # gone, or made anew: the next look tells
                    told = self.cluster().patch(PODS, pod.metadata.name, body, self.namespace)["metadata"]
                    if not left and told.get("deletionGracePeriodSeconds") == 0 and not self.owns:
                        return  # nothing has kept it but our own finalizer
            pod = self.pod(handle)
        pod = self.wait_for(handle, lambda one: one is None, _UNMAKING)
        if pod is not None:
            raise unavailable("its pod is still there", handle)

    def _delete(self, resource: Any, name: str, sandbox_id: str) -> None:
        try:
            found = self.cluster().get(resource, name, dict[str, Any], self.namespace)
            if _label_of(found) == sandbox_id:
                self.cluster().delete(resource, name, self.namespace)
        except errors.Missing:
            return

    def end(self, handle: Handle, pod: SandboxPod, reason: str, grace_seconds: float) -> SandboxPod | None:
        """Ask for the end of a pod, and say why. It stays, with its exit, until it is deleted. How it is now, if that
        was told."""
        for _ in range(_TRIES):
            if exit_of(pod) is not None:
                return pod
            try:
                finalizers = list(dict.fromkeys((*pod.metadata.finalizers, FINALIZER)))
                marked: dict[str, Any] = {"annotations": {ENDED_BY: reason}}
                if not pod.metadata.deletion_timestamp:
                    marked["finalizers"] = finalizers  # none can be added to what is being deleted
                if ENDED_BY not in pod.metadata.annotations:
                    self.patch_pod(pod, {"metadata": marked})
                grace = max(0, -int(-grace_seconds // 1))
                told = self.cluster().delete(PODS, pod.metadata.name, self.namespace, grace=grace)
                if self.owns:
                    self._delete(self.workloads, handle.sandbox_id, handle.sandbox_id)
                return msgspec.convert(told, SandboxPod) if told.get("kind") == "Pod" else None
            except errors.Missing:
                return None
            except errors.Changed:
                found = self.pod(handle)
                if found is None:
                    return None
                pod = found
        raise unavailable("its pod is changed by others all the time", handle)


def _told_nodes(verdicts: Sequence[NodeVerdict]) -> list[str]:
    """What is said of the nodes: those of one answer together, those that could take it first."""
    answers: dict[str, list[str]] = {}
    for one in sorted(verdicts, key=lambda one: (not one.fits, len(one.reasons), one.node)):
        said = "; ".join(reason.text for reason in one.reasons) or "could take it now"
        answers.setdefault(said, []).append(one.node)
    told = []
    for said, nodes in list(answers.items())[:_MOST_ANSWERS]:
        more = f" and {len(nodes) - _MOST_NODES} more nodes" if len(nodes) > _MOST_NODES else ""
        told.append(f"{', '.join(nodes[:_MOST_NODES])}{more}: {said}")
    left = sum(len(nodes) for nodes in list(answers.values())[_MOST_ANSWERS:])
    return [*told, f"… and {left} more nodes"] if left else told


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    """The pod in a workload of any kind."""
    if workload["kind"] == "Pod":
        return workload
    spec = workload["spec"]
    found: dict[str, Any] = spec.get("podTemplate") or spec["template"]
    return found


def _is_ours(found: dict[str, Any], sandbox_id: str) -> bool:
    return _label_of(found) == sandbox_id and not found["metadata"].get("deletionTimestamp")


def _label_of(found: dict[str, Any]) -> str:
    return str((found["metadata"].get("labels") or {}).get(SANDBOX, ""))


def _spec_of(workload: Workload) -> SandboxSpec:
    """The workload in the words of a request, for the one place that renders."""
    limits = workload.limits
    resources = workload.delegated or Request()
    passed = {name: getattr(workload, name) for name in PASSED}
    if workload.private:
        passed["ttl_seconds"] = None  # a gateway may renew it, and ends it itself
    return SandboxSpec(
        resources=msgspec.structs.replace(
            resources, cpu_millis=limits.cpu_millis, memory_bytes=limits.memory_bytes, pids=limits.pids
        ),
        command=workload.command,
        name=workload.name,
        env=workload.env,
        workdir=workload.workdir,
        network="private" if workload.network == "host" else workload.network,  # host: none was asked for
        volumes=tuple(map(_volume_spec, workload.volumes)),
        **passed,
    )


def _volume_spec(volume: Volume) -> VolumeSpec:
    return VolumeSpec(
        volume.name, volume.target, volume.sub_path, volume.writable, volume.create, volume.size_bytes,
        volume.storage_class, volume.access_modes,
    )  # fmt: skip


def _order(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(rendered)
    return found


def _shown(rendered: Rendered, workload: Workload) -> dict[str, Any]:
    """What goes into the receipt: the objects, without the values of the environment."""
    found = _order(rendered)
    for container in pod_of(found["workload"])["spec"]["containers"]:
        for one in container.get("env", ()):
            if one["name"] in workload.env:
                one["value"] = "(not kept)"
    return {
        "form": rendered.form, "why": rendered.why, "workload": found["workload"],
        **({"template": found["template"]} if rendered.template is not None else {}),
    }  # fmt: skip


def _expected(workload: Workload) -> Expectation:
    limits = {
        "cpu_millis": workload.limits.cpu_millis, "memory_bytes": workload.limits.memory_bytes,
        "shm_bytes": workload.shm_bytes,
    }  # fmt: skip
    process = {"no_new_privileges": "yes", "seccomp": "filtered", "capabilities": "none"}
    if workload.read_only:
        process["root"] = "ro"
    if workload.user:
        process["user"] = workload.user.partition(":")[0]
    mounted = volume_mounts([_volume_spec(one) for one in workload.volumes])
    return Expectation(
        mounts=tuple(
            sorted(
                MountFact(posixpath.normpath(one.target), "rw" if one.writable else "ro", f"volume {name}")
                for name, one in mounted
            )
        ),
        env=dict(workload.env),
        limits={name: value for name, value in limits.items() if value is not None},
        process=process,
        open=("env",),
    )
