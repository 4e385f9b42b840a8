"""dibs from Python, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import time
from pathlib import Path

import pytest

import dibs
from dibs.home import Home


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def test_the_public_names_are_exactly_these_and_all_can_be_had() -> None:
    assert sorted(dibs.__all__) == dir(dibs)
    assert all(getattr(dibs, name) is not None for name in dibs.__all__)
    with pytest.raises(AttributeError):
        _ = dibs.nonsense


def test_run_gives_code_output_and_receipt(eight_gpus: Home) -> None:
    result = dibs.run(["sh", "-c", "cat; echo $DIBS_GPU_COUNT; echo err >&2; exit 3"], gpu="H100:2", input=b"in\n")
    assert (result.code, result.text, result.stderr) == (3, "in\n2\n", b"err\n")
    assert not result.ok
    assert len(result.receipt.devices) == 2
    assert dibs.gpus()[0].state == "free"


def test_text_is_for_the_shell(home: Home) -> None:
    assert dibs.run("echo a | tr a b").text == "b\n"


def test_a_sandbox_lives_as_long_as_its_block(eight_gpus: Home, tmp_path: Path) -> None:
    with dibs.Sandbox(gpu=1, env={"GREETING": "hello"}) as box:
        assert box.run("echo $GREETING").text == "hello\n"
        assert box.run(["cat"], input=b"x" * 100_000).stdout == b"x" * 100_000
        (tmp_path / "work" / "f").write_text("data")
        box.copy_to("f", "/tmp")
        assert box.run("cat /tmp/f").text == "data"
        box.copy_from("/tmp/f", "g")
        assert (tmp_path / "work" / "g").read_text() == "data"
        box.pause()
        assert box.state == "paused"
        box.resume()
        assert dibs.gpus()[0].state == "held"
    assert dibs.gpus()[0].state == "free"
    with pytest.raises(dibs.Conflict):
        _ = box.id


def test_much_input_comes_back_whole_every_time(home: Home) -> None:
    """Input, output and the end of a command may come in one round of the loop that serves it, in any order."""
    data = b"x" * 100_000
    with dibs.Sandbox() as box:
        results = [box.run(["cat"], input=data) for _ in range(60)]
    assert [(result.code, result.stdout == data) for result in results] == [(0, True)] * 60


def test_a_wrong_request_is_refused_when_it_is_written_not_when_it_is_used() -> None:
    with pytest.raises(dibs.InvalidRequest) as caught:
        dibs.Sandbox(gpu="1.5", memory="512m")
    assert [problem.field for problem in caught.value.problems] == ["gpu", "memory"]


def test_errors_are_typed_by_what_the_caller_can_do(eight_gpus: Home) -> None:
    with dibs.Sandbox(gpu=8):
        with pytest.raises(dibs.Busy) as caught:
            dibs.run("true", gpu=1)
        assert caught.value.retryable
        with pytest.raises(dibs.Timeout):
            dibs.run("true", gpu=1, wait="100ms")
    with pytest.raises(dibs.NoMatch):
        dibs.run("true", gpu=9)
    with pytest.raises(dibs.CommandFailed):
        dibs.run(["no-such-command"])


def test_a_sandbox_whose_block_fails_is_removed(eight_gpus: Home) -> None:
    with pytest.raises(RuntimeError), dibs.Sandbox(gpu=1):
        raise RuntimeError("in the block")
    assert dibs.gpus()[0].state == "free"


def test_explain_creates_nothing(eight_gpus: Home) -> None:
    assert dibs.explain(gpu=2).backends[0].ok
    assert not dibs.explain(gpu="80Gi..").backends[0].ok
    assert all(state.state == "free" for state in dibs.gpus())


def test_the_async_twin_does_the_same(eight_gpus: Home) -> None:
    async def main() -> None:
        async with dibs.AsyncSandbox(gpu=1) as box:
            first, second = await asyncio.gather(box.run("echo 1"), dibs.run_async("echo 2", gpu=1))
            assert (first.text, second.text) == ("1\n", "2\n")
            assert (await box.receipt()).verdict == "delivered"

    asyncio.run(main())
    assert all(state.state == "free" for state in dibs.gpus())


def test_a_cancelled_start_leaves_nothing(eight_gpus: Home) -> None:
    async def main() -> None:
        async def use() -> None:
            async with dibs.AsyncSandbox(gpu=1):
                await asyncio.sleep(3600)

        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert all(state.state == "free" for state in dibs.gpus())


def test_the_twins_have_the_same_verbs() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name, value in inspect.getmembers(kind) if not name.startswith("_") and callable(value)}

    assert verbs(dibs.Sandbox) - {"start", "logs"} == verbs(dibs.AsyncSandbox) - {"receipt"}


def test_output_is_had_as_it_comes(eight_gpus: Home) -> None:
    with dibs.stream("echo one; read line; echo $line >&2; exit 5", gpu=1, input=b"two\n") as process:
        pieces = [(piece.stream, piece.data) for piece in process]
        result = process.result()
    assert pieces == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert (result.code, result.stdout, result.stderr, len(result.receipt.devices)) == (5, b"one\n", b"two\n", 1)


def test_leaving_a_stream_early_ends_its_command(eight_gpus: Home) -> None:
    with dibs.stream("echo ready; sleep 1000", gpu=8) as process:
        assert next(iter(process)).data == b"ready\n"
    assert dibs.gpus()[0].state == "free"


def test_a_command_that_takes_too_long_is_killed(eight_gpus: Home) -> None:
    with pytest.raises(dibs.Timeout) as caught:
        dibs.run("sleep 1000", gpu=1, timeout=0.2)
    assert caught.value.code == "COMMAND_TIMEOUT"
    assert "within 0.2s" in str(caught.value)
    assert dibs.gpus()[0].state == "free"
    with dibs.Sandbox() as box:
        with pytest.raises(dibs.Timeout):
            box.run("sleep 1234", timeout=0.2)
        assert "1234" not in box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text


def test_cancelling_a_run_ends_its_command(eight_gpus: Home, tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(dibs.run_async("touch started; sleep 1000", gpu=8))
        while not (tmp_path / "work" / "started").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert dibs.gpus()[0].state == "free"


def test_cancelling_a_run_that_waits_gives_up_its_place(eight_gpus: Home) -> None:
    async def main() -> None:
        task = asyncio.create_task(dibs.run_async("true", gpu=1, wait="1h"))
        while not await asyncio.to_thread(_queued):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with dibs.Sandbox(gpu=8):
        asyncio.run(main())
        while _queued():  # a gateway notices that its client is gone a moment later
            time.sleep(0.01)


def _queued() -> bool:
    from dibs.workloads.service import Workloads

    with Workloads() as service:
        return bool(service.queue())


def test_commands_of_one_sandbox_run_side_by_side(home: Home) -> None:
    """Each waits for the other, so neither ends if they are run one after the other."""

    async def main() -> None:
        async with dibs.AsyncSandbox() as box:
            meet = "touch /tmp/{0}; until [ -e /tmp/{1} ]; do sleep 0.01; done; echo {0}"
            results = await asyncio.gather(
                box.run(meet.format("a", "b"), timeout=60), box.run(meet.format("b", "a"), timeout=60)
            )
            assert [result.text for result in results] == ["a\n", "b\n"]

    asyncio.run(main())


def test_async_output_is_had_as_it_comes(home: Home) -> None:
    async def main() -> list[bytes]:
        async with dibs.stream_async("echo one; echo two") as process:
            return [piece.data async for piece in process]

    assert b"".join(asyncio.run(main())) == b"one\ntwo\n"


def test_what_is_printed_of_a_result_and_a_sandbox_is_useful(eight_gpus: Home) -> None:
    box = dibs.Sandbox(gpu="H100:2", name="lab")
    assert repr(box) == "<Sandbox lab not made: --gpu H100:2>"
    with box:
        assert repr(box) == f"<Sandbox lab {box.id}: --gpu H100:2>"
        assert repr(box.run("echo hi")) == "<Result code=0, 3 bytes out, 0 bytes err, gpu-0, gpu-1>"
        assert repr(box.receipt) == "<Receipt lab on local: delivered, gpu-0, gpu-1>"
    told = repr(dibs.explain(gpu=9, backend="local"))
    assert told == "<Explanation of --gpu 9: local NO_MATCHING_DEVICE>"
    assert repr(dibs.explain(gpu=1, backend="local")) == "<Explanation of --gpu 1: local delivered>"
