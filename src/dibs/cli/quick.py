"""The short way through the command line, without click, for the verbs that people type most.

`__main__` tries it first. It serves plain command lines of declared verbs (see `verb`); everything else, and every
mistake, is left to `main`, so that there is one place that knows help, completion and usage.
"""

from __future__ import annotations

import os
import sys

from dibs.cli import lean
from dibs.cli.characters import forgive
from dibs.cli.verb import Misuse, Verb
from dibs.cli.verbs import COMMANDS

VERBS = frozenset(("run", "gpus", "explain"))
COMPLETION = "_DIBS_COMPLETE"  # a shell asks what could follow


def run(arguments: list[str]) -> int | None:
    """The exit code; None if this is for click. Nothing has been done then."""
    if not arguments or arguments[0] not in VERBS or COMPLETION in os.environ:
        return None
    lean.load()
    import importlib

    name, *words = arguments
    declared = getattr(importlib.import_module(COMMANDS[name][0]), name)
    assert isinstance(declared, Verb)
    values = declared.read(words)
    if values is None:
        return None
    from dibs.cli.outcome import exit_code

    forgive(sys.stdout, sys.stderr)
    try:
        return exit_code(lambda: declared.function(**values), arguments)
    except Misuse:
        return None
