"""dibs from Python, sync and async."""

from __future__ import annotations

import asyncio
import inspect
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
