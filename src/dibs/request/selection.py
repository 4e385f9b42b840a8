"""The parts of a request that need CEL or the claims model: `where` and `claim`.

Called by `parse`, and only when one of them was given: a plain GPU request never loads them.
"""

from __future__ import annotations

from typing import Any

from dibs.cel.dra import compile_selector
from dibs.cel.errors import CelError
from dibs.claims import ResourceClaim, ResourceClaimTemplate, from_builtins, to_builtins, validate
from dibs.errors import InvalidRequest, Problem, as_written
from dibs.request.model import GpuSelector

_EXAMPLE = "write CEL over `device`, as in device.capacity[device.driver].memory.compareTo(quantity('40Gi')) >= 0"


def read_where(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    """CEL expressions that compile. A compile error says line and column, with a caret."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text.strip() for text in texts):
        problems.append(Problem("CEL_INVALID", field, as_written(value), "not an expression", _EXAMPLE))
        return ()
    for text in texts:
        try:
            compile_selector(text)
        except CelError as error:
            problems.append(Problem("CEL_INVALID", field, text, str(error), _EXAMPLE))
    return tuple(texts)


def read_claim(value: Any, field: str, problems: list[Problem]) -> dict[str, Any] | None:
    """The spec of a claim from a ResourceClaim, a ResourceClaimTemplate, or a bare spec."""
    if not isinstance(value, dict):
        remedy = "give a ResourceClaim, as kubectl takes it"
        problems.append(Problem("CLAIM_INVALID", field, as_written(value), "not a claim", remedy))
        return None
    whole = dict(value)
    if "devices" in whole and "spec" not in whole:
        whole = {"spec": whole}
    try:
        if whole.get("kind") == "ResourceClaimTemplate":
            template = from_builtins(whole, ResourceClaimTemplate)
            claim = ResourceClaim(metadata=template.metadata, spec=template.spec.spec)
        else:
            whole.setdefault("apiVersion", "resource.k8s.io/v1")
            whole.setdefault("kind", "ResourceClaim")
            metadata = whole.get("metadata")
            whole["metadata"] = {"name": "claim", **metadata} if isinstance(metadata, dict) else {"name": "claim"}
            claim = from_builtins(whole, ResourceClaim)
        wrong = validate(claim)
    except InvalidRequest as error:
        problems += [Problem(p.code, f"{field}.{p.field}", p.value, p.reason, p.remedy) for p in error.problems]
        return None
    problems += [
        Problem("CLAIM_INVALID", f"{field}.{one.path}", one.value, one.detail or one.kind.lower(), "correct the claim")
        for one in wrong
    ]
    refused = _undeliverable(claim, field)
    problems += refused
    if wrong or refused:
        return None
    spec: dict[str, Any] = to_builtins(claim.spec)
    return spec


def _undeliverable(claim: ResourceClaim, field: str) -> list[Problem]:
    """What Kubernetes would accept in a claim and dibs cannot act on: refused, not ignored."""
    problems = []
    if not claim.spec.devices.requests:
        where = f"{field}.spec.devices.requests"
        problems.append(Problem("CLAIM_INVALID", where, "", "it asks for no device", "leave the claim out"))
    for index, request in enumerate(claim.spec.devices.requests):
        if request.exactly is not None and request.exactly.admin_access:
            where = f"{field}.spec.devices.requests[{index}].exactly.adminAccess"
            remedy = "leave it out; `dibs gpus` shows devices without holding them"
            problems.append(Problem("FIELD_NOT_SUPPORTED", where, "true", "there are no administrators here", remedy))
    if claim.spec.devices.config:
        where = f"{field}.spec.devices.config"
        drivers = ", ".join(one.opaque.driver for one in claim.spec.devices.config if one.opaque)
        reason = "configuration is for a Kubernetes driver, and none runs here to read it"
        problems.append(Problem("FIELD_NOT_SUPPORTED", where, drivers, reason, "leave it out, or use Kubernetes"))
    return problems


def combine(
    gpus: tuple[GpuSelector, ...],
    devices: tuple[str, ...],
    where: tuple[str, ...],
    has_claim: bool,
    prefix: str,
    problems: list[Problem],
) -> tuple[GpuSelector, ...]:
    """`where` alone means one GPU; a claim says everything itself."""
    if has_claim and (gpus or devices or where):
        said = " and ".join(name for name, given in (("gpu", gpus), ("device", devices), ("where", where)) if given)
        remedy = "put everything into the claim, or leave it out"
        problems.append(Problem("CONFLICT", f"{prefix}claim", said, "a claim stands alone", remedy))
    elif where and devices:
        remedy = "name the devices, or describe them"
        problems.append(Problem("CONFLICT", f"{prefix}where", ", ".join(devices), "device is exact already", remedy))
    elif where and not gpus:
        return (GpuSelector(),)
    return gpus
