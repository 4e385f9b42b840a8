"""Output: tables, colours, data formats, errors. Every verb prints through this module."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, TypeVar

from dibs.cli.verbs import colours_on
from dibs.errors import DibsError, Problem, printable
from dibs.patterns import lazy_pattern

F = TypeVar("F", bound=Callable[..., Any])
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}
_GAP = "  "
_OURS = lazy_pattern("(\033\\[(?:0|" + "|".join(_COLOURS.values()) + ")m)")


def output_option(*, wide: bool = True) -> Callable[[F], F]:
    """`-o table|wide|json|yaml`, for verbs that are written for click."""
    from dibs.cli.clicked import option
    from dibs.cli.verb import output_format

    return option(output_format(wide=wide))


def coloured(stream: IO[str]) -> bool:
    return colours_on(stream)


def clean(text: str, stream: IO[str]) -> str:
    """What came from outside (an engine, a registry, a label) must not steer the terminal. Our own colours stay.

    Every verb's tables and messages pass here. The output of a sandbox's command does not: `run`, `exec` and `logs`
    pass it on as it is, as other tools do.
    """
    if "\033" not in text or not coloured(stream):
        return printable(text, keep="\n\t")
    pieces = _OURS.split(text)  # every second one is a colour
    return "".join(piece if number % 2 else printable(piece, keep="\n\t") for number, piece in enumerate(pieces))


def paint(text: str, colour: str, stream: IO[str] | None = None) -> str:
    """Text in a colour, if the stream is a terminal that wants colours."""
    if not colour or not coloured(stream or sys.stdout):
        return text
    text = printable(text, keep="\n\t")
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def terminal_width() -> int:
    """The columns that a table may take: the terminal's; plenty where the output goes to a file."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        import shutil

        return shutil.get_terminal_size((100, 24)).columns
    return 10_000


Cell = str | tuple[str, str]  # text, or text with a colour


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: frozenset[str] = frozenset(),
    whole: bool = False,
) -> list[str]:
    """Aligned columns. If they are wider than the terminal, the widest text columns give way, with an ellipsis.

    Columns that do not fit even then stand on further lines below the first. `whole`: nothing is cut.
    """
    body = [[(printable(text), colour) for text, colour in map(_cell, row)] for row in rows]
    widths = [len(header) for header in headers]
    for row in body:
        for column, (text, _) in enumerate(row):
            widths[column] = max(widths[column], len(text))
    if not whole:
        _give_way(widths)
    decks = _decks(widths)
    lines: list[str] = []
    for row in [[(header, "bold") for header in headers], *body]:
        for number, deck in enumerate(decks):
            cells = (
                paint(_fit(text, widths[column], headers[column] in right), colour)
                for column, (text, colour) in ((column, row[column]) for column in deck)
            )
            line = _GAP.join(cells).rstrip()
            if line or not number:
                lines.append(" " * (widths[0] + len(_GAP)) * bool(number) + line)
    return lines


_NAME_WIDTH = 24


def _give_way(widths: list[int]) -> None:
    """Make the widest columns narrower until all fit; the first one, which names the row, only if it is very wide."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - terminal_width()
    columns = range(1 if widths[0] <= _NAME_WIDTH else 0, len(widths))
    while excess > 0 and columns:
        widest = max(columns, key=lambda column: widths[column])
        if widths[widest] <= 12:
            break  # narrower than this is not readable
        second = max((widths[column] for column in columns if column != widest), default=0)
        cut = min(excess, max(1, widths[widest] - 12), max(1, widths[widest] - second))
        widths[widest] -= cut
        excess -= cut


def _decks(widths: list[int]) -> list[range]:
    """Which columns stand on the same line: as many as fit. Further lines are indented by the first column."""
    decks, start, used = [], 0, 0
    for column, width in enumerate(widths):
        needed = width + (len(_GAP) if column > start else 0)
        if column > start and used + needed > terminal_width():
            decks.append(range(start, column))
            start, used, needed = column, widths[0] + len(_GAP), width
        used += needed
    return [*decks, range(start, len(widths))]


def in_short(names: Sequence[str]) -> str:
    """Devices by their names, three or more in a row as a range: gpu-0..7, gpu-9."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}..{run[-1][len(_stem(run[-1])) :]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def _follows(one: str, other: str) -> bool:
    """gpu-8 after gpu-7. A number that is written in another way (gpu-07) is a name."""
    first, second = one[len(_stem(one)) :], other[len(_stem(other)) :]
    if _stem(one) != _stem(other) or not first or not second:
        return False
    return str(int(first)) == first and str(int(first) + 1) == second


def _cell(cell: Cell) -> tuple[str, str]:
    return cell if isinstance(cell, tuple) else (cell, "")


def _fit(text: str, width: int, right: bool) -> str:
    if len(text) > width:
        text = text[: width - 1] + "…"
    return text.rjust(width) if right else text.ljust(width)


