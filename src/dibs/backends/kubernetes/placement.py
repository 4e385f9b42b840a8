"""What the scheduler and the node say of a sandbox: why it waits, or where it is and which devices it has.

The delivery asks `placement` again and again, and wakes up by `await_change` when the pod has changed. A sandbox counts
as bound when its container has started: only then all is known, the node, the devices of its claims, and those that a
device plugin has given. Until then the words of the scheduler, the kubelet or the DRA driver are told verbatim, with
dibs' own explanation beside them.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from dibs.backends.kubernetes.connection import unavailable
from dibs.backends.kubernetes.creation import Creation
from dibs.backends.kubernetes.pods import (
    SandboxPod,
    exit_of,
    hopeless,
    is_starting,
    seconds,
    start_failure,
    status_of,
    waits_for,
)
from dibs.backends.port import Handle, NodeFact, Phase, PlacedDevice, Placement
from dibs.devices.model import ClaimAttachment, ExtendedResourceAttachment
from dibs.errors import CommandFailed, Conflict, DibsError, NotFound, Timeout
from dibs.kube import errors
from dibs.kube.client import CLAIMS, EVENTS, SLICES
from dibs.kube.objects import Event
from dibs.kube.pending import explain_pod
from dibs.settings import ClusterSettings

_EXPLAINED = 5.0  # seconds for which an explanation is not made anew while the scheduler says the same
_PATIENT = 1.5  # seconds in which a sandbox that waits is not explained: the scheduler's own words will do
_NAMED_WITHIN = 5.0  # seconds in which a kubelet tells which devices its plugins have given
_WARNINGS = 2


_Pools = dict[tuple[str, str], dict[str, dict[str, object]]]  # by driver and pool: what is known of each device


class _Told(msgspec.Struct):
    """What was last said of a pending sandbox."""

    words: str
    at: float  # when it was explained
    reason: str
    since: float  # when it was first asked about


class Placing(Creation):
    """See `Scheduler` in the port."""

    def __init__(self, name: str, settings: ClusterSettings, *, long_lived: bool = False) -> None:
        super().__init__(name, settings, long_lived=long_lived)
        self._told: dict[str, _Told] = {}

    def placement(self, handle: Handle) -> Placement:
        pod = self.seen(handle)
        if pod is None:
            return self._without_pod(handle)
        if pod.gated:
            self.release(handle, pod)
            self.follow(handle.sandbox_id)
            return Placement("pending", "handed to the scheduler")
        never = hopeless(pod)
        if never:
            return Placement("refused", never)
        failure = start_failure(pod)
        if failure is not None:
            raise CommandFailed(failure[0], missing=failure[1], value=handle.sandbox_id)
        if pod.runs or pod.terminated is not None:
            return self._bound(pod)
        if pod.metadata.deletion_timestamp:
            raise NotFound("its pod is being deleted", field="sandbox", value=handle.sandbox_id, code="SANDBOX_GONE")
        return Placement("pending", self._reason(handle, pod))

    def nodes(self, placement: Placement) -> tuple[NodeFact, ...] | None:  # noqa: ARG002
        """The driver decides which device nodes it adds: they are recorded, and there must be at least one."""
        return None

    def await_change(self, handle: Handle, timeout: float) -> None:
        """Return when the pod has changed, or time is up."""
        known = self.seen(handle)
        version = known.metadata.resource_version if known is not None else ""
        follower = self.follow(handle.sandbox_id)
        if not follower.current and not follower.wait_current(timeout):
            return

        def moved() -> bool:
            found = follower.get(handle.sandbox_id)
            return found is not None and found.metadata.resource_version != version

        follower.wait(moved, timeout)

    def start(self, handle: Handle) -> None:
        """Let it run, and wait until it does."""
        pod = self.pod(handle)
        if pod is None and not self.owns:
            raise NotFound("there is no such pod", field="sandbox", value=handle.sandbox_id)
        phase = status_of(pod).phase if pod is not None else Phase.HELD
        if phase is not Phase.HELD:
            raise Conflict(f"the sandbox is {phase}", code="NOT_HELD", value=handle.sandbox_id)
        until = time.monotonic() + self.patience
        while (found := self.placement(handle)).state == "pending":
            left = until - time.monotonic()
            if left <= 0:
                raise Timeout(
                    f"it does not run after {self.patience:g} s: {found.reason}", field="sandbox",
                    value=handle.sandbox_id, code="WAIT_TIMEOUT",
                )  # fmt: skip
            self.await_change(handle, min(left, 2.0))
        if found.state == "refused":
            raise unavailable(found.reason, handle, "PLACEMENT_REFUSED")

    # -- why it waits

    def _without_pod(self, handle: Handle) -> Placement:
        """A controller has not made its pod yet; or there is nothing left of it."""
        said = self.said_by_owner(handle) if self.owns else None
        if said is not None:
            return Placement("pending", said)
        raise NotFound("the cluster does not have it any more", field="sandbox", value=handle.sandbox_id)

    def _reason(self, handle: Handle, pod: SandboxPod) -> str:
        """The cluster's own words, and beside them what dibs finds. Made anew when the words change, or are old."""
        words, now = waits_for(pod), time.monotonic()
        told = self._told.get(handle.sandbox_id)
        if told is not None and told.words == words and now - told.at < _EXPLAINED:
            return told.reason
        since = now if told is None else told.since
        if now - since < _PATIENT and (is_starting(pod) or not pod.spec.node_name):
            # Most sandboxes run before anything is to be explained: then the API server is not asked for it.
            return self._tell(handle, _Told(words, now - _EXPLAINED, words or "not scheduled yet", since))
        if pod.spec.node_name:
            said = self._warnings(pod)
            reason = "; ".join(part for part in (words, *said) if part)
        else:
            reason = self._explained(pod, words, since=now if told is None or told.words != words else 0.0)
        return self._tell(handle, _Told(words, now, reason, since))

    def _tell(self, handle: Handle, told: _Told) -> str:
        if len(self._told) > 10_000:
            self._told.clear()
        self._told[handle.sandbox_id] = told
        return told.reason

    def _explained(self, pod: SandboxPod, words: str, *, since: float) -> str:
        """`since`: what was read of the cluster before then does not explain these words."""
        try:
            inventory = self.inventory(since)
            found = explain_pod(self.cluster(), self.namespace, pod.metadata.name, inventory)
        except DibsError as error:
            return words or f"not scheduled yet, and why is not known: {error}"
        said = words or next((one.message for one in found.words if one.message), "")
        ours = "; ".join(one.text for one in found.reasons)
        if not said:
            return ours if found.reasons and found.reasons[0].code != "NOTHING_AGAINST_IT" else "not scheduled yet"
        nearest = f" on {found.nearest}" if found.nearest and len(found.nodes) > 1 else ""
        return f"{said} | dibs{nearest}: {ours}" if ours else said

    def _warnings(self, pod: SandboxPod) -> list[str]:
        """What the kubelet or a driver has warned of: image errors, failed preparations, missing volumes."""
        try:
            events = self.cluster().items(
                EVENTS, Event, self.namespace, fields=f"involvedObject.uid={pod.metadata.uid},type=Warning"
            )
        except errors.Forbidden:
            return []  # the pod's own status is told all the same
        events = [one for one in events if one.reason != "FailedScheduling"]
        newest = sorted(events, key=lambda one: one.moment)[-_WARNINGS:]
        return [f"{one.reason}: {one.message}" for one in newest]

    # -- where it is

    def _bound(self, pod: SandboxPod) -> Placement:
        devices = [*self._claimed(pod)]
        missing, unreported = self._plugged(pod, devices)
        if missing:
            return Placement("pending", missing)
        return Placement("bound", "", pod.spec.node_name, tuple(devices), unreported, started=True)

    def _claimed(self, pod: SandboxPod) -> list[PlacedDevice]:
        """The devices of its claims, with what their slices say of them."""
        names = [one.resource_claim_name for one in pod.status.resource_claim_statuses if one.resource_claim_name]
        if pod.status.extended_resource_claim_status is not None:
            names.append(pod.status.extended_resource_claim_status.resource_claim_name)
        found: list[PlacedDevice] = []
        pools: _Pools = {}
        for name in names:
            try:
                claim = self.cluster().get(CLAIMS, name, dict[str, Any], self.namespace)
            except errors.Missing:
                continue  # a pod that has ended gives its claims back
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            for one in results:
                if (one["driver"], one["pool"]) not in pools:
                    pools[one["driver"], one["pool"]] = self._facts(one["driver"], one["pool"], pod.spec.node_name)
            found += [self._device(name, one, pools) for one in results if not one.get("adminAccess")]
        return found

    def _device(self, claim: str, result: dict[str, Any], pools: _Pools) -> PlacedDevice:
        identity = f"{result['driver']}/{result['pool']}/{result['device']}"
        share = result.get("shareID")
        facts = pools[result["driver"], result["pool"]].get(result["device"], {})
        memory = facts.get("memory")
        return PlacedDevice(
            id=f"{identity}#{share}" if share else identity,
            model=str(facts.get("model", "")),
            uuid=str(facts.get("uuid", "")),
            memory=memory if isinstance(memory, int) else None,
            attachment=ClaimAttachment(claim, result["request"]),
        )

    def _facts(self, driver: str, pool: str, node: str) -> dict[str, dict[str, object]]:
        """Model, UUID and memory of the devices of a pool, as its slices have them; nothing where they are hidden.

        They are mostly the node's own; those of a whole cluster are read only where they are not.
        """
        from dibs.quantity import NANO, Quantity

        slices: list[dict[str, Any]] = []
        try:
            for fields in (f"spec.driver={driver},spec.nodeName={node}", f"spec.driver={driver}"):
                listed = self.cluster().items(SLICES, dict[str, Any], fields=fields)
                slices = [one for one in listed if one["spec"]["pool"]["name"] == pool]
                if slices:
                    break
        except errors.Forbidden:
            return {}
        found: dict[str, dict[str, object]] = {}
        for one in slices:
            for device in one["spec"].get("devices", ()):
                attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
                facts: dict[str, object] = {}
                for name, keys in (("model", ("model", "productName")), ("uuid", ("uuid",))):
                    values = [_plain(attributes, key, driver) for key in keys]
                    facts[name] = next((value for value in values if value), "")
                memory = (capacity.get("memory") or capacity.get(f"{driver}/memory") or {}).get("value")
                if memory is not None:
                    facts["memory"] = Quantity.parse(str(memory)).nanos // NANO
                found[device["name"]] = facts
        return found

    def _plugged(self, pod: SandboxPod, devices: list[PlacedDevice]) -> tuple[str, tuple[str, ...]]:
        """Add the devices that a plugin has given for an extended resource. Why they are not known yet, if so; and for
        each that the kubelet does not name, its resource."""
        if pod.status.extended_resource_claim_status is not None:
            return "", ()  # a claim stands for them
        limits = pod.main.resources.get("limits") or {}
        wanted = {name: int(amount) for name, amount in limits.items() if "/" in name}
        unreported: list[str] = []
        container = pod.container
        told = {one.name: one.resources for one in container.allocated_resources_status} if container else {}
        for name, count in wanted.items():
            ids = [one.resource_id for one in told.get(name, ())]
            if len(ids) < count:
                running = container.state.running if container is not None else None
                if running is not None and time.time() - seconds(running.started_at) < _NAMED_WITHIN:
                    return f"the kubelet has not said yet which {name} it has given", ()
                unreported += [name] * (count - len(ids))  # a kubelet without ResourceHealthStatus never says it
            attachment = ExtendedResourceAttachment(name)
            devices += [PlacedDevice(f"{pod.spec.node_name}/{name}/{one}", attachment=attachment) for one in ids]
        return "", tuple(unreported)


def _plain(attributes: dict[str, Any], name: str, driver: str) -> str:
    value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return str(value.get("string", ""))


def ended(pod: SandboxPod | None) -> bool:
    return pod is None or exit_of(pod) is not None
