"""The pages of the documentation: what is in them, and running it.

The tests of this folder run every page; `scripts/generate_docs.py --outputs` writes the outputs anew with the same
code. How a page is read:

- ```console: a line that begins with `$ ` is a command, `> ` continues it, what follows is its output. A trailing
  `# exit 83` states the exit code, `# needs a GPU` has it checked with `dibs explain` instead of being run,
  `# needs an engine` runs it with a Docker that is started for the tests, where there can be one.
- output is compared where it is shown. Ids, times, paths and names are not; a `…` stands for anything, a line of its
  own for any lines.
- ```yaml whose first line is `# NAME` is written to that file.
- ```python is run, in an interpreter of its own; a ```text right behind it is what it prints.

One page has one state folder, with eight simulated H100s in it, and one working folder with the examples.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Their Python speaks of hardware that a test cannot have; it is compiled, not run.
COMPILED_ONLY = frozenset({"cdi.md"})
# Their commands are run on the test cluster, by `tests/cluster/test_chart.py`.
ON_A_CLUSTER = frozenset({"kubernetes-deploy.md"})
WORK, STATE, USER, HOST = "/home/anna/project", "/home/anna/.local/state/dibs", "anna", "box"

_EXIT = re.compile(r"\s+# exit (\d+)$")
_NEEDS_GPU = re.compile(r"\s+# needs a GPU$")
_NEEDS_ENGINE = re.compile(r"\s+# needs an engine$")
_LIMIT_OPTION = re.compile(r"\bdibs (?:run|sandbox create|explain)\b.*--(?:cpu|memory|pids)\b")
_LIMIT_WORD = re.compile(r"\b(?:cpu|memory|pids)\s*[:=]")
_LOOKING = re.compile(r"dibs (?:gpus|leases|sandbox (?:ls|logs|show))\b(?! simulate)")
_LOOKS = 10
# Printed by `run` over a gateway where no private network can be had. The pages are of a machine where it can.
_NO_NETWORK = "dibs: it has no network: a private one cannot be had here"
_LISTENED = re.compile(r"(?:(?<=--listen )|(?<=--openshell ))127\.0\.0\.1:(\d+)")
_SAME = (
    (re.compile(r"\b(sb|ls|tk)-[0-9a-f]{12}\b"), r"\1-ID"),
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), r"\1-UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?"), "WHEN"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "WHEN"),
    (re.compile(r"\b1[6-9]\d{8}\.\d+\b"), "WHEN"),
    (re.compile(r"\b\d+(?:ms|[smhd])(?:\d\d[smh])?\b"), "TIME"),
    (re.compile(r"\s+"), " "),
)


class Block(msgspec.Struct, frozen=True):
    """A fenced block. `line` is that of its first line of text, from 1; `after` is the block right before it."""

    language: str
    text: str
    line: int
    after: str = ""


class Step(msgspec.Struct, frozen=True):
    """One command of a console block. `first` and `last` are the lines of its output in the page."""

    command: str
    code: int
    needs_gpu: bool
    needs_engine: bool
    output: tuple[str, ...]
    line: int
    first: int
    last: int


class Outcome(msgspec.Struct, frozen=True):
    code: int
    output: tuple[str, ...]


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks(page: Path) -> list[Block]:
    found = []
    before = ""
    for token in tokens(page):
        if token.type == "fence" and token.map is not None:
            language = token.info.strip()
            found.append(Block(language, token.content, token.map[0] + 2, before))
            before = language
        elif token.level == 0:
            before = ""
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a console block."""
    commands: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            commands.append((line[2:], number, []))
        elif not commands:
            raise ValueError(f"line {block.line + number}: output before the first command")
        elif line.startswith("> ") and not commands[-1][2]:
            commands[-1] = (f"{commands[-1][0]}\n{line[2:]}", number, [])
        else:
            commands[-1][2].append(line)
    found = []
    for text, number, output in commands:
        while output and not output[-1].strip():
            output.pop()
        code = _EXIT.search(text)
        gpu = _NEEDS_GPU.search(text)
        engine = _NEEDS_ENGINE.search(text)
        text = _NEEDS_ENGINE.sub("", text)
        code = code or _EXIT.search(text)
        first = block.line + number + 1
        found.append(
            Step(
                command=_NEEDS_GPU.sub("", _EXIT.sub("", text)),
                code=int(code.group(1)) if code else 0,
                needs_gpu=gpu is not None,
                needs_engine=engine is not None,
                output=tuple(output),
                line=block.line + number,
                first=first,
                last=first + len(output),
            )
        )
    return found


