"""`dibs explain`: the plan, or every reason why not, with nothing created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs import errors
from dibs.cli.options import REQUEST, read_spec
from dibs.cli.output import Cell, paint, problem_lines, say, show, show_data, simulated_banner, table
from dibs.cli.verb import Misuse, Option, output_format, verb

if TYPE_CHECKING:
    from dibs.plan.explanation import BackendExplanation, Explanation, SelectorExplanation
    from dibs.request.spec import SandboxSpec

_COLOURS = {
    "chosen": "green", "free": "", "busy": "yellow", "external": "yellow", "queued": "yellow", "unhealthy": "red",
    "tainted": "red", "cannot": "red", "taken": "", "no match": "dim",
}  # fmt: skip
_MOST_ROWS = 40  # of one request in a table; -o json has them all


@verb(
    *REQUEST,
    Option("--cluster", metavar="CONTEXT", help="For pod/NAME and claim/NAME: a context of your kubeconfig."),
    Option("-n", "--namespace", metavar="NAME", help="For pod/NAME and claim/NAME: their namespace."),
    Option("--openshell", metavar="FILE", help="Explain this OpenShell request (CreateSandboxRequest as JSON)."),
    output_format(wide=False),
    rest="command",
)
def explain(
    command: tuple[str, ...],
    output: str,
    cluster: str | None,
    namespace: str | None,
    openshell: str | None,
    **values: Any,
) -> int:
    """What would happen to a request, on each backend and to each device, and why. Nothing is created.

    `pod/NAME` or `claim/NAME` instead of a request: why that pod or claim of a Kubernetes cluster waits.

    The exit code is 0 if it would be delivered now, else that of the refusal.

    \b
    Examples:
      dibs explain --gpu 2
      dibs explain --gpu H100:80Gi.. --memory 4Gi
      dibs explain --gpu nvidia:H100,A100:80GB..:2 -o yaml
      dibs explain pod/train-0 -n team-a
      dibs explain --openshell request.json
    """
    if command and "/" in command[0]:
        from dibs.cli.why_pending import subject_of, why

        if subject_of(command) is not None:
            given = {"--cluster": cluster, "--namespace": namespace, "-o": None if output == "table" else output}
            before = [word for flag, value in given.items() if value is not None for word in (flag, value)]
            return int(why.main([*before, *command], prog_name="dibs explain", standalone_mode=False) or 0)
    if cluster is not None or namespace is not None:
        raise Misuse("--cluster and --namespace go with pod/NAME or claim/NAME")
    from dibs.remote.choose import open_service

    spec = read_spec(values, command) if openshell is None else _openshell_spec(openshell, values, command)
    with open_service() as service:
        explanation = service.explain(spec)
    if output in ("json", "yaml"):
        show_data(explanation, output)
    else:
        show(explanation_lines(explanation))
    if any(backend.ok for backend in explanation.backends):
        return 0
    return _exit_code(explanation.backends[0])


def _openshell_spec(path: str, values: dict[str, Any], command: tuple[str, ...]) -> SandboxSpec:
    """What an OpenShell request asks for. What of it does not apply is told on stderr."""
    given = [name for name in ("gpu", "device", "claim", "where", "cpu", "memory", "image", "file") if values.get(name)]
    if given or command:
        raise Misuse(f"--openshell does not go together with {', '.join(given) or 'a command'}")
    import click

    from dibs.gateway.openshell.documents import read_document
    from dibs.gateway.openshell.requests import Rules
    from dibs.home import find_home
    from dibs.request.model import family
    from dibs.settings import load_settings

    settings = load_settings(find_home())
    gateway = settings.gateway
    rules = Rules(
        images=frozenset({"host", *settings.images}), default_image=gateway.openshell_image,
        default_backend=gateway.openshell_backend, longest_ttl=gateway.max_sandbox_ttl,
        **({"backends": settings.backends} if settings.backends else {}),
    )  # fmt: skip
    with click.open_file(path) as file:
        wanted = read_document(file.read(), rules)
    backend = wanted.spec.backend
    for note in wanted.unused:
        say(f"not applicable: {note}")
    for name in wanted.blocks:
        if name != family(backend):
            unless = f" unless it runs on {name}" if backend == "auto" else f": it runs on {backend}"
            say(f"not applicable: driver_config.{name}{unless}")
    return wanted.spec


def _exit_code(backend: BackendExplanation) -> int:
    kind = getattr(errors, backend.error, errors.Unsupported)
    return int(kind.exit_code)


def explanation_lines(explanation: Explanation) -> list[str]:
    lines = [simulated_banner(), ""] if explanation.simulated else []
    lines.append(f"asked     {explanation.asked['flags']}")
    lines += [""]
    for backend in explanation.backends:
        if len(explanation.backends) > 1 and [problem.code for problem in backend.problems][:1] == [
            "ENGINE_NOT_RUNNING"
        ]:
            reason = backend.problems[0].reason.partition(":")[0]
            lines.append(paint(f"{backend.backend:<9} not here: {reason}", "dim"))
            continue
        lines += _backend_lines(backend)
    shown: list[tuple[SelectorExplanation, ...]] = []
    for backend in explanation.backends:
        if backend.selectors not in shown:  # the devices are the same everywhere, unless a backend was told which ones
            shown.append(backend.selectors)
            for explained in backend.selectors:
                lines += ["", *_selector_lines(explained)]
    lines += [paint(f"cannot be read: {error}", "red") for error in explanation.source_errors]
    if explanation.queue_length:
        lines += ["", f"{explanation.queue_length} waiting in front; who came first is served first"]
    return lines


def _backend_lines(backend: BackendExplanation) -> list[str]:
    if backend.ok and backend.delegated_to:
        told = paint("would wait", "yellow") if backend.waits_for else paint("would be delivered", "green")
        lines = [f"{backend.backend:<9} {told}: the scheduler of {backend.delegated_to} chooses"]
    elif backend.ok:
        got = ", ".join(device.rpartition("/")[2] for device in backend.devices) or "no devices"
        lines = [f"{backend.backend:<9} {paint('would be delivered', 'green')}: {got}"]
    elif backend.waits_for:
        lines = [f"{backend.backend:<9} {paint('would wait', 'yellow')} (with --wait), else be refused"]
    else:
        lines = [f"{backend.backend:<9} {paint('would be refused', 'red')}"]
    for problem in backend.problems:
        lines += problem_lines(problem, " " * 10)
    lines += [f"{' ' * 10}{note}" for note in backend.notes]
    return lines


def _selector_lines(explained: SelectorExplanation) -> list[str]:
    wanted = "all" if explained.wanted is None else str(explained.wanted)
    order = {"chosen": 0, "free": 1, "busy": 2, "external": 2, "queued": 2, "unhealthy": 3, "cannot": 4, "taken": 5}
    verdicts = sorted(explained.verdicts, key=lambda v: (order.get(v.fate.value, 9), v.miss))
    rows: list[list[Cell]] = [
        [v.device.rpartition("/")[2], (v.fate.value, _COLOURS[v.fate.value]), v.reason] for v in verdicts[:_MOST_ROWS]
    ]
    title = f"{explained.selector}: {wanted} wanted of {len(explained.verdicts)}"
    more = len(verdicts) - _MOST_ROWS
    return [
        title,
        *table(["GPU", "VERDICT", "WHY"], rows),
        *([f"… and {more} more; -o json has all"] if more > 0 else []),
    ]
