"""Talking with a sandbox: exec, attach and logs, through the API server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dibs.backends.kubernetes import exec_stream
from dibs.backends.kubernetes.attach import PodSession
from dibs.backends.kubernetes.exec_stream import PROTOCOL, ExecSession, NoShell, exit_of_status
from dibs.backends.kubernetes.placement import ended
from dibs.backends.kubernetes.pods import SandboxPod, exit_of, seconds
from dibs.backends.kubernetes.status import Lives
from dibs.backends.port import Exec, Exit, ExitReason, Handle, LogRecord, Output
from dibs.errors import BackendUnavailable, CommandFailed, Conflict, DibsError, InvalidRequest, Unsupported
from dibs.http import query
from dibs.kube import errors
from dibs.kube.client import ERROR, PODS, STDERR, STDIN, STDOUT
from dibs.kube.render import CONTAINER

if TYPE_CHECKING:
    from dibs.kube.channels import Channels

_ENDING = 5.0  # seconds in which a kubelet has told that a container has ended
_PULSE = 1.0  # seconds of silence after which one who follows a log is told so
_BEGINNING = 30.0  # seconds in which a command begins
_COMMAND = 60.0  # seconds for the small commands that dibs itself runs in a container
# The first process of the container: the oldest one that was not started by another process in it.
MAIN = (
    "m=; t=; for p in /proc/[0-9]*; do q=${p#/proc/}; [ $q = 1 ] && continue; "
    "read -r s < $p/stat 2>/dev/null || continue; "
    's=${s##*) }; set -- $s; [ "$2" = 0 ] || continue; shift 19; '
    'if [ -z "$t" ] || [ "$1" -lt "$t" ]; then t=$1; m=$q; fi; done; '
)


class Talks(Lives):
    """Conversations."""

    # -- exec

    def exec(self, handle: Handle, command: Exec) -> ExecSession:
        pod = self.running(handle)
        self._check_user(pod, command.user)
        words, before = exec_stream.wrapped(command)
        channels = self._opened(handle, pod, words, tty=command.tty)
        try:
            if before:
                channels.send(STDIN, before)
            return self._begun(handle, channels, command)
        except NoShell:
            channels.close()
            return self._without_shell(pod, command)
        except (BrokenPipeError, BackendUnavailable) as error:
            channels.close()
            raise self._failed(handle, error) from error
        except BaseException:
            channels.close()
            raise

    def _opened(self, handle: Handle, pod: SandboxPod, words: Sequence[str], *, tty: bool) -> Channels:
        try:
            return self._open_exec(pod, words, tty=tty)
        except BackendUnavailable as error:
            if not error.retryable:
                raise  # it may not be done at all
            raise self._failed(handle, error) from error
        except errors.Missing as error:
            raise Conflict("the sandbox is gone", value=handle.sandbox_id, code="NOT_RUNNING") from error

    def _failed(self, handle: Handle, error: BrokenPipeError | BackendUnavailable) -> DibsError:
        """A node that cannot run a command: often the container has just ended, and its status says so in a moment."""
        pod = self.wait_for(handle, ended, _ENDING)
        if ended(pod):
            return Conflict("the sandbox has just ended", value=handle.sandbox_id, code="NOT_RUNNING")
        if isinstance(error, BackendUnavailable):
            return error
        return BackendUnavailable("the node cut the line", field="exec", value=handle.sandbox_id, code="EXEC_FAILED")

    def _open_exec(self, pod: SandboxPod, words: Sequence[str], *, tty: bool) -> Channels:
        asked = query(container=CONTAINER, stdin=True, stdout=True, stderr=not tty, tty=tty)
        asked += "".join("&" + query(command=word)[1:] for word in words)
        path = PODS.path(self.namespace, pod.metadata.name, "exec") + asked
        return self.cluster().channels(path, PROTOCOL, f"create pods/exec in {self.namespace}")

    def _check_user(self, pod: SandboxPod, user: str) -> None:
        if not user:
            return
        own = pod.spec.security_context.get("runAsUser")
        group = pod.spec.security_context.get("runAsGroup")
        if own is None or user not in (str(own), f"{own}:{group}"):
            whose = "the image says which" if own is None else str(own)
            raise InvalidRequest(
                f"in a pod every command runs as the pod's user ({whose})", field="user", value=user,
                code="USER_NOT_MAPPED", remedy="leave it out, or ask for the sandbox itself with --user",
            )  # fmt: skip

    def _begun(self, handle: Handle, channels: Channels, command: Exec) -> ExecSession:
        """Read the first line, which says the process id; or why there is none."""
        out, early, until = b"", list[Output](), time.monotonic() + _BEGINNING
        last: Exit | None = None
        while b"\n" not in out and last is None:
            left = until - time.monotonic()
            found = channels.receive(max(left, 0.0))
            if not found and (channels.over or left <= 0):
                raise BackendUnavailable(
                    "the node does not answer" if left <= 0 else "the node cut the line", field="exec",
                    value=handle.sandbox_id, code="EXEC_FAILED",
                )  # fmt: skip
            for channel, data in found:
                if channel == STDOUT:
                    out += data
                elif channel == STDERR and data:
                    early.append(Output("stderr", data))
                elif channel == ERROR:
                    last = exit_of_status(data)
        first, _, rest = out.partition(b"\n")
        word = first.strip().decode("ascii", "replace")
        if word == "missing":
            raise CommandFailed("there is no such command in the sandbox", missing=True, value=command.command[0])
        if word == "workdir":
            said = b"".join(piece.data for piece in early).decode("utf-8", "replace").strip()
            raise CommandFailed(
                f"cannot enter the working directory: {said}", missing=False, value=command.workdir or ""
            )
        if not word.isdigit():
            raise BackendUnavailable(
                f"the shell of the image did not begin: {(word or (last.detail if last else ''))[:200]}", field="exec",
                value=handle.sandbox_id, code="EXEC_FAILED",
            )  # fmt: skip
        if rest:
            early.insert(0, Output("stdout", rest))

        def kill(number: int) -> None:
            self.run(handle, ("sh", "-c", f"kill -{number} -{word} 2>/dev/null || kill -{number} {word}"))

        return ExecSession(channels, tty=command.tty, early=early, kill=kill, ended=last)

    def _without_shell(self, pod: SandboxPod, command: Exec) -> ExecSession:
        """An image without a shell: the command alone, with nothing of its own."""
        if command.env or command.workdir:
            raise Unsupported(
                "the image has no shell, and Kubernetes knows neither environment nor working directory for a command",
                field="env" if command.env else "workdir", value=", ".join(command.env) or command.workdir or "",
                code="SHELL_NEEDED", remedy="leave them out, or use an image with a POSIX shell",
            )  # fmt: skip
        channels = self._open_exec(pod, command.command, tty=command.tty)

        def kill(number: int) -> None:
            raise Unsupported(
                "a signal needs a shell in the image", field="signal", value=str(number), code="SHELL_NEEDED"
            )

        # A command that cannot be run is told at once; one that runs may stay silent.
        found = channels.receive(0.5)
        early = [Output("stdout" if c == STDOUT else "stderr", d) for c, d in found if c in (STDOUT, STDERR) and d]
        for channel, data in found:
            if channel == ERROR:
                try:
                    last = exit_of_status(data)
                except NoShell:
                    last = Exit(127, ExitReason.NOT_STARTED)
                if last.reason == ExitReason.NOT_STARTED:
                    channels.close()
                    raise CommandFailed(
                        last.detail or "there is no such command", missing=True, value=command.command[0]
                    )
                return ExecSession(channels, tty=command.tty, early=early, kill=kill, ended=last)
        return ExecSession(channels, tty=command.tty, early=early, kill=kill)

    def run(
        self, handle: Handle, words: Sequence[str], data: bytes = b"", *, pod: SandboxPod | None = None
    ) -> tuple[int, bytes, bytes]:
        """A small command of dibs' own, to its end: exit code, stdout, stderr. Raises NoShell where `sh` is missing.

        `pod`: as it was seen to run a moment ago.
        """
        pod = pod or self.running(handle)
        channels = self._opened(handle, pod, words, tty=False)
        out, err, until = b"", b"", time.monotonic() + _COMMAND
        try:
            if data:
                channels.send(STDIN, data)
            channels.close_channel(STDIN)
            while True:
                found = channels.receive(max(0.0, until - time.monotonic()))
                for channel, piece in found:
                    if channel == STDOUT:
                        out += piece
                    elif channel == STDERR:
                        err += piece
                    elif channel == ERROR:
                        return exit_of_status(piece).code, out, err
                if not found:
                    raise BackendUnavailable(
                        "the node does not answer", field="exec", value=handle.sandbox_id, code="EXEC_FAILED"
                    )
        except (BrokenPipeError, BackendUnavailable) as error:
            raise self._failed(handle, error) from error
        finally:
            channels.close()

    # -- its main command

    def attach(self, handle: Handle) -> PodSession:
        pod = self.pod(handle)
        if pod is not None and exit_of(pod) is not None:
            raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        if pod is None and not self.is_to_come(handle):
            raise Conflict("the sandbox is absent", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        return PodSession(self, handle)

    def open_attach(self, pod: SandboxPod) -> Channels:
        tty = pod.main.tty
        asked = query(container=CONTAINER, stdin=True, stdout=True, stderr=not tty, tty=tty)
        path = PODS.path(self.namespace, pod.metadata.name, "attach") + asked
        return self.cluster().channels(path, PROTOCOL, f"create pods/attach in {self.namespace}")

    def kill_main(self, handle: Handle, number: int) -> None:
        """A signal to the command and its process group."""
        script = MAIN + f'[ -n "$m" ] || exit 3; kill -{number} -$m 2>/dev/null || kill -{number} $m'
        try:
            code, _, err = self.run(handle, ("sh", "-c", script))
        except NoShell as error:
            raise Unsupported(
                "a signal needs a shell in the image", field="signal", value=str(number), code="SHELL_NEEDED",
                remedy="stop it: the kubelet sends SIGTERM, then SIGKILL",
            ) from error  # fmt: skip
        if code:
            said = err.decode("utf-8", "replace").strip()
            raise BackendUnavailable(
                f"the signal could not be sent: {said}", field="signal", value=str(number), code="ENTER_FAILED"
            )

    # -- logs

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        """What the kubelet has kept. It does not tell the two streams apart: all of it comes as stdout."""
        pod = self.pod(handle)
        if follow:
            while pod is not None and not pod.runs and exit_of(pod) is None:
                yield LogRecord(0.0, "stdout", b"")
                pod = self.wait_for(handle, lambda one: one is None or one.runs or exit_of(one) is not None, _PULSE)
        if pod is None or (not pod.runs and pod.terminated is None):
            return
        last = ""
        while True:
            for stamp, data in self._log_lines(pod, follow=follow, since=last):
                if not data:
                    yield LogRecord(0.0, "stdout", b"")
                    continue
                last = stamp
                yield LogRecord(seconds(stamp[:26] + "+00:00") if len(stamp) > 26 else seconds(stamp), "stdout", data)
            if not follow:
                return
            pod = self.pod(handle)
            if pod is None or exit_of(pod) is not None:
                return  # the kubelet ends a followed log when the container has ended

    def _log_lines(self, pod: SandboxPod, *, follow: bool, since: str) -> Iterator[tuple[str, bytes]]:
        """Time and text of each line after `since`; an empty text for each second of silence."""
        asked = query(container=CONTAINER, timestamps=True, follow=True if follow else None, sinceTime=since or None)
        path = PODS.path(self.namespace, pod.metadata.name, "log") + asked
        try:
            connection, response = self.cluster().stream(path, f"get pods/log in {self.namespace}")
        except (errors.Missing, errors.Rejected):
            return  # it is gone, or it never had a log
        try:
            response.set_timeout(_PULSE if follow else 60.0)
            rest = b""
            while True:
                try:
                    piece = next(response.iter(), b"")
                except TimeoutError:
                    yield "", b""
                    continue
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield from _stamped(line + b"\n", since)
            if rest:
                yield from _stamped(rest, since)
        except OSError as error:
            raise errors.from_line(error, self.name, self.config.server) from error
        finally:
            connection.close()


def _stamped(line: bytes, since: str) -> Iterator[tuple[str, bytes]]:
    stamp, _, data = line.partition(b" ")
    text = stamp.decode("ascii", "replace")
    if text > since:  # a log starts anew at a whole second
        yield text, data
