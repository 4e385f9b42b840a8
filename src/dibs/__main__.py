"""The command `dibs`. Nothing is imported before it is known to be needed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its documented code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from dibs.descriptors import open_standard

        open_standard()
    if sys.argv[1:] == ["--version"]:
        from dibs._version import __version__

        print(f"dibs {__version__}")  # noqa: T201 - answered before anything else is loaded
        return
    if sys.argv[1:] in (["--help"], ["-h"]):
        from dibs.cli.characters import forgive
        from dibs.cli.verbs import help_page

        forgive(sys.stdout)
        try:
            sys.stdout.write(help_page(sys.stdout))
            sys.stdout.flush()
        except BrokenPipeError:  # its reader has seen enough
            import os

            os._exit(128 + 13)
        return
    import gc
    import os

    if sys.argv[1:2] == ["run"]:
        from dibs.remote.choose import in_process

        if in_process():
            from dibs.backends.local.spawning import start_early

            start_early(sys.argv[2:])  # it starts while we load
    gc.disable()  # loading makes much and drops nothing; whatever runs for long switches it on again
    from dibs.cli import quick

    code = quick.run(sys.argv[1:])
    if code is None:
        from dibs.cli.main import run

        code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written and closed; taking the interpreter apart would take longer than many commands do.
    os._exit(code)


if __name__ == "__main__":
    main()
