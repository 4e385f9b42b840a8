"""Explain before: what would happen on each backend, with nothing created."""

from __future__ import annotations

import msgspec

from dibs.backends.installed import ON_HOST, declared
from dibs.backends.port import Backend, EnforcesLimits, Forecast, Forecasts, scheduler_of
from dibs.errors import BackendUnavailable, DibsError, InvalidRequest, Problem, Unsupported
from dibs.plan.decision import DevicePlan, Refusal, World
from dibs.plan.delivery import Outcome, cell, table
from dibs.plan.devices import plan_devices
from dibs.plan.explanation import BackendExplanation, Explanation
from dibs.request.claim import claim_of
from dibs.request.fields import FIELDS
from dibs.request.model import family
from dibs.request.spec import SandboxSpec
from dibs.workloads import networks
from dibs.workloads.identity import Identity
from dibs.workloads.registry import Registry
from dibs.workloads.volumes import volume_problems
from dibs.workloads.working_directory import bring, brought_problems, left_behind

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
    """What the request says on one backend: images may be names of roots; exact devices may stand in its options. A
    folder that comes along unasked does so only where folders of this host can be seen."""
    kind = declared(backend)
    spec = bring(spec, kind)
    if kind.root == "host":
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
    for selector in request.gpus:
        asked["gpu.all" if selector.count == "all" else "gpu.count"] = str(selector)
        asked |= {"gpu.vendor": selector.vendor} if selector.vendor else {}
        asked |= {"gpu.models": ",".join(selector.models)} if selector.models else {}
        asked |= {"gpu.memory": selector.memory.text} if selector.memory else {}
        asked |= {"gpu.profile": selector.profile} if selector.profile else {}
    asked |= {"devices": ", ".join(request.devices)} if request.devices else {}
    asked |= {"where": " and ".join(request.where)} if request.where else {}
    asked |= {"claim": request.flags()} if request.claim else {}
    asked |= {
        key: str(value) for key, value in request.short().items() if key in ("cpu", "memory", "pids", "allow_busy")
    }
    for field in FIELDS:
        if field.kind not in ("resource", "options"):
            value = getattr(spec, field.attribute)
            if value != getattr(_DEFAULTS, field.attribute):
                asked[field.name] = str(value)
    asked |= {"options": str(spec.options)} if spec.options else {}
    return asked


def backend_problems(spec: SandboxSpec, backend: Backend, registry: Registry) -> list[Problem]:
    """Every reason why a backend cannot deliver a request, devices apart."""
    able = backend.available()
    if not able.ok:
        code = able.code or "BACKEND_UNAVAILABLE"
        return [Problem(code, "backend", backend.name, able.reason, able.remedy)]
    problems = _foreign_options(spec, backend.name) + _image_problems(spec, backend.name, registry)
    asked, spec = spec, meant_for(spec, backend.name, registry)
    problems += brought_problems(asked, spec)
    for field, value in asked_fields(spec).items():
        entry = cell(field, backend.name)
        if entry.outcome is Outcome.REFUSED:
            reason = f"the {backend.name} backend cannot deliver it: {entry.how}"
            code, remedy = entry.code or "FIELD_NOT_SUPPORTED", "leave it out, or name another backend"
            problems.append(Problem(code, field, value, reason, remedy))
        elif field == "network" and spec.network:
            able = networks.able(backend, spec.network)
            if not able.ok:
                reason = f"the {backend.name} backend cannot give it: {able.reason}"
                problems.append(Problem(able.code or "NETWORK_UNAVAILABLE", field, value, reason, able.remedy))
        elif entry.probe and field in ("cpu", "memory", "pids") and isinstance(backend, EnforcesLimits):
            able = backend.can_limit(field)  # type: ignore[arg-type]  # the three names that it takes
            if not able.ok:
                problems.append(Problem("LIMIT_NOT_ENFORCEABLE", field, value, able.reason, able.remedy))
    return problems


def _foreign_options(spec: SandboxSpec, backend: str) -> list[Problem]:
    if spec.backend == "auto" and family(backend) in spec.options:
        return []  # options for several backends: `auto` takes one of these, and each has its own
    return [
        Problem(
            "OPTION_FOR_ANOTHER_BACKEND", name, ", ".join(said), f"the {backend} backend does not understand it",
            f"name the backend: --backend {name}, or leave it out",
        )
        for name, said in spec.options.items()
        if name != family(backend)
    ]  # fmt: skip


