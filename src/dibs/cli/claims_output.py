"""How `dibs claims` and `dibs gpus --where` print: mistakes with their places, answers with their reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dibs.cli.output import Cell, paint, simulated_banner, table
from dibs.errors import quoted

if TYPE_CHECKING:
    from dibs.claims import Explanation, RequestExplanation, ResourceSlice
    from dibs.cli.claims_solve import Answer, Case
    from dibs.devices.manifests import ManifestProblem, Manifests

# Why a device was not given, nearest miss first: the later the check, the nearer it was.
REASONS = {
    "taken": "given to another request",
    "in-use": "in use",
    "constraint": "breaks a constraint",
    "counters": "what it shares with others is used up",
    "compatibility-groups": "does not go together with what is given",
    "taint": "tainted",
    "counters-off": "needs shared counters",
    "node-operations": "needs node operations to be optional",
    "capacity": "too little capacity",
    "other-node": "for other nodes",
    "selector": "the request's selector says no",
    "class-selector": "not of the class",
    "binding-conditions": "needs binding conditions, which are off",
}
_NAMED = 6  # devices of one reason in a table; -o json has them all


# -- mistakes


def problem_lines(problems: Iterable[ManifestProblem]) -> list[str]:
    """All mistakes, under their file and object. A CEL error keeps its lines: the caret must stay under its place."""
    lines: list[str] = []
    file, subject = None, None
    for problem in problems:
        if problem.file != file:
            file, subject = problem.file, None
            lines.append(paint(f"{file}:", "bold"))
        place = (problem.document, problem.object)
        if place != subject:
            subject = place
            if problem.document:
                lines.append(f"  {problem.object or 'document'} (document {problem.document})")
        first, *rest = _texts(problem)
        lines.append(f"    {paint(first, 'red')}")
        lines += [f"      {line}" for line in rest]
        if problem.remedy:
            lines.append(f"      {paint('→', 'green')} {problem.remedy}")
    return lines


def _texts(problem: ManifestProblem) -> list[str]:
    detail = problem.detail.splitlines()
    if len(detail) < 2:
        value = quoted(problem.value.strip('"')) if len(problem.value) > 160 else problem.value.replace("\n", "\\n")
        return [": ".join(part for part in (problem.field, problem.type, value, problem.detail) if part)]
    return [": ".join(part for part in (problem.field, problem.type) if part), *detail]


def cel_lines(subject: str, error: Exception) -> list[str]:
    """An error of CEL with its line, column and caret."""
    return [
        paint(f"dibs: {subject}: not a CEL expression", "red", sys.stderr),
        *(f"  {t}" for t in str(error).splitlines()),
    ]


def checked_lines(files: Sequence[str], found: Manifests) -> list[str]:
    lines = problem_lines(found.problems)
    broken = {problem.file for problem in found.problems}
    for file in dict.fromkeys(files):
        kinds: dict[str, int] = {}
        for manifest in found.manifests:
            if manifest.file == file:
                kinds[manifest.kind] = kinds.get(manifest.kind, 0) + 1
        named = ", ".join(f"{count} {kind}{'' if count == 1 else _plural(kind)}" for kind, count in kinds.items())
        if file not in broken:
            lines.append(f"{file}: {paint('ok', 'green')}, {named or 'nothing in it'}")
    count = len(found.problems)
    if count:
        lines += ["", f"{count} problem{'' if count == 1 else 's'}"]
    return lines


def _plural(kind: str) -> str:
    return "es" if kind.endswith("s") else "s"


def checked_data(files: Sequence[str], found: Manifests) -> dict[str, Any]:
    return {
        "ok": not found.problems,
        "files": [
            {
                "file": file,
                "objects": [
                    {"kind": one.kind, "name": one.name, "namespace": one.namespace, "document": one.document}
                    for one in found.manifests
                    if one.file == file
                ],
                "problems": [problem for problem in found.problems if problem.file == file],
            }
            for file in dict.fromkeys(files)
        ],
    }


# -- answers


def solved_data(case: Case, answers: Sequence[Answer]) -> dict[str, Any]:
    return {"host": case.host, "simulated": case.simulated, "sourceErrors": case.source_errors, "nodes": list(answers)}


def solved_lines(case: Case, answers: Sequence[Answer]) -> list[str]:
    """Per node the answer, a line per request, and why the other devices fell. Nodes that read alike stand together."""
    lines = [simulated_banner() if case.host else paint("simulated devices: not hardware", "yellow"), ""]
    lines = lines if case.simulated else []
    alike: dict[tuple[str, ...], list[str]] = {}
    for answer in answers:
        alike.setdefault(tuple(_answer_lines(answer, case)), []).append(answer.node)
    for number, ((first, *rest), nodes) in enumerate(alike.items()):
        names = ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")
        lines += [*([""] if number else []), f"{'node' if len(nodes) == 1 else 'nodes'} {names}: {first}", *rest]
    lines += [paint(f"cannot be read: {error}", "red") for error in case.source_errors]
    return lines


def _answer_lines(answer: Answer, case: Case) -> list[str]:
    explanation = answer.explanation
    if answer.outcome == "allocated":
        lines = [paint("allocated", "green")]
    elif answer.outcome == "unsatisfiable":
        note = explanation.note if explanation is not None else ""
        lines = [paint("cannot", "yellow") + (f": {note}" if note else "")]
    else:
        gave_up = answer.code == "ALLOCATION_GAVE_UP"
        first, *rest = answer.error.splitlines() or [""]
        lines = [f"{paint('undecided' if gave_up else 'error', 'yellow' if gave_up else 'red')}: {first}"]
        lines += [f"  {line}" for line in rest]
        if "there is no such class" in answer.error:
            lines.append(f"  {paint('→', 'green')} the classes are {', '.join(case.classes)}")
    if explanation is not None:
        lines += _explanation_lines(explanation, answer.node)
    return lines


def _explanation_lines(explanation: Explanation, node: str) -> list[str]:
    short = _short_names(explanation, node)
    rows: list[list[Cell]] = []
    for one in explanation.requests:
        # What was placed before a dead end was not given.
        given = ", ".join(short[device] for device in one.given) if explanation.outcome == "allocated" else ""
        rows.append(
            [
                one.claim,
                one.request,
                one.device_class,
                "all" if one.wanted is None else str(one.wanted),
                str(one.seen),
                str(one.of_class),
                str(one.selected),
                str(one.free),
                (given or "–", "green" if given else ""),
            ]
        )
    lines = []
    if rows:
        headers = ["CLAIM", "REQUEST", "CLASS", "WANTED", "SEEN", "OF CLASS", "SELECTED", "FREE", "GIVEN"]
        lines = ["", *table(headers, rows, right=frozenset({"WANTED", "SEEN", "OF CLASS", "SELECTED", "FREE"}))]
    for one in explanation.requests:
        lines += _fallen_lines(one, short)
    for pool in explanation.pools:
        lines.append(paint(f"pool {pool.pool} cannot be used: {pool.reason}", "red"))
    return lines


def _fallen_lines(one: RequestExplanation, short: dict[str, str]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for verdict in one.fell:
        groups.setdefault((verdict.reason, verdict.detail), []).append(short[verdict.device])
    if not groups:
        return []
    order = list(REASONS)
    found = sorted(groups.items(), key=lambda entry: order.index(entry[0][0]))
    rows: list[list[Cell]] = []
    for (reason, detail), devices in found:
        names = ", ".join(devices[:_NAMED]) + (f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else "")
        rows.append([names, REASONS[reason], " ".join(detail.split())])
    return ["", f"not given to {one.request}:", *table(["DEVICE", "WHY", "DETAIL"], rows)]


def _short_names(explanation: Explanation, node: str) -> dict[str, str]:
    """Device ids as a person would say them: without driver, and without a pool that is called after the node."""
    ids = dict.fromkeys(
        device for one in explanation.requests for device in (*one.given, *(verdict.device for verdict in one.fell))
    )
    names: dict[str, list[str]] = {}
    for device in ids:
        _, _, rest = device.partition("/")
        pool, _, name = rest.rpartition("/")
        names.setdefault(name if pool == node else rest, []).append(device)
    return {device: name if len(same) == 1 else device for name, same in names.items() for device in same}


# -- slices


def slices_text(slices: Iterable[ResourceSlice]) -> str:
    """Slices as kubectl takes them: YAML, one document each."""
    import yaml

    from dibs.cdi.tree import plain_scalar
    from dibs.claims import to_builtins

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        # Go's reader takes 12e5 for a number, Python's does not: whatever is not text to Go is put in quotes.
        style = None if isinstance(plain_scalar(value), str) else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump_all(
        [_ordered(to_builtins(one)) for one in slices],
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        explicit_start=True,
        width=4096,
    )
    return dumped


def _ordered(value: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = {key: value[key] for key in ("apiVersion", "kind") if key in value}
    return {**first, **value}
