"""The `dibs` command for click, with its verbs loaded on demand. Plain command lines go through `quick`."""

from __future__ import annotations

import importlib
import signal
import sys

import click

from dibs._version import __version__
from dibs.cli.characters import forgive
from dibs.cli.clicked import command
from dibs.cli.outcome import exit_code
from dibs.cli.verb import Verb
from dibs.cli.verbs import COMMANDS, help_page
from dibs.errors import quoted


class Page(click.HelpFormatter):
    """Help with its headings in bold, on a terminal that can."""

    def write_heading(self, heading: str) -> None:
        from dibs.cli.output import paint

        self.write(" " * self.current_indent + paint(f"{heading}:", "bold") + "\n")


def _first_sentence(command: click.Command, limit: int = 0) -> str:
    """What the list of a group says of a command: all of it, on two lines if need be, where click would cut it off."""
    paragraph = (command.help or "").partition("\n\n")[0].partition("\b")[0]
    sentence, full_stop, _ = " ".join(paragraph.split()).partition(". ")
    return sentence + full_stop.strip()


click.Context.formatter_class = Page
click.Command.get_short_help_str = _first_sentence  # type: ignore[method-assign, assignment]


class ReaderGone(Exception):
    """The reader of our output has closed it."""


class Verbs(click.Group):
    """A group that imports a verb only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        found = getattr(importlib.import_module(module), attribute or cmd_name)
        if isinstance(found, Verb):
            return command(cmd_name, found)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `dibs {close[0]}`?" if close else "`dibs --help` lists the commands."
            raise click.UsageError(f"there is no command {quoted(args[0])}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error  # which click would take for a failure of ours

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(help_page(sys.stdout))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, message="dibs %(version)s")
@click.option("--gateway", metavar="URL", help="Use this gateway or context (unix:///path, http://…); none: none.")
def dibs(gateway: str | None) -> None:
    """Call dibs on a GPU."""
    if gateway is not None:
        from dibs.remote.choose import name_gateway

        name_gateway(gateway)


def run(arguments: list[str]) -> int:
    """The whole command line; returns the exit code."""
    forgive(sys.stdout, sys.stderr)
    return exit_code(lambda: _call(arguments), arguments)


def _call(arguments: list[str]) -> object:
    try:
        return dibs.main(arguments, prog_name="dibs", standalone_mode=False)
    except ReaderGone:
        raise BrokenPipeError from None
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.NoSuchOption as error:
        from dibs.cli.foreign_options import offer

        offer(error, arguments).show(sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)  # click has ended the line
        return 128 + signal.SIGINT