_RANK = re.compile(r"\[[a-z]+-[0-9]+\] ")


def matches(shown: tuple[str, ...], printed: tuple[str, ...]) -> bool:
    """Whether the output in a page is what was printed, but for what differs from run to run."""
    pattern = ""
    shown, printed = _by_rank(shown), _by_rank(printed)
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(re.escape(part) for part in _same(line).split("…")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{_same(line)}\n" for line in printed)) is not None


def _by_rank(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Ranks of a job write side by side: only the order within one rank is fixed."""
    result: list[str] = []
    for _, some in groupby(lines, lambda line: _RANK.match(line) is not None):
        result += sorted(some, key=lambda line: line.partition("]")[0] if _RANK.match(line) else "")
    return tuple(result)


def _same(line: str) -> str:
    for shape, to in _SAME:
        line = shape.sub(to, line)
    return line.strip()


class Runner:
    """The world of one page."""

    def __init__(self, folder: Path, *, limits: bool) -> None:
        self.limits = limits
        self.skipped: list[str] = []
        self._limiting: list[str] = []
        self._ports: dict[str, str] = {}  # of the pages, and those of this run: other tests run beside it
        self._work = folder / "work"
        self._state = folder / "state"
        home = folder / "home"
        self._work.mkdir(parents=True)
        home.mkdir()
        shutil.copytree(ROOT / "examples", self._work / "examples")
        self._env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DIBS_", "XDG_"))
            and name not in ("COLUMNS", "NO_COLOR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PYTHONPATH")
        }
        scripts = str(Path(sys.executable).parent)
        self._env |= {
            "DIBS_HOME": str(self._state),
            "HOME": str(home),
            "PATH": f"{scripts}:{os.environ.get('PATH', '')}",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        self.shell("dibs gpus simulate 8 --model H100")

    def shell(self, command: str) -> Outcome:
        for port in _LISTENED.findall(command):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports.setdefault(port, str(free.getsockname()[1]))
        return self._run(["sh", "-c", self._moved(command)])

    def _moved(self, text: str) -> str:
        """With the ports of this run for those of the page."""
        for shown, port in self._ports.items():
            text = re.sub(rf"(?<=127\.0\.0\.1:){shown}\b", port, text)
        return text

    def _run(self, words: list[str]) -> Outcome:
        done = subprocess.run(
            words,
            cwd=self._work,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        lines = [line for line in done.stdout.rstrip().splitlines() if not line.startswith(_NO_NETWORK)]
        return Outcome(done.returncode, tuple(map(self._shown, lines)))

    def _shown(self, line: str) -> str:
        """Names and places of this machine as the pages write them."""
        from dibs.devices.names import pool_name
        from dibs.process import username

        for place, name in ((str(self._work), WORK), (str(self._state), STATE)):
            # In a table the next column stays where it was.
            gap = " " * (len(place) - len(name))
            line = re.sub(rf"{re.escape(place)}(\S*)(  )?", lambda m, n=name, g=gap: _renamed(m, n, g), line)  # type: ignore[misc]
        for shown, port in self._ports.items():
            line = re.sub(rf"\b{port}\b", shown, line)
        line = line.replace(f".com/{pool_name()}/", f".com/{HOST}/")
        # The user stands in brackets, before an age, behind its own heading or a "by"; "root" is also a field's name.
        user = re.escape(username())
        places = (
            rf"\({user}\)",
            rf"(?<=  ){user}(?=  +\d+[smhd])",
            rf"(?<=^user        ){user}$",
            rf"(?<= by ){user}(?=  |$)",
        )
        return re.sub("|".join(places), _anonymous, line)

    def step(self, step: Step) -> Outcome | None:
        """Run one command; None if this host cannot (then `skipped` says so)."""
        limiting = _LIMIT_OPTION.search(step.command) or any(name in step.command for name in self._limiting)
        if limiting and not self.limits and step.code == 0:
            self.skipped.append(f"{step.command} (limits cannot be enforced here)")
            return None
        if step.needs_engine and (missing := self._engine()):
            self.skipped.append(f"{step.command} ({missing})")
            return None
        command = step.command
        if step.needs_gpu:
            # The page may have switched its own world off, so this is asked in another one.
            command = re.sub(r"\bdibs (?:run|sandbox create)\b", "dibs explain", command)
            command = f"export DIBS_HOME={self._state}-gpu; dibs gpus simulate 8 --model H100 && {command}"
        outcome = self.shell(command)
        for _ in range(_LOOKS if _LOOKING.match(command) and step.output else 0):
            # A background command may need a moment for what the page shows.
            if outcome.code == step.code and matches(step.output, outcome.output):
                break
            outcome = self.shell(command)
        return outcome

    def _engine(self) -> str:
        """Have a Docker with an image in it; or why there is none."""
        sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
        from tests.engines import images, shared

        engine = shared.engine("docker")
        if isinstance(engine, str):
            return f"docker is not here: {engine}"
        engine.api("POST", f"/v1.41/images/{images.REFERENCE}/tag?repo=busybox&tag=1.37")
        config = self._state / "config"
        config.mkdir(exist_ok=True)
        (config / "config.toml").write_text(f'[docker]\nsocket = "{engine.socket}"\n')
        return ""

    def python(self, block: Block) -> Outcome | None:
        if _LIMIT_WORD.search(block.text) and not self.limits:
            self.skipped.append(f"the Python of line {block.line} (limits cannot be enforced here)")
            return None
        return self._run([sys.executable, "-W", "error", "-c", self._moved(block.text)])

    def save(self, block: Block) -> None:
        """A YAML block that names a file."""
        name = block.text.partition("\n")[0].removeprefix("# ")
        if block.text.startswith("# ") and re.fullmatch(r"[\w-]+\.yaml", name):
            (self._work / name).write_text(block.text)
            # The memory in a claim is that of a device: it is booked, and needs no control group.
            if _LIMIT_WORD.search(block.text) and "kind: ResourceClaim" not in block.text:
                self._limiting.append(name)

    def left(self) -> list[str]:
        """The names of the sandboxes that still run. They are ended."""
        answer = "\n".join(self.shell("dibs sandbox ls -o json").output)
        names = [str(sandbox["name"]) for sandbox in json.loads(answer)["sandboxes"]]
        if names:
            self.shell(f"dibs sandbox rm --grace 0s {' '.join(names)}")
        return names


def _renamed(match: re.Match[str], name: str, gap: str) -> str:
    return f"{name}{match.group(1)}{match.group(2) + gap if match.group(2) else ''}"


def _anonymous(match: re.Match[str]) -> str:
    return f"({USER})" if match.group().startswith("(") else USER


def walk(page: Path, runner: Runner) -> Iterator[tuple[Block, Step | None, Outcome]]:
    """Run a page from top to bottom: each command with its step, each Python block without one."""
    for block in () if page.name in ON_A_CLUSTER else blocks(page):
        if block.language == "console":
            for step in steps(block):
                outcome = runner.step(step)
                if outcome is not None:
                    yield block, step, outcome
        elif block.language == "yaml":
            runner.save(block)
        elif block.language == "python" and page.name in COMPILED_ONLY:
            compile(block.text, str(page), "exec")
        elif block.language == "python":
            outcome = runner.python(block)
            if outcome is not None:
                yield block, None, outcome


def can_limit() -> bool:
    """Whether this host lets us limit cpu, memory and processes."""
    from dibs.backends.local.cgroups import can_limit as able

    return all(able(name).ok for name in ("cpu", "memory", "pids"))
