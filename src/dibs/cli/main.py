"""The command `dibs`: its verbs, loaded when they are called, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from dibs._version import __version__
from dibs.cli.characters import forgive
from dibs.cli.verbs import COMMANDS, help_page
from dibs.errors import DibsError, Internal, exit_code_of, quoted


class Page(click.HelpFormatter):
    """Help with its headings in bold, on a terminal that can."""

    def write_heading(self, heading: str) -> None:
        from dibs.cli.output import paint

        self.write(" " * self.current_indent + paint(f"{heading}:", "bold") + "\n")


click.Context.formatter_class = Page


class Verbs(click.Group):
    """A group that imports a verb only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `dibs {close[0]}`?" if close else "`dibs --help` lists the commands."
            raise click.UsageError(f"there is no command {quoted(args[0])}; {hint}", ctx)
        return super().resolve_command(ctx, args)

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
    """The whole command line; returns the exit code. No traceback reaches a user, except for a defect of ours."""
    from dibs.cli.output import fail

    forgive(sys.stdout, sys.stderr)
    try:
        result = dibs.main(arguments, prog_name="dibs", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except DibsError as error:
        fail(error, _format_of(arguments))
        return exit_code_of(error)
    except OSError as error:
        if error.errno is None:
            raise
        fail(
            Internal(
                error.strerror or str(error),
                field=str(error.filename or "system"),
                code="SYSTEM_ERROR",
                remedy="see `dibs doctor`",
            ),
            _format_of(arguments),
        )
        return Internal.exit_code
    return result if isinstance(result, int) else 0


def _format_of(arguments: list[str]) -> str:
    """The output format that was asked for, for errors that come before or outside of a command."""
    own: list[Any] = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for number, word in enumerate(own):
        for start in ("-o=", "-o", "--output="):
            if word.startswith(start) and word[len(start) :] in ("json", "yaml"):
                return str(word[len(start) :])
        if word in ("-o", "--output") and number + 1 < len(own) and own[number + 1] in ("json", "yaml"):
            return str(own[number + 1])
    return "table"
