"""Explain before: what would happen on each backend, with nothing created."""

from __future__ import annotations

import msgspec

from dibs.backends.port import Backend
from dibs.errors import BackendUnavailable, DibsError, InvalidRequest, Problem, Unsupported
from dibs.plan.delivery import TABLE, Outcome, cell
from dibs.plan.explanation import BackendExplanation, Explanation
from dibs.plan.planner import DevicePlan, Refusal, World, plan_devices
from dibs.request.claim import claim_of
from dibs.request.spec import SandboxSpec, family
from dibs.workloads import networks
from dibs.workloads.identity import Identity
from dibs.workloads.registry import ENGINES, Registry

_WRONG = frozenset(("COUNT_NEEDED",))  # not for want of ability: the request itself must say something else
# It may be there again when asked later.
_AWAY = frozenset(("ENGINE_NOT_RUNNING", "ENGINE_UNREACHABLE", "CLUSTER_UNREACHABLE", "CLUSTER_OVERLOADED"))


def choose(spec: SandboxSpec, registry: Registry, uid: int | None = None) -> tuple[Backend, SandboxSpec]:
    """The first backend, in the configured order, that can deliver every field of the request, and the request as it
    is meant for that backend. Raises with the reasons of all of them if there is none."""
    problems: list[Problem] = []
    for backend in registry.candidates(spec.backend, uid):
        found = backend_problems(spec, backend, registry)
        if not found:
            return backend, meant_for(spec, backend.name, registry)
        problems += found
    if any(problem.code in _WRONG for problem in problems):
        raise InvalidRequest(problems)
    raise (BackendUnavailable if all(problem.code in _AWAY for problem in problems) else Unsupported)(problems)


def meant_for(spec: SandboxSpec, backend: str, registry: Registry) -> SandboxSpec:
    """What the request says on one backend: `local` knows images as roots; exact devices may stand in its options."""
    if backend == "local":
        command = (*(spec.entrypoint or ()), *spec.command)
        root = registry.images.get(spec.image, "host") if spec.image else spec.root
        spec = msgspec.structs.replace(spec, image="", root=root, entrypoint=None, command=command)
    exact = spec.options.get(family(backend), {}).get("cdi_devices")
    if exact:
        spec = msgspec.structs.replace(
            spec, resources=msgspec.structs.replace(spec.resources, gpus=(), devices=tuple(exact))
        )
    return spec


_DEFAULTS = SandboxSpec()


def asked_fields(spec: SandboxSpec) -> dict[str, str]:
    """The rows of the delivery table that a request touches, each with the value that was asked."""
    request = spec.resources
    asked: dict[str, str] = {}
    for wish in request.gpus:
        asked["gpu.all" if wish.count == "all" else "gpu.count"] = str(wish)
        asked |= {"gpu.vendor": wish.vendor} if wish.vendor else {}
        asked |= {"gpu.models": ",".join(wish.models)} if wish.models else {}
        asked |= {"gpu.memory": wish.memory.text} if wish.memory else {}
        asked |= {"gpu.profile": wish.profile} if wish.profile else {}
    asked |= {"devices": ", ".join(request.devices)} if request.devices else {}
    asked |= {"where": " and ".join(request.where)} if request.where else {}
    asked |= {"claim": request.flags()} if request.claim else {}
    asked |= {
        key: str(value) for key, value in request.short().items() if key in ("cpu", "memory", "pids", "allow_busy")
    }
    for name in SandboxSpec.__struct_fields__:
        value = getattr(spec, name)
        row = name.removesuffix("_seconds").removesuffix("_bytes")
        if row != "resources" and value != getattr(_DEFAULTS, name):
            asked[row] = str(value)
    return asked


