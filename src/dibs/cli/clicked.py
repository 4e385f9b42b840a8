"""Click commands of declared verbs (see `verb`): the complete reader of a command line, with help and completion.

`main` asks for them, and verbs that are written for click take their shared options from here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dibs.cli.verb import Misuse, Option, Verb

F = TypeVar("F", bound=Callable[..., Any])
_KINDS = {"integer": click.INT, "file": click.Path(dir_okay=False)}
_LAST = "Output"  # the section of options that name none


def option(declared: Option) -> Callable[[F], F]:
    """The decorator that click would have been given for it."""
    settings: dict[str, Any] = {
        "help": declared.help or None,
        "metavar": declared.metavar,
        "hidden": declared.hidden,
        "multiple": declared.multiple,
        "shell_complete": declared.complete,
    }
    names = list(declared.names)
    if declared.off:
        names[-1] += f"/{declared.off}"
        settings["default"] = None
    elif declared.flag:
        settings["is_flag"] = True
    elif declared.alone is not None:
        settings |= {"is_flag": False, "flag_value": declared.alone}
    if declared.choices:
        settings |= {"type": click.Choice(declared.choices), "default": declared.default, "show_default": True}
    elif declared.kind:
        settings["type"] = _KINDS[declared.kind]
    return click.option(*names, declared.to, cls=SectionedOption, section=declared.section, **settings)


def options(*declared: Option) -> Callable[[F], F]:
    """All of them, for a verb that is written for click."""

    def decorate(function: F) -> F:
        for one in reversed(declared):
            function = option(one)(function)
        return function

    return decorate


def command(name: str, verb: Verb) -> click.Command:
    """The verb as click has it."""

    def call(**values: Any) -> int | None:
        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            _refuse_before_a_member(context)
            return None
        try:
            return verb.function(**values)
        except Misuse as error:
            raise click.UsageError(str(error), context) from None

    call.__doc__ = verb.function.__doc__
    function = options(*verb.options)(call)
    if verb.members:
        group = click.group(name, invoke_without_command=True)(function)
        for member in importlib.import_module(verb.members).COMMANDS:
            group.add_command(member)
        return group
    if verb.rest:
        function = click.argument(verb.rest, nargs=-1, type=click.UNPROCESSED)(function)
    return click.command(name, cls=SectionedCommand, context_settings={"allow_interspersed_args": False})(function)


def _refuse_before_a_member(context: click.Context) -> None:
    """An option of the verb itself, before one of its members, would not be heard."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{parameter.opts[-1]} does not go together with {context.invoked_subcommand}", context
            )


class SectionedOption(click.Option):
    """An option that knows the heading below which it stands."""

    def __init__(self, *words: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command with many options: its help has them below headings, in the order in which these first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown: dict[str, list[tuple[str, str]]] = {}
        last: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                section = getattr(parameter, "section", "")
                (shown.setdefault(section, []) if section else last).append(record)
        for section, records in (*shown.items(), (_LAST, last)):
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=26)
