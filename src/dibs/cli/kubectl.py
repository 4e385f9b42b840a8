"""`kubectl dibs`: the verbs of dibs that are about a cluster, as kubectl finds them (the command `kubectl-dibs`).

    kubectl dibs why POD [-n NAMESPACE] [--context NAME]
    kubectl dibs why claim/NAME
    kubectl dibs gpus
    kubectl dibs doctor

It only spells other commands of `dibs`; kubectl's own flags `--context` and `--kubeconfig` are understood.
"""

from __future__ import annotations

import os
import sys

from dibs.descriptors import open_standard

_USAGE = """usage: kubectl dibs why POD|pod/NAME|claim/NAME [-n NAMESPACE] [--context NAME] [-o json|yaml]
       kubectl dibs gpus [--context NAME] [-o wide|json|yaml]
       kubectl dibs doctor [--context NAME] [-o json|yaml]
"""


def arguments_of(words: list[str]) -> list[str] | None:
    """The arguments of `dibs` that mean the same; None where the usage is to be shown."""
    context, rest = _flag(words, "--context")
    kubeconfig, rest = _flag(rest, "--kubeconfig")
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = kubeconfig
    if not rest or rest[0] in ("-h", "--help", "help"):
        return None
    verb, *more = rest
    cluster = [] if context is None else ["--cluster", context]
    if verb == "why":
        subject = next((index for index, word in enumerate(more) if _is_subject(more, index)), None)
        if subject is None:
            return None
        name = more.pop(subject)
        return ["explain", name if "/" in name else f"pod/{name}", *more, *cluster]
    if verb in ("gpus", "doctor"):
        return [verb, "--cluster", *([] if context is None else [context]), *more]
    return None


def _flag(words: list[str], flag: str) -> tuple[str | None, list[str]]:
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1], [*words[:index], *words[index + 2 :]]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2], [*words[:index], *words[index + 1 :]]
    return None, words


def _is_subject(words: list[str], index: int) -> bool:
    valued = ("-n", "--namespace", "-o", "--output")
    return not words[index].startswith("-") and (index == 0 or words[index - 1] not in valued)


def main() -> None:
    open_standard()
    arguments = arguments_of(sys.argv[1:])
    if arguments is None:
        wanted = sys.argv[1:2] in ([], ["-h"], ["--help"], ["help"])
        (sys.stdout if wanted else sys.stderr).write(_USAGE)
        sys.exit(0 if wanted else 2)
    from dibs.cli.main import run

    sys.exit(run(arguments))