def backend_problems(spec: SandboxSpec, backend: Backend, registry: Registry) -> list[Problem]:
    """Every reason why a backend cannot deliver a request, devices apart."""
    able = backend.available()
    if not able.ok:
        code = able.code or "BACKEND_UNAVAILABLE"
        return [Problem(code, "backend", backend.name, able.reason, able.remedy)]
    problems = _foreign_options(spec, backend.name) + _image_problems(spec, backend.name, registry)
    spec = meant_for(spec, backend.name, registry)
    for field, value in asked_fields(spec).items():
        entry = cell(field, backend.name)
        if entry.outcome is Outcome.REFUSED:
            reason = f"the {backend.name} backend cannot deliver it: {entry.how}"
            code, remedy = entry.code or "FIELD_NOT_SUPPORTED", "leave it out, or name another backend"
            problems.append(Problem(code, field, value, reason, remedy))
        elif field == "network" and spec.network:
            able = backend.can_network(spec.network)
            if not able.ok:
                reason = f"the {backend.name} backend cannot give it: {able.reason}"
                problems.append(Problem(able.code or "NETWORK_UNAVAILABLE", field, value, reason, able.remedy))
        elif entry.probe and field in ("cpu", "memory", "pids"):
            able = backend.can_limit(field)  # type: ignore[arg-type]  # the three names that it takes
            if not able.ok:
                problems.append(Problem("LIMIT_NOT_ENFORCEABLE", field, value, able.reason, able.remedy))
    return problems


def _foreign_options(spec: SandboxSpec, backend: str) -> list[Problem]:
    if spec.backend == "auto" and family(backend) in spec.options:
        return []  # options for several backends: `auto` takes one of these, and each has its own
    return [
        Problem(
            "WISH_FOR_ANOTHER_BACKEND", name, ", ".join(said), f"the {backend} backend does not understand it",
            f"name the backend: --backend {name}, or leave it out",
        )
        for name, said in spec.options.items()
        if name != family(backend)
    ]  # fmt: skip


def _image_problems(spec: SandboxSpec, backend: str, registry: Registry) -> list[Problem]:
    if backend == "local" and spec.image and spec.image not in registry.images:
        known = ", ".join(registry.images)
        reason = f"the local backend has no such image; it has {known}"
        remedy = "take one of these, name a root folder or tar under [images] in the configuration, or use an engine"
        return [Problem("IMAGE_UNKNOWN", "image", spec.image, reason, remedy)]
    if (backend in ENGINES or family(backend) == "kubernetes") and not spec.image and spec.root == "host":
        remedy = "say which: --image python:3.12, or the path of a tar; or use --backend local"
        return [Problem("IMAGE_INVALID", "image", "", "a container is made from an image", remedy)]
    return []


def explain_request(
    spec: SandboxSpec, world: World, registry: Registry, *, queue_length: int, who: Identity
) -> Explanation:
    uid = who.uid
    refused = networks.not_given(spec, registry.settings.gateway) if who.gateway else []
    backends = []
    for name in registry.order if spec.backend == "auto" else (spec.backend,):
        decision: DevicePlan | Refusal = DevicePlan()
        if not registry.delegates(name):
            decision = plan_devices(meant_for(spec, name, registry).resources, world)
        try:
            backend = registry.get(name, uid)  # refused where this user may not have it; the others are explained
            problems = refused + backend_problems(spec, backend, registry)
            note = "" if problems else networks.settle(spec, backend, gateway=who.gateway)[1]
            if registry.delegates(name) and spec.resources.wants_devices and not problems:
                note = f"the scheduler of {name} chooses the devices"
        except DibsError as failure:
            problems, note = list(failure.problems), ""
        fits = isinstance(decision, DevicePlan)
        error = "Unsupported" if problems else "" if isinstance(decision, DevicePlan) else decision.error
        backends.append(
            BackendExplanation(
                backend=name,
                ok=fits and not problems,
                wishes=decision.wishes,
                problems=tuple(problems) if isinstance(decision, DevicePlan) else (*problems, *decision.problems),
                devices=tuple(d.id for d in decision.devices)
                if isinstance(decision, DevicePlan) and not problems
                else (),
                waits_for=decision.waits_for if isinstance(decision, Refusal) and not problems else "",
                error=error,
                notes=(note,) if note else (),
            )
        )
    return Explanation(
        asked={**spec.resources.short(), "flags": spec.resources.flags()},
        backends=tuple(backends),
        simulated=world.inventory.simulated,
        claim=claim_of(spec.resources, spec.name or "claim"),
        source_errors=tuple(f"{error.source}: {error.reason}" for error in world.inventory.errors),
        queue_length=queue_length,
    )


def table_rows() -> list[dict[str, str]]:
    """The delivery table, flat, for printing."""
    return [
        {"field": field, "backend": backend, "outcome": entry.outcome.value, "how": entry.how}
        for field, row in TABLE.items()
        for backend, entry in row.items()
    ]
