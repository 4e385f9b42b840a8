"""`dibs run`: a command with GPUs, in the foreground or detached."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from dibs.cli.options import REQUEST, read_spec
from dibs.cli.output import say, show, show_data
from dibs.cli.verb import Option, output_format, verb
from dibs.errors import InvalidRequest, NoMatch, Problem, quoted

if TYPE_CHECKING:
    from dibs.backends.port import Session
    from dibs.workloads.service import Workloads


@verb(
    *REQUEST,
    Option("-d", "--detach", section="Life", flag=True, help="Run in the background and print the id."),
    Option(
        "--nodes", section="Groups", kind="integer", metavar="N",
        help="N equal sandboxes at once, all or none; each gets the GPUs.",
    ),
    Option(
        "--on-failure", section="Groups", metavar="end|continue",
        help="What the others do when one of --nodes fails.  [default: end]",
    ),
    Option("-t", "--tty", off="--no-tty", flag=True, help="With a terminal. Default: if you have one."),
    Option("-q", "--quiet", flag=True, help="No remarks, only the command's own output."),
    Option(
        "--receipt", to="with_receipt", flag=True, help="Print the receipt to stderr before the command's output."
    ),
    output_format(wide=False),
    rest="command",
)  # fmt: skip
def run(
    command: tuple[str, ...],
    nodes: int | None,
    on_failure: str | None,
    detach: bool,
    tty: bool | None,
    quiet: bool,
    with_receipt: bool,
    output: str,
    **values: Any,
) -> int:
    """Run COMMAND with GPUs of its own.

    The command sees exactly the GPUs that were leased for it. It runs on this host's file system, read-only except for
    a private layer and the working directory; with --image it runs in a container, with the working directory mounted
    at the same path. dibs exits with the command's exit code, and the GPUs are released however it ends. With -o json
    the output of the command is part of the answer.

    \b
    Examples:
      dibs run --gpu -- python train.py
      dibs run --gpu H100:2 --memory 64Gi --wait 1h -- ./train.sh
      dibs run --gpu nvidia:H100,A100:80GB.. -- nvidia-smi -L
      dibs run --gpu 1 --image pytorch/pytorch -- python train.py
      dibs run --device nvidia.com/gpu=0 --detach --ttl 8h -- jupyter lab
      dibs run --nodes 2 --gpu 4 -- sh -c 'echo rank $DIBS_RANK of $DIBS_NODES'
    """
    from dibs.cli.progress import Progress
    from dibs.cli.terminal import converse, is_terminal, write
    from dibs.remote.choose import open_service

    if not command and not values.get("file"):
        problem = Problem(
            "COMMAND_INVALID",
            "command",
            "",
            "no command was given",
            "write it last, as in `dibs run --gpu 1 -- python train.py`",
        )
        raise InvalidRequest(problem)
    if on_failure is not None and nodes is None:
        reason = "it is about the members of a group, and --nodes was not given"
        problem = Problem("GROUP_INVALID", "on-failure", on_failure, reason, "add --nodes N, or leave it out")
        raise InvalidRequest(problem)
    as_data = output != "table"
    use_tty = (is_terminal() and nodes is None if tty is None else tty) and not detach and not as_data
    spec = read_spec(values, command, tty=use_tty, interactive=not detach and nodes is None)
    if not spec.command:
        raise InvalidRequest(
            Problem(
                "COMMAND_INVALID",
                "command",
                "",
                "no command was given",
                "write it last, as in `dibs run --gpu 1 -- python train.py`",
            )
        )
    # Not closed in the end: closing would copy the ledger's journal into its file and wait for the disk, and the next
    # one who opens it does that as well. For the ledger it is as if we had been killed, which it takes at any point.
    service = open_service()
    progress = Progress(quiet)
    try:
        session: Session | None = None
        base_env = {} if values["clean_env"] else os.environ
        remark = None if quiet else lambda note: say(f"dibs: {note}")
        if nodes is not None:
            from dibs.cli.group_run import run_group

            return run_group(
                service, spec, nodes, base_env=base_env, progress=progress, remark=remark, on_failure=on_failure,
                detach=detach, with_receipt=with_receipt, output=output,
            )  # fmt: skip
        if detach:
            row = service.create(spec, base_env=base_env, on_wait=progress.waiting, on_note=remark)
        else:
            row, session = service.launch(spec, base_env=base_env, on_wait=progress.waiting, on_note=remark)
    except NoMatch as error:
        raise _with_hint(error, values) from None
    finally:
        progress.done()
    if with_receipt:
        from dibs.cli.receipt import receipt_lines

        say("\n".join(receipt_lines(service.receipt(row.id))))
    if session is None:
        if as_data:
            show_data(_data_of(service, row.id), output)
        else:
            show([row.name])
        return 0
    gc.enable()
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    take = (lambda item: pieces[item.stream].append(item.data)) if as_data else write
    # Closed only at the end of the command: closing says that it may go on without us. If the reader of our output is
    # gone (`| head`), our own end hangs it up.
    result = converse(session, tty=use_tty, stdin=True, kill=lambda: session.signal(9), take=take)
    session.close()
    service.settle(row.id)
    if as_data:
        said = {name: b"".join(parts).decode(errors="backslashreplace") for name, parts in pieces.items()}
        show_data({**_data_of(service, row.id), **said}, output)
    if not quiet and result.reason not in ("exited", "signalled"):
        from dibs.workloads.reconcile import describe

        say(f"dibs: {describe(result)}")
    return result.code


def _data_of(service: Workloads, sandbox_id: str) -> dict[str, Any]:
    from dibs.cli.sandbox import sandbox_data

    return sandbox_data(service, sandbox_id)


def _with_hint(error: NoMatch, values: dict[str, Any]) -> NoMatch:
    """`dibs run --gpu python train.py`: the optional value has eaten the command."""
    import shutil

    eaten = next((word for word in values["gpu"] if word.isidentifier() and shutil.which(word)), None)
    if eaten is None:
        return error
    reason = f"{quoted(eaten)} was read as a model of GPU"
    hint = Problem("GPU_MODEL_INVALID", "gpu", eaten, reason, f"to run it, write: --gpu -- {eaten} …")
    return NoMatch([hint, *error.problems])
