"""What a shell completes: names of sandboxes, models, devices, backends, fields, places in the queue.

click asks while the user presses Tab. A host without a ledger, or one that cannot be reached, completes to nothing.
"""

from __future__ import annotations

from typing import Any


def sandbox_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    from dibs.errors import DibsError
    from dibs.remote.choose import open_service

    try:
        with open_service() as service:
            names = [row.name for row in service.sandboxes(all=True)]
    except (DibsError, OSError):
        return []  # nothing to offer; the command itself will say why
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def gpu_requests(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """The models of this host, then those that dibs knows."""
    from dibs.devices import catalogue
    from dibs.errors import DibsError
    from dibs.remote.choose import open_service

    try:
        with open_service() as service:
            here = [state.device.model for state in service.devices()[1]]
    except (DibsError, OSError):
        here = []
    known = [*here, "all", *(model.key for model in catalogue.MODELS)]
    return [name for name in dict.fromkeys(known) if name and name.lower().startswith(incomplete.lower())]


def device_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    from dibs.errors import DibsError
    from dibs.remote.choose import open_service

    try:
        with open_service() as service:
            devices = [state.device for state in service.devices()[1]]
    except (DibsError, OSError):
        return []
    names = [device.cdi.cdi_name for device in devices if device.cdi]
    return [name for name in names if name.startswith(incomplete)]


def backend_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    from dibs.backends import installed

    offered = [name for name in installed.names() if not installed.declared(name).testing]
    return [name for name in ("auto", *offered) if name.startswith(incomplete)]


def gpu_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """The devices of this host as `dibs gpus` calls them."""
    from dibs.errors import DibsError
    from dibs.remote.choose import open_service

    try:
        with open_service() as service:
            names = [state.device.name for state in service.devices()[1]]
    except (DibsError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def model_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """The models that can be simulated."""
    from dibs.devices import catalogue

    return [model.key for model in catalogue.MODELS if model.key.lower().startswith(incomplete.lower())]


def field_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """The fields of the delivery table."""
    from dibs.workloads.explain import table_rows

    return [name for name in dict.fromkeys(row["field"] for row in table_rows()) if name.startswith(incomplete)]


def ticket_names(_context: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Places in the queue."""
    from dibs.errors import DibsError
    from dibs.remote.choose import open_service

    try:
        with open_service() as service:
            return [ticket.id for ticket in service.queue() if ticket.id.startswith(incomplete)]
    except (DibsError, OSError):
        return []


def sides_of_a_copy(context: Any, parameter: Any, incomplete: str) -> list[Any]:
    """For `cp`: a sandbox with a colon, or a file of this host."""
    from click.shell_completion import CompletionItem

    names = [] if "/" in incomplete or ":" in incomplete else sandbox_names(context, parameter, incomplete)
    return [CompletionItem(f"{name}:/") for name in names] or [CompletionItem(incomplete, type="file")]
