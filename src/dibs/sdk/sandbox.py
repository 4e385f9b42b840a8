"""Sandboxes from Python, synchronous. The async twin in `aio` runs exactly this, in worker threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dibs.backends.port import Exec, Exit, LogRecord
from dibs.errors import Conflict
from dibs.home import Home
from dibs.plan.device_state import DeviceState
from dibs.receipt import Receipt
from dibs.remote.choose import open_service
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.sdk.process import Process, Result
from dibs.workloads.files import copy_from, copy_to

if TYPE_CHECKING:
    from typing import Self, Unpack

    from dibs.plan.explanation import Explanation
    from dibs.sdk.fields import Command, RequestFields, SandboxFields
    from dibs.workloads.waiter import WaitNews


def words(command: Command) -> list[str]:
    """Text is for the shell, a sequence is taken word by word."""
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def _read(request: Mapping[str, Any], **fixed: Any) -> SandboxSpec:
    return parse_spec({**{key: value for key, value in request.items() if value is not ...}, **fixed})


def run(
    command: Command,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    timeout: float | None = None,
    inherit_env: bool = True,
    home: Home | None = None,
    **request: Unpack[RequestFields],
) -> Result:
    """Run a command with devices and wait for its end.

    >>> dibs.run(["python", "train.py"], gpu="H100:2", memory="64Gi", wait="10m").code
    0
    >>> dibs.run("echo $DIBS_GPU_COUNT", gpu=2).text
    '2\\n'

    A text is for the shell, a list is taken word by word. The keyword arguments are the fields of a request (see
    `RequestFields`). A command that fails is a result, not an exception; a request that cannot be delivered is a
    `dibs.DibsError`. `timeout` is for the command itself, in seconds: then it is killed, and `dibs.Timeout` raised.
    """
    with stream(command, input=input, timeout=timeout, inherit_env=inherit_env, home=home, **request) as process:
        return process.result()


def stream(
    command: Command,
    *,
    input: bytes = b"",  # noqa: A002
    timeout: float | None = None,
    inherit_env: bool = True,
    home: Home | None = None,
    **request: Unpack[RequestFields],
) -> Process:
    """As `run`, but returns as soon as the command runs, with its output as it comes.

    >>> with dibs.stream("echo one; sleep 1; echo two", gpu=1) as process:
    ...     for piece in process:
    ...         print(piece.data)
    b'one\\n'
    b'two\\n'
    """
    spec = _read(request, command=words(command), interactive=bool(input))
    return launch(spec, input=input, timeout=timeout, inherit_env=inherit_env, home=home)


def launch(
    spec: SandboxSpec,
    *,
    input: bytes = b"",  # noqa: A002
    timeout: float | None = None,
    inherit_env: bool = True,
    home: Home | None = None,
    on_wait: Callable[[WaitNews], None] | None = None,
) -> Process:
    """`on_wait` is called while the request waits in the queue; what it raises ends the waiting."""
    service = open_service(home)
    try:
        row, session = service.launch(spec, base_env=os.environ if inherit_env else {}, on_wait=on_wait)
    except BaseException:
        service.close()
        raise

    def finish() -> Receipt:
        with service:
            service.settle(row.id)
            return service.receipt(row.id)

    try:
        return Process(session, finish, input=input, timeout=timeout)
    except BaseException:
        session.close()
        service.close()
        raise


class Sandbox:
    """A sandbox with devices that lives as long as the `with` block.

    >>> with dibs.Sandbox(gpu="H100:2", memory="64Gi") as box:
    ...     box.run(["python", "train.py"]).code
    0

    Made in `__enter__` (or by `start`), removed in `__exit__` (or by `close`). `command` is its main command; without
    one it waits for `run`. Several threads may run commands in it at the same time.
    """

    def __init__(self, *, inherit_env: bool = True, home: Home | None = None, **request: Unpack[SandboxFields]) -> None:
        fields: dict[str, Any] = {**request}
        if isinstance(fields.get("command"), str):
            fields["command"] = words(fields["command"])
        self._spec = _read(fields)  # a wrong request is refused here, before anything is made
        self._inherit = inherit_env
        self._service = open_service(home)
        self._lock = threading.RLock()  # the service is for one thread at a time; commands run outside of it
        self._id: str | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = f" {self._spec.name}" if self._spec.name else ""
        return f"<Sandbox{name} {self._id or 'not made'}: {self._spec.resources.flags()}>"

    def start(self) -> Self:
        """Make it. The `with` block does this."""
        with self._lock:
            if self._id is not None:
                raise Conflict("the sandbox is made already", field="sandbox", value=self._id)
            self._id = self._service.create(self._spec, base_env=os.environ if self._inherit else {}).id
        return self

    def close(self, grace: float | None = 1.0) -> None:
        """Stop it and remove its files. Safe to call twice."""
        with self._lock:
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
        """What was asked, planned, rendered and observed."""
        with self._lock:
            return self._service.receipt(self.id)

    @property
    def state(self) -> str:
        with self._lock:
            return self._service.sandbox(self.id).state

    def run(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run one more command in it and wait for its end.

        >>> box.run("nvidia-smi -L").text
        'GPU 0: NVIDIA H100 80GB HBM3 ...'
        >>> box.run(["python", "-c", "print(input())"], input=b"hello\\n", env={"PYTHONUTF8": "1"}).text
        'hello\\n'
        """
        with self.stream(command, input=input, env=env, workdir=workdir, timeout=timeout) as process:
            return process.result()

    def stream(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: float | None = None,
    ) -> Process:
        """As `run`, with the output as it comes: see `Process`."""
        with self._lock:
            order = Exec(command=tuple(words(command)), env=dict(env or {}), workdir=workdir)
            session = self._service.exec(self.id, order)
        return Process(session, lambda: self.receipt, input=input, timeout=timeout)

    def logs(self, *, follow: bool = False) -> Iterator[LogRecord]:
        """What its main command has written; with `follow` until it ends."""
        with self._lock:
            return self._service.logs(self.id, follow=follow)

    def copy_to(self, source: str, path: str) -> None:
        """A file or folder of the host into the sandbox: below `path` if that is a folder, else as `path`."""
        with self._lock:
            copy_to(self._service, source, self.id, path)

    def copy_from(self, path: str, target: str) -> None:
        """A file or folder of the sandbox to the host."""
        with self._lock:
            copy_from(self._service, self.id, path, target)

    def pause(self) -> None:
        """Freeze its processes. They keep their devices and memory."""
        with self._lock:
            self._service.pause(self.id)

    def resume(self) -> None:
        with self._lock:
            self._service.resume(self.id)

    def wait(self, timeout: float | None = None) -> Exit:
        """Until its main command has ended."""
        end = self._service.wait(self.id, timeout).exit
        if end is None:
            raise Conflict("the sandbox has no exit status", field="sandbox", value=self.id)
        return end


def explain(*, home: Home | None = None, **request: Unpack[SandboxFields]) -> Explanation:
    """What would happen to a request. Nothing is created.

    >>> dibs.explain(gpu="H100:9").backends[0].problems[0].code
    'NO_MATCHING_DEVICE'
    """
    with open_service(home) as service:
        return service.explain(_read(request))


def gpus(*, home: Home | None = None) -> list[DeviceState]:
    """The devices of this host and who holds them.

    >>> [state.device.name for state in dibs.gpus() if state.state == "free"]
    ['gpu-0', 'gpu-1']
    """
    with open_service(home) as service:
        return service.devices()[1]
