"""What an engine says on a terminal's stream, and what of it is the command's."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dibs.backends.engines.sessions import Call, StreamSession
from dibs.backends.port import Exit, ExitReason, Output

COMPLAINT = b"Error: read unixpacket @->/proc/self/fd/11/attach: read: connection reset by peer\n"


@pytest.fixture
def ends() -> Iterator[tuple[StreamSession, socket.socket]]:
    """A session with a terminal, and the engine's end of it."""
    ours, theirs = socket.socketpair()
    call = Call(ended=lambda _: Exit(0, ExitReason.EXITED), signal=lambda _: None, resize=lambda _r, _c: None)
    session = StreamSession(ours, call, tty=True, can_send=True)
    yield session, theirs
    session.close()
    theirs.close()


def heard(session: StreamSession) -> bytes:
    """All output, to the end."""
    said = b""
    while True:
        for piece in session.receive(60.0):
            if isinstance(piece, Exit):
                return said
            assert isinstance(piece, Output)
            said += piece.data


@pytest.mark.parametrize("together", [True, False])
def test_an_engines_complaint_about_unread_input_is_no_output(
    ends: tuple[StreamSession, socket.socket], together: bool
) -> None:
    session, engine = ends
    session.end_of_input()
    if together:
        engine.sendall(b"said\r\n" + COMPLAINT)
    else:
        engine.sendall(b"said\r\n")
        assert session.receive(60.0) == [Output("stdout", b"said\r\n")]
        engine.sendall(COMPLAINT)
    engine.close()
    assert heard(session) == (b"said\r\n" if together else b"")


def test_the_same_words_are_output_if_something_comes_after_them(ends: tuple[StreamSession, socket.socket]) -> None:
    session, engine = ends
    session.end_of_input()
    engine.sendall(COMPLAINT)
    assert session.receive(0) == []
    engine.sendall(b"more\r\n")
    engine.close()
    assert heard(session) == COMPLAINT + b"more\r\n"


def test_the_same_words_are_output_if_the_input_has_not_ended(ends: tuple[StreamSession, socket.socket]) -> None:
    session, engine = ends
    engine.sendall(COMPLAINT)
    engine.close()
    assert heard(session) == COMPLAINT
