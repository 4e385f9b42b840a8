"""How a verb and its options are declared: once, for both readers of a command line.

`quick` reads plain command lines with `Verb.read`, which needs nothing but this module: loading click takes as long as
three bare interpreters. `clicked` makes a click command of the same declaration, for help, completion, unusual
spellings and errors. This module must import nothing and must not guess: what it does not recognise, click reads.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would take longer to load than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Misuse(Exception):
    """Options that do not go together. Raised by a verb before it has done anything; click shows it with the usage."""


class Option:
    """One option of a verb.

    names      as on the command line; the long one gives the keyword, unless `to` does
    section    the heading in the help below which it stands
    flag       takes no value; `off` is the name that says the opposite, and then neither is None
    multiple   may be repeated; its values are a tuple
    alone      its value is optional, and this is what it means without one
    kind       "integer" or "file": click reads it
    complete   what a shell offers for it (see `names`)
    """

    def __init__(
        self,
        *names: str,
        to: str = "",
        help: str = "",
        section: str = "",
        metavar: str | None = None,
        flag: bool = False,
        off: str = "",
        multiple: bool = False,
        alone: str | None = None,
        choices: tuple[str, ...] = (),
        default: str | None = None,
        kind: str = "",
        hidden: bool = False,
        complete: Callable[..., list[Any]] | None = None,
    ) -> None:
        self.names = names
        self.to = to or next(name for name in names if name.startswith("--"))[2:].replace("-", "_")
        self.help = help
        self.section = section
        self.metavar = metavar
        self.flag = flag
        self.off = off
        self.multiple = multiple
        self.alone = alone
        self.choices = choices
        self.default = default
        self.kind = kind
        self.hidden = hidden
        self.complete = complete

    @property
    def unset(self) -> Any:
        """Its value where it was not given."""
        if self.multiple:
            return ()
        return False if self.flag and not self.off else self.default


class Verb:
    """A verb of the command line: what it does, and how it is called.

    rest       the keyword for all words from the first that is no option of ours
    members    the module with `COMMANDS`, the click commands below this verb
    """

    def __init__(self, function: Callable[..., int | None], options: Sequence[Option], rest: str, members: str) -> None:
        self.function = function
        self.options = options
        self.rest = rest
        self.members = members

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The keywords for the function; None if there is anything that only click knows how to read."""
        known = {name: option for option in self.options for name in option.names}
        values = {option.to: option.unset for option in self.options}
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                break
            if not word.startswith("-") or word == "-":
                at -= 1
                break
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            option = known.get(name)
            if option is None or option.off or option.kind or (equals and (option.flag or value.startswith("-"))):
                return None
            if option.flag:
                values[option.to] = True
                continue
            if not equals:
                following = words[at] if at < len(words) else None
                if option.alone is not None and (following is None or (following.startswith("-") and following != "-")):
                    value = option.alone
                elif following is None:
                    return None
                else:
                    value = following
                    at += 1
            if option.choices and value not in option.choices:
                return None
            values[option.to] = (*values[option.to], value) if option.multiple else value
        if self.rest:
            values[self.rest] = tuple(words[at:])
        elif at < len(words) or "--" in words:
            return None
        return values


def verb(*options: Option, rest: str = "", members: str = "") -> Callable[[Callable[..., int | None]], Verb]:
    """Declare the function below as a verb with these options."""
    return lambda function: Verb(function, options, rest, members)


def output_format(*, wide: bool = True) -> Option:
    """`-o table|wide|json|yaml`, the same for every verb."""
    choices = ("table", "wide", "json", "yaml") if wide else ("table", "json", "yaml")
    return Option("-o", "--output", choices=choices, default="table", help="How to print the answer.")