def _image_problems(spec: SandboxSpec, backend: str, registry: Registry) -> list[Problem]:
    root = declared(backend).root
    if root == "host" and spec.image and spec.image not in registry.images:
        known = ", ".join(registry.images)
        reason = f"the {backend} backend has no such image; it has {known}"
        remedy = "take one of these, name a root folder or tar under [images] in the configuration, or use an engine"
        return [Problem("IMAGE_UNKNOWN", "image", spec.image, reason, remedy)]
    if root == "image" and not spec.image and spec.root == "host":
        remedy = f"say which: --image python:3.12, or the path of a tar; or use --backend {ON_HOST}"
        return [Problem("IMAGE_INVALID", "image", "", "a container is made from an image", remedy)]
    return []


def explain_request(
    spec: SandboxSpec, world: World, registry: Registry, *, queue_length: int, who: Identity
) -> Explanation:
    refused = networks.not_given(spec, registry.settings.gateway) if who.gateway else []
    backends = []
    for name in registry.order if spec.backend == "auto" else (spec.backend,):
        decision: DevicePlan | Refusal = DevicePlan()
        if not registry.delegates(name):
            decision = plan_devices(meant_for(spec, name, registry).resources, world)
        verdict = _verdict(spec, name, registry, world, who)
        problems, forecast = refused + verdict.problems, verdict.forecast
        fits = isinstance(decision, DevicePlan)
        error = verdict.error or ("Unsupported" if refused else "")
        error = error or ("" if isinstance(decision, DevicePlan) else decision.error)
        waits = decision.waits_for if isinstance(decision, Refusal) and not problems else ""
        backends.append(
            BackendExplanation(
                backend=name,
                ok=fits and not problems,
                selectors=decision.selectors,
                problems=tuple(problems) if isinstance(decision, DevicePlan) else (*problems, *decision.problems),
                devices=tuple(d.id for d in decision.devices)
                if isinstance(decision, DevicePlan) and not problems
                else (),
                waits_for=forecast.waits_for if forecast is not None else waits,
                error=error,
                notes=(*verdict.notes, *(forecast.notes if forecast is not None else ())),
                delegated_to=verdict.domain,
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


class _Verdict(msgspec.Struct):
    """What is to be said of a backend, devices apart. `error`: the class of the refusal, if it is one."""

    problems: list[Problem]
    notes: list[str] = []
    error: str = ""
    forecast: Forecast | None = None  # where a scheduler chooses
    domain: str = ""


def _verdict(spec: SandboxSpec, name: str, registry: Registry, world: World, who: Identity) -> _Verdict:
    """Why a backend cannot deliver a request; or what there is to say about how it would."""
    try:
        registry.permit(name, who.uid)  # refused where this user may not have it; the others are explained
        absent = registry.absent(name)
        if absent is not None:
            return _Verdict([absent], error="Unsupported")
        backend = registry.get(name, who.uid)
        problems = backend_problems(spec, backend, registry) or volume_problems(backend, spec, who.tenant)
        if problems:
            return _Verdict(problems, error="Unsupported")
        _, why = networks.settle(spec, backend, gateway=who.gateway)
        said = (why, left_behind(meant_for(spec, name, registry), name))
        forecast = _forecast(spec, backend, registry, world, who)
    except DibsError as failure:
        return _Verdict(list(failure.problems), error=type(failure).__name__)
    domain = getattr(backend, "domain", "") if forecast is not None else ""
    return _Verdict([], [note for note in said if note], forecast=forecast, domain=domain)


def _forecast(spec: SandboxSpec, backend: Backend, registry: Registry, world: World, who: Identity) -> Forecast | None:
    """What a cluster's scheduler would find; None where this ledger decides. Raises with what can never be placed."""
    if scheduler_of(backend) is None:
        return None
    from dibs.workloads.rendering import prepare

    prepared = prepare(
        meant_for(spec, backend.name, registry), backend, "explained", DevicePlan(), world.inventory, registry.home, {},
        False, private=who.remote, owner=who.uid, tenant=who.tenant, gateway=who.gateway,
    )  # fmt: skip
    return backend.forecast(prepared.workload) if isinstance(backend, Forecasts) else Forecast()


def table_rows() -> list[dict[str, str]]:
    """The delivery table, flat, for printing."""
    return [
        {"field": field, "backend": backend, "outcome": entry.outcome.value, "how": entry.how}
        for field, row in table().items()
        for backend, entry in row.items()
    ]