def show(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(clean(line, sys.stdout) + "\n" for line in lines))
    sys.stdout.flush()


def show_data(value: Any, form: str, *, own: bool = True) -> None:
    """The answer as data. Fields that are unset are left out; nothing else is.

    `own`: all names in it are ours. Then what the ledger calls a moment or a user has the name and the form that all
    answers have: see `answers`, which describes them.
    """
    import msgspec

    plain = msgspec.to_builtins(value)
    sys.stdout.write(as_text(_in_one_form(plain) if own else plain, form))


def moment(seconds: float) -> str:
    """A time as all data has it: ISO 8601, in UTC, with milliseconds."""
    millis = int(seconds * 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(millis // 1000)) + f".{millis % 1000:03}Z"


_MOMENTS = frozenset(
    ("at", "since", "created_at", "changed_at", "started_at", "ended_at", "finished_at", "expires_at", "revoked_at",
     "last_used_at", "called_at")
)  # fmt: skip


_NAMES = {"username": "user", "sandbox_name": "sandbox"}
_VERBATIM = frozenset(("attributes", "labels", "env", "asked", "request", "rendered", "claim"))  # names of users' own


def _in_one_form(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {
            _NAMES.get(key, key): moment(inner)
            if key in _MOMENTS and isinstance(inner, float)
            else inner
            if key in _VERBATIM
            else _in_one_form(inner)
            for key, inner in plain.items()
        }
    return [_in_one_form(inner) for inner in plain] if isinstance(plain, list) else plain


def as_text(value: Any, form: str) -> str:
    import msgspec

    plain = msgspec.to_builtins(value)
    if form == "yaml":
        import yaml

        text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
        if printable(text, keep="\n") != text:
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=100)
        return text
    return ascii_controls(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()) + "\n"


def ascii_controls(json: str) -> str:
    """JSON may hold control characters beyond ASCII as they are; as escapes they mean the same."""
    if printable(json, keep="\n") == json:
        return json

    def escaped(char: str) -> str:
        if char == "\n" or char.isprintable():
            return char
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))

    return "".join(map(escaped, json))


def say(text: str) -> None:
    """A remark beside the output: to stderr, so that it never mixes with a program's own output."""
    sys.stdout.flush()  # what was printed before stands before it, also in one file
    # Not click.echo: it takes a terminal that says ASCII for one that means UTF-8.
    sys.stderr.write(clean(text, sys.stderr) + "\n")
    sys.stderr.flush()


def fail(error: DibsError, form: str = "table") -> None:
    """A refusal or failure, with what to do next. To stderr, in the format that was asked for."""
    if form in ("json", "yaml"):
        from msgspec.structs import replace

        # A value may be what it is refused for: bytes that are no text.
        texts = [problem.value.encode("utf-8", "backslashreplace").decode() for problem in error.problems]
        problems = [replace(problem, value=text) for problem, text in zip(error.problems, texts, strict=True)]
        data = {"error": type(error).__name__, "retryable": error.retryable, "problems": problems}
        sys.stderr.write(as_text(data, form))
        return
    for problem in error.problems:
        for line in problem_lines(problem, "dibs: ", sys.stderr):
            say(line)


def problem_lines(problem: Problem, head: str, stream: IO[str] | None = None) -> list[str]:
    """A problem for a person: what, why, its code; and below it what to do. Long ones are folded under their start."""
    subject = (
        f'{problem.field} "{_one_line(problem.value)}": ' if problem.value else problem.field and f"{problem.field}: "
    )
    indent = " " * len(head)
    first, *shown = problem.reason.split("\n")  # an expression with a caret below it keeps its lines
    lines = fold(f"{subject}{first}  [{problem.code}]", indent)
    lines += [f"{indent}{line}" for line in shown]
    lines[0] = paint(head, "red", stream) + lines[0][len(head) :]
    tag = f"[{problem.code}]"
    lines = [line.replace(tag, paint(tag, "dim", stream)) for line in lines]
    if problem.remedy:
        remedy = fold(problem.remedy, indent + "  ")
        remedy[0] = f"{indent}{paint('→', 'green', stream)} {remedy[0].lstrip()}"
        lines += remedy
    return lines


def fold(text: str, indent: str) -> list[str]:
    """Text as lines below each other. A word that does not fit, such as a path, stands on its own line, indented less:
    a terminal would break it in the middle."""
    import textwrap

    width = max(terminal_width(), len(indent) + 40)
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line if len(line) <= width else _shifted(line, width) for line in lines] or [indent]


def _shifted(line: str, width: int) -> str:
    text = line.lstrip()
    return " " * max(2, width - len(text)) + text


def _one_line(text: str) -> str:
    return printable(text[:200])


def simulated_banner() -> str:
    return paint("simulated GPUs: not hardware; `dibs gpus simulate off` ends it", "yellow")
