"""Sandboxes from Python, synchronous. The async twin in `aio` runs exactly this, in a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.port import Exec, Exit, LogRecord, Output, Session
from dibs.errors import Conflict
from dibs.home import Home
from dibs.remote.choose import open_service
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.workloads.files import copy_from, copy_to
from dibs.workloads.receipt import Receipt
from dibs.workloads.world import DeviceState

if TYPE_CHECKING:
    from dibs.plan.explanation import Explanation

Command = str | Sequence[str]


class Result(msgspec.Struct, frozen=True):
    """How a command ended, and what it said."""

    code: int
    stdout: bytes
    stderr: bytes
    exit: Exit
    receipt: Receipt

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def text(self) -> str:
        """Its stdout as text; bytes that are no UTF-8 are shown as such."""
        return self.stdout.decode(errors="backslashreplace")


def words(command: Command) -> list[str]:
    """Text is for the shell, a sequence is taken word by word."""
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def _read(request: Mapping[str, Any], **fixed: Any) -> SandboxSpec:
    return parse_spec({**{key: value for key, value in request.items() if value is not ...}, **fixed})


def run(
    command: Command,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    inherit_env: bool = True,
    home: Home | None = None,
    **request: Any,
) -> Result:
    """Run a command with devices and wait for its end.

    `request` takes the fields of the short form: gpu, device, cpu, memory, pids, env, workdir, wait, ttl, name, …
    A command that fails is a result, not an exception; a request that cannot be delivered is a DibsError.
    """
    spec = _read(request, command=words(command), interactive=bool(input))
    with open_service(home) as service:
        row, session = service.launch(spec, base_env=os.environ if inherit_env else {})
        try:
            out, err, end = collect(session, input)
        finally:
            session.close()
        service.settle(row.id)
        return Result(end.code, out, err, end, service.receipt(row.id))


def collect(session: Session, data: bytes = b"") -> tuple[bytes, bytes, Exit]:
    """Everything that a session says, until it ends."""
    if data:
        session.send(data)
    session.end_of_input()
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    while True:
        for item in session.receive():
            if isinstance(item, Output):
                pieces[item.stream].append(item.data)
            else:
                return b"".join(pieces["stdout"]), b"".join(pieces["stderr"]), item


class Sandbox:
    """A sandbox with devices that lives as long as the `with` block.

    with dibs.Sandbox(gpu="H100:2", memory="64Gi") as box:
        box.run(["python", "train.py"])

    Made in `__enter__` (or by `start`), removed in `__exit__` (or by `close`). `command` is its main command; without
    one it waits for `run`.
    """

    def __init__(self, *, inherit_env: bool = True, home: Home | None = None, **request: Any) -> None:
        if isinstance(request.get("command"), str):
            request["command"] = words(request["command"])
        self._spec = _read(request)  # a wrong request is refused here, before anything is made
        self._inherit = inherit_env
        self._service = open_service(home)
        self._id: str | None = None

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Sandbox:
        if self._id is not None:
            raise Conflict("the sandbox is made already", field="sandbox", value=self._id)
        self._id = self._service.create(self._spec, base_env=os.environ if self._inherit else {}).id
        return self

    def close(self, grace: float | None = 1.0) -> None:
        """Stop it and remove its files. Safe to call twice."""
        if self._id is not None:
            try:
                self._service.remove(self._id, grace)
            finally:
                self._id = None
                self._service.close()

    @property
    def id(self) -> str:
        if self._id is None:
            remedy = "use it in a `with` block, or call start()"
            raise Conflict("the sandbox is not made yet", field="sandbox", code="WRONG_STATE", remedy=remedy)
        return self._id

    @property
    def receipt(self) -> Receipt:
        return self._service.receipt(self.id)

    @property
    def state(self) -> str:
        return self._service.sandbox(self.id).state

    def run(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
    ) -> Result:
        """Run one more command in it and wait for its end."""
        session = self._service.exec(self.id, Exec(command=tuple(words(command)), env=dict(env or {}), workdir=workdir))
        try:
            out, err, end = collect(session, input)
        finally:
            session.close()
        return Result(end.code, out, err, end, self.receipt)

    def logs(self, *, follow: bool = False) -> Iterator[LogRecord]:
        return self._service.logs(self.id, follow=follow)

    def copy_to(self, source: str, path: str) -> None:
        """A file or folder of the host into the sandbox, below the folder `path`."""
        copy_to(self._service, source, self.id, path)

    def copy_from(self, path: str, target: str) -> None:
        """A file or folder of the sandbox to the host."""
        copy_from(self._service, self.id, path, target)

    def pause(self) -> None:
        self._service.pause(self.id)

    def resume(self) -> None:
        self._service.resume(self.id)

    def wait(self, timeout: float | None = None) -> Exit:
        """Until its main command has ended."""
        from dibs.workloads.service import exit_of

        end = exit_of(self._service.wait(self.id, timeout))
        if end is None:
            raise Conflict("the sandbox has no exit status", field="sandbox", value=self.id)
        return end


def explain(*, home: Home | None = None, **request: Any) -> Explanation:
    """What would happen to a request. Nothing is created."""
    with open_service(home) as service:
        return service.explain(_read(request))


def gpus(*, home: Home | None = None) -> list[DeviceState]:
    """The devices of this host and who holds them."""
    with open_service(home) as service:
        return service.devices()[1]
