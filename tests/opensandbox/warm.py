"""A Python program that is started once and run many times: each time in a fork of a process that has imported it all.

`test_osb` starts it: a life is some fifty calls of a command line whose interpreter takes a second to get ready, and
nothing of that second is ours. The program itself is run as it is, from its first line, in a process of its own.

    python warm.py PROGRAM PACKAGE…      then one line of JSON for each run on stdin; its exit code as a line on stdout
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import sys
import traceback
from typing import Any


def load(package: str) -> None:
    found = importlib.import_module(package)
    for one in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not one.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of something that is not installed: the program does without
                importlib.import_module(one.name)


def run(program: str, asked: dict[str, Any]) -> None:
    """In a child: the program, with these words, folder, environment and files; does not return."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for number, path in ((1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [program, *asked["words"]]
    code: Any = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as an interpreter would show it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    program, *packages = sys.argv[1:]
    for package in packages:
        load(package)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            run(program, json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
