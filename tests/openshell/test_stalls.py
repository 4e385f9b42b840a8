"""Clients that stop reading, stop writing, run out of time or vanish: the process inside ends, and nothing piles up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from openshell._proto import openshell_pb2 as pb
from tests.openshell.conftest import Place
from tests.openshell.test_calls import DEFAULT, memory, processes, ready, refused, stub

from dibs.gateway.openshell.calls import Call
from dibs.gateway.problems import ClientGone

MUCH = 64 << 20  # bytes; more than every buffer on the way


def command(name: str, words: str, seconds: int = 0) -> pb.ExecSandboxRequest:
    asked = pb.ExecSandboxRequest(
        workspace_scope=DEFAULT, sandbox=name, command=["sh", "-c", words], no_login_shell=True
    )
    asked.execution_timeout.seconds = seconds
    return asked


def test_a_process_ends_in_time_though_its_client_does_not_read_and_the_exit_code_still_comes(place: Place) -> None:
    name = ready(place.client(), place.spec())
    stream = stub(place).ExecSandbox(command(name, f"head -c {MUCH} /dev/zero; sleep 4331", seconds=2), timeout=240)
    assert next(stream).stdout.data
    place.gateway.until(lambda: processes(place, name, "[h]ead") == 0)
    events = list(stream)
    assert events[-1].exit.exit_code == 124
    assert sum(len(event.stdout.data) for event in events) < MUCH


def test_what_a_killed_command_left_running_does_not_hold_the_stream_open(place: Place) -> None:
    name = ready(place.client(), place.spec())
    events = list(stub(place).ExecSandbox(command(name, "echo on; setsid sleep 4332 & wait", seconds=2), timeout=240))
    assert [event.stdout.data for event in events[:-1]] == [b"on\n"]
    assert events[-1].exit.exit_code == 124


def test_a_command_that_ended_in_time_keeps_its_exit_code_however_late_it_is_read(place: Place) -> None:
    name = ready(place.client(), place.spec())
    stream = stub(place).ExecSandbox(command(name, f"head -c {1 << 20} /dev/zero; exit 5", seconds=3), timeout=240)
    assert next(stream).stdout.data
    place.gateway.until(lambda: processes(place, name, "[h]ead") == 0)
    assert list(stream)[-1].exit.exit_code in (5, 124)  # 124 where the buffers were too small for it to end in time


def test_input_that_nothing_reads_is_held_back_at_the_client(place: Place) -> None:
    name = ready(place.client(), place.spec())
    sent = 0

    def inputs() -> Iterator[pb.ExecSandboxInput]:
        nonlocal sent
        yield pb.ExecSandboxInput(start=command(name, "echo on; sleep 4333"))
        for _ in range(MUCH >> 16):
            yield pb.ExecSandboxInput(stdin=b"x" * (1 << 16))
            sent += 1 << 16

    before = memory(place.gateway.process.pid)
    stream = stub(place).ExecSandboxInteractive(inputs(), timeout=240)
    assert next(stream).stdout.data == b"on\n"
    seen = -1
    while seen != sent:  # until it stands still
        seen = sent
        threading.Event().wait(0.5)
    assert sent < MUCH
    assert memory(place.gateway.process.pid) - before < MUCH // 2
    stream.cancel()
    place.gateway.until(lambda: processes(place, name, "433[3]") == 0)


def test_a_conversation_that_is_half_closed_and_then_cancelled_kills_its_process(anywhere: Place) -> None:
    name = ready(anywhere.client(), anywhere.spec())
    inputs = iter([pb.ExecSandboxInput(start=command(name, "cat; echo eof; sleep 4334"))])
    stream = stub(anywhere).ExecSandboxInteractive(inputs, timeout=240)
    assert next(stream).stdout.data == b"eof\n"
    stream.cancel()
    anywhere.gateway.until(lambda: processes(anywhere, name, "433[4]") == 0)


def test_an_expired_deadline_of_a_conversation_kills_its_process(anywhere: Place) -> None:
    name = ready(anywhere.client(), anywhere.spec())
    go = threading.Event()

    def inputs() -> Iterator[pb.ExecSandboxInput]:
        yield pb.ExecSandboxInput(start=command(name, "sleep 4335"))
        go.wait(200)

    with refused("DEADLINE_EXCEEDED"):
        list(stub(anywhere).ExecSandboxInteractive(inputs(), timeout=3))
    go.set()
    anywhere.gateway.until(lambda: processes(anywhere, name, "433[5]") == 0)


VANISHING = """
import os, sys
from openshell import SandboxClient
client = SandboxClient(os.environ["DIBS_TEST_ENDPOINT"], bearer_token=os.environ["DIBS_TEST_TOKEN"], timeout=60)
for _ in client.exec_stream(sys.argv[1], ["sh", "-c", "echo on; sleep 4336"], workspace="default", timeout_seconds=200):
    print("on", flush=True)
"""


def test_a_client_that_is_killed_takes_its_process_along(anywhere: Place) -> None:
    name = ready(anywhere.client(), anywhere.spec())
    env = {**os.environ, "DIBS_TEST_ENDPOINT": anywhere.endpoint, "DIBS_TEST_TOKEN": anywhere.token}
    words = [sys.executable, "-c", VANISHING, name]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "on\n"
        client.kill()
    anywhere.gateway.until(lambda: processes(anywhere, name, "433[6]") == 0)


class Written:
    """The context of a call whose writes fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def write(self, _: Any) -> None:
        raise self._error


@pytest.mark.parametrize("error", [grpc.aio.InternalError("batch"), grpc.aio.UsageError("finished")])
def test_a_failed_write_of_grpc_is_a_client_that_is_gone(error: Exception) -> None:
    import asyncio

    gateway: Any = None
    with pytest.raises(ClientGone):
        asyncio.run(Call(gateway, Written(error), None).send(None))


def test_any_other_failed_write_is_a_defect_and_not_taken_for_a_client_that_is_gone() -> None:
    import asyncio

    gateway: Any = None
    with pytest.raises(ValueError, match="not a message"):
        asyncio.run(Call(gateway, Written(ValueError("not a message")), None).send(None))
