"""The command `dibs`: its verbs, loaded when they are called, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from typing import Any

import click

from dibs._version import __version__
from dibs.errors import DibsError, Internal, exit_code_of, quoted

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "run": ("dibs.cli.run", "Run a command with GPUs, in a sandbox of its own."),
        "sandbox": ("dibs.cli.sandbox", "Make, use and remove sandboxes that stay."),
        "ps": ("dibs.cli.sandbox:ls", "List the sandboxes (sandbox ls)."),
        "exec": ("dibs.cli.sandbox:exec_", "Run one more command in a sandbox."),
        "logs": ("dibs.cli.sandbox:logs", "The output of a sandbox."),
        "cp": ("dibs.cli.sandbox:cp", "Copy files into a sandbox or out of it."),
        "wait": ("dibs.cli.sandbox:wait", "Wait until sandboxes have ended."),
        "stop": ("dibs.cli.sandbox:stop", "Stop a sandbox; its log and receipt stay."),
    },
    "See": {
        "gpus": ("dibs.cli.gpus", "The GPUs of this host, and who holds them."),
        "leases": ("dibs.cli.leases", "What is held, and who waits for it."),
        "queue": ("dibs.cli.queue", "Who waits; and how to take somebody out."),
        "explain": ("dibs.cli.explain", "What would happen to a request, and why. Creates nothing."),
        "receipt": ("dibs.cli.receipt", "The proof of what a sandbox was given."),
        "claims": ("dibs.cli.claims", "Device claims: check them, solve them, keep them."),
    },
    "Serve": {
        "serve": ("dibs.cli.serve", "Serve sandboxes over HTTP, to dibs and OpenSandbox clients."),
        "token": ("dibs.cli.token", "Who may call a gateway: make, list and revoke tokens."),
        "host": ("dibs.cli.host", "One service for everybody on this machine."),
        "context": ("dibs.cli.context", "Gateways by name, and which of them is used."),
    },
    "Look after": {
        "doctor": ("dibs.cli.doctor", "Examine this host; every finding comes with its fix."),
        "cdi": ("dibs.cli.cdi", "The CDI specs of this host: read, check, inject."),
        "table": ("dibs.cli.table", "What is delivered and what is refused, field by field."),
        "completion": ("dibs.cli.completion", "Completion for bash, zsh or fish."),
    },
}
_COMMANDS = {name: entry for section in _SECTIONS.values() for name, entry in section.items()}


class Page(click.HelpFormatter):
    """Help with its headings in bold, on a terminal that can."""

    def write_heading(self, heading: str) -> None:
        from dibs.cli.output import paint

        self.write(" " * self.current_indent + paint(f"{heading}:", "bold") + "\n")


click.Context.formatter_class = Page


class Verbs(click.Group):
    """A group that imports a verb only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean `dibs {close[0]}`?" if close else "`dibs --help` lists the commands."
            raise click.UsageError(f"there is no command {quoted(args[0])}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(
            "dibs: call dibs on a GPU.\n\n"
            "Ask for accelerators once. Get them exclusively and with a receipt, or be told\n"
            "exactly why not. Nothing is booked twice, nothing is dropped silently.\n\n"
            "  dibs run --gpu 1 -- python train.py        one GPU, any\n"
            "  dibs run --gpu H100:2 --wait 10m -- ./job  two H100; queue while they are held\n"
            "  dibs explain --gpu 80GB..:4                would that work? why not?\n"
            "  dibs gpus                                  who holds what\n"
            "  dibs gpus simulate 8 --model H100          no GPU here? simulate some\n"
        )
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry[1]) for name, entry in commands.items()], col_max=14)
        with formatter.section("Options"):
            options = [
                ("--gateway URL", "Use this gateway, or context; `none`: no gateway."),
                ("--version", "Show the version."),
                ("-h, --help", "Show this page."),
            ]
            formatter.write_dl(options, col_max=14)
        formatter.write(
            "\n`dibs COMMAND --help` says more. `-o json|yaml` gives any answer as data.\n"
            "Exit codes: 0 done · 1 a check failed · 2 usage · 80 invalid · 81 unsupported ·\n"
            "82 no match · 83 busy · 84 unhealthy · 86 backend · 87 mismatch · 88 conflict ·\n"
            "89 not found · 90 timeout · 91 ledger · 126/127 command · else the command's.\n"
        )


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

    for stream in (sys.stdout, sys.stderr):
        # A terminal whose encoding lacks a character shows its escape; it is never a reason to fail.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    try:
        result = dibs.main(arguments, prog_name="dibs", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has gone; what is left has nobody to go to.
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
