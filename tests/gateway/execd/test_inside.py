"""Scripts in a sandbox: what they are given arrives as it is, what they say comes back."""

from __future__ import annotations

import asyncio
import signal

import msgspec
import pytest

from dibs.backends.port import Exit, Output
from dibs.gateway.execd import events, scripts
from dibs.gateway.execd.command_registry import CommandBook
from dibs.gateway.execd.commands import CommandRequest, Commands
from dibs.gateway.execd.script_runner import Inside, ScriptFailed, Started
from dibs.gateway.threads import Pool


async def output(started: Started) -> tuple[bytes, bytes, int]:
    out, err = b"", b""
    pieces = started.early
    while True:
        for piece in pieces:
            if isinstance(piece, Exit):
                await started.session.close()
                return out, err, piece.code
            if piece.stream == "stdout":
                out += piece.data
            else:
                err += piece.data
        pieces = await started.session.next()


def test_a_command_greets_and_then_speaks_for_itself(inside: Inside) -> None:
    async def main() -> None:
        started = await inside.start(scripts.COMMAND, "shell", "echo out; echo err >&2; pwd; exit 3", cwd="/bin/..")
        assert await output(started) == (b"out\n/\n", b"err\n", 3)
        assert started.hello.pid > 1

    asyncio.run(main())


def test_a_terminal_says_how_it_is_found_again(inside: Inside) -> None:
    async def main() -> None:
        started = await inside.start(scripts.TERMINAL, "true", tty=True)
        await output(started)
        assert started.hello.pid == started.hello.group > 1
        assert started.hello.start > 0

    asyncio.run(main())


def test_words_arrive_as_they_are(inside: Inside) -> None:
    async def main() -> None:
        words = ["a b", "'", '"$(id)`', "-n", "\n", "", "\udcff", "$HOME", "\\"]
        started = await inside.start(scripts.COMMAND, "argv", "printf", "[%s]", *words)
        out, _, _ = await output(started)
        assert out == "".join(f"[{word}]" for word in words).encode("utf-8", "surrogateescape")

    asyncio.run(main())


def test_a_folder_that_is_not_there_is_a_failure_before_the_start(inside: Inside) -> None:
    async def main() -> None:
        with pytest.raises(ScriptFailed) as caught:
            await inside.start(scripts.COMMAND, "shell", "true", cwd="/no/such")
        assert caught.value.word == "cwd"

    asyncio.run(main())


def test_the_variables_file_is_read_for_each_command(inside: Inside) -> None:
    async def main() -> None:
        before, _, _ = await output(await inside.start(scripts.COMMAND, "shell", "echo $A; echo $EXECD_ENVS"))
        assert before.startswith(b"\n/tmp/")
        text = """mkdir -p "$(dirname "$EXECD_ENVS")"; printf '%s\\n' "A='it is
\\$HOME'" 'B="don'"'"'t\\n"' >>"$EXECD_ENVS" """
        await output(await inside.start(scripts.COMMAND, "shell", text))
        after, err, _ = await output(await inside.start(scripts.COMMAND, "shell", 'printf "<%s><%s>" "$A" "$B"; cat'))
        assert (after, err) == (b"<it is\n$HOME><don't\n>", b"")
        given, _, _ = await output(await inside.start(scripts.COMMAND, "shell", "echo $A", env={"A": "given"}))
        assert given == b"given\n"

    asyncio.run(main())


def test_a_group_is_killed_with_all_that_belongs_to_it(inside: Inside) -> None:
    async def main() -> None:
        started = await inside.start(scripts.COMMAND, "shell", "sleep 1000 & sleep 1000; echo never")
        await inside.kill(started, signal.SIGKILL)
        out, _, code = await output(started)
        assert (out, code) == (b"", 137)
        left, _, _ = await output(
            await inside.start(scripts.COMMAND, "shell", "grep -al '^sleep.1000' /proc/[0-9]*/cmdline")
        )
        assert left == b"/proc/1/cmdline\n" or left.count(b"\n") <= 1  # the sandbox's own command is such a sleep

    asyncio.run(main())


def test_another_process_with_the_same_number_is_left_alone(inside: Inside) -> None:
    async def main() -> None:
        started = await inside.start(scripts.TERMINAL, "sleep 0.3; echo alive")
        other = type(started.hello)(started.hello.pid, started.hello.group, started.hello.start - 1, "")
        await inside.kill(type(started)(started.session, other, []), signal.SIGKILL)
        assert (await output(started))[0] == b"alive\n"

    asyncio.run(main())


def test_unread_output_blocks_the_command(inside: Inside) -> None:
    async def main() -> None:
        started = await inside.start(scripts.COMMAND, "shell", "yes | head -c 30000000; echo; echo end >&2")
        seen = sum(len(piece.data) for piece in started.early if isinstance(piece, Output) and piece.stream == "stdout")
        async with started.session as session:
            while session.exit is None:
                for piece in await session.next():
                    if isinstance(piece, Output) and piece.stream == "stdout":
                        seen += len(piece.data)
        assert seen == 30000001

    asyncio.run(main())


def test_silence_is_broken_by_pings(inside: Inside, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)

    async def main() -> None:
        answer = await Commands(CommandBook(pool)).run(inside, CommandRequest(command="sleep 0.5"))
        data = b""

        async def send(message: dict[str, object]) -> None:
            nonlocal data
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            data += body

        async def receive() -> dict[str, object]:
            await asyncio.Event().wait()
            return {}

        await answer({}, receive, send)
        kinds = [msgspec.json.decode(frame)["type"] for frame in data.split(b"\n\n") if frame]
        assert kinds[0] == "init"
        assert kinds[-1] == "execution_complete"
        assert kinds[1:-1]
        assert set(kinds[1:-1]) == {"ping"}

    asyncio.run(main())
