"""The command `dibs`. Nothing is imported before it is known to be needed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its documented code."""
    if sys.argv[1:] == ["--version"]:
        from dibs._version import __version__

        print(f"dibs {__version__}")  # noqa: T201 - answered before anything else is loaded
        return
    from dibs.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
