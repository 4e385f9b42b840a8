"""How a command ends: errors become messages and exit codes, here and nowhere else."""

from __future__ import annotations

import os
import sys

from dibs.errors import DibsError, Internal, InvalidRequest, exit_code_of, not_utf8

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def exit_code(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a command to its end. No traceback reaches a user, except for a defect of ours."""
    try:
        result = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 128 + 2  # SIGINT; the module `signal` takes longer to load than this one
    except BrokenPipeError:
        # The reader of our output has gone, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # SIGPIPE
    except DibsError as error:
        _tell(error, arguments)
        return exit_code_of(error)
    except UnicodeEncodeError as error:  # of words of the command line on their way to a gateway
        if not any("\udc80" <= char <= "\udcff" for char in error.object):
            raise
        _tell(not_utf8(error), arguments)
        return InvalidRequest.exit_code
    except OSError as error:
        if error.errno is None:
            raise
        place, remedy = str(error.filename or "system"), "see `dibs doctor`"
        _tell(Internal(error.strerror or str(error), field=place, code="SYSTEM_ERROR", remedy=remedy), arguments)
        return Internal.exit_code
    return result if isinstance(result, int) else 0


def _tell(error: DibsError, arguments: Sequence[str]) -> None:
    from dibs.cli.output import fail

    fail(error, _format_of(arguments))


def _format_of(arguments: Sequence[str]) -> str:
    """The output format that was asked for, for errors that come before or outside of a command."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for number, word in enumerate(own):
        for start in ("-o=", "-o", "--output="):
            if word.startswith(start) and word[len(start) :] in ("json", "yaml"):
                return word[len(start) :]
        if word in ("-o", "--output") and number + 1 < len(own) and own[number + 1] in ("json", "yaml"):
            return own[number + 1]
    return "table"
