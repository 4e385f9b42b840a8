"""A client that repeats a call, because it did not hear the answer: with the same request id it happens once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from openshell._proto import openshell_pb2 as pb
from tests.openshell.conftest import Place
from tests.openshell.test_calls import DEFAULT, ready, refused, stub

from dibs.errors import Conflict
from dibs.home import Home
from dibs.ledger import replies
from dibs.ledger.replies import Replies
from dibs.ledger.store import Ledger


def command(words: str, request_id: str) -> pb.ExecSandboxRequest:
    return pb.ExecSandboxRequest(
        workspace_scope=DEFAULT, sandbox="box", command=["sh", "-c", words], request_id=request_id
    )


def test_a_command_is_started_once(place: Place) -> None:
    mine = str(uuid4())
    client, calls = place.client(), stub(place)
    ready(client, place.spec(), "box")
    first = list(calls.ExecSandbox(command("echo x >> /tmp/runs", mine)))
    assert first[-1].exit.exit_code == 0
    with refused("ALREADY_EXISTS", "REQUEST_ID_USED"):
        list(calls.ExecSandbox(command("echo x >> /tmp/runs", mine)))
    with refused("ALREADY_EXISTS", "REQUEST_ID_USED"):
        start = pb.ExecSandboxInput(start=command("echo x >> /tmp/runs", mine))
        list(calls.ExecSandboxInteractive(iter([start])))
    with refused("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED") as caught:
        list(calls.ExecSandbox(command("echo y >> /tmp/runs", mine)))
    assert caught.error.field_violations[0].field == "request_id"
    assert client.exec("box", ["cat", "/tmp/runs"], workspace="default").stdout == "x\n"
    assert list(calls.ExecSandbox(command("true", str(uuid4()))))[-1].exit.exit_code == 0


def test_a_command_that_was_refused_may_be_repeated(place: Place) -> None:
    mine = str(uuid4())
    client, calls = place.client(), stub(place)
    ready(client, place.spec(), "box")
    client.stop("box", workspace="default")
    with refused("FAILED_PRECONDITION", "WRONG_STATE"):
        list(calls.ExecSandbox(command("true", mine)))
    client.start("box", workspace="default")
    client.wait_ready("box", workspace="default")
    assert list(calls.ExecSandbox(command("true", mine)))[-1].exit.exit_code == 0


def test_a_repeated_deletion_is_answered_and_leaves_a_namesake_alone(place: Place) -> None:
    mine = str(uuid4())
    client, calls = place.client(), stub(place)
    ready(client, place.spec(), "box")
    asked = pb.DeleteSandboxRequest(workspace_scope=DEFAULT, name="box", request_id=mine)
    first = calls.DeleteSandbox(asked)
    ready(client, place.spec(), "box")
    assert calls.DeleteSandbox(asked) == first
    assert client.get("box", workspace="default").id != first.sandbox_id
    with refused("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED"):
        calls.DeleteSandbox(pb.DeleteSandboxRequest(workspace_scope=DEFAULT, name="else", request_id=mine))
    # The id of another tenant is another id.
    with refused("NOT_FOUND"):
        stub(place, place.other).DeleteSandbox(asked)


def test_what_is_made_twice_with_one_id_is_the_same(place: Place) -> None:
    mine = str(uuid4())
    calls = stub(place)
    template = pb.SandboxWorkloadTemplate()
    template.metadata.name = "again"
    template.spec.workload.SetInParent()
    asked = pb.CreateSandboxTemplateRequest(workspace_scope=DEFAULT, template=template, request_id=mine)
    assert calls.CreateSandboxTemplate(asked) == calls.CreateSandboxTemplate(asked)
    gone = pb.DeleteSandboxTemplateRequest(workspace_scope=DEFAULT, name="again", request_id=mine)
    assert calls.DeleteSandboxTemplate(gone) == calls.DeleteSandboxTemplate(gone)


def test_a_sandbox_that_is_asked_for_again_in_another_way_is_refused_by_the_clients_name(place: Place) -> None:
    mine = str(uuid4())
    calls = stub(place)
    calls.CreateSandbox(pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(), request_id=mine))
    with refused("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED") as caught:
        calls.CreateSandbox(pb.CreateSandboxRequest(workspace_scope=DEFAULT, spec=place.spec(1), request_id=mine))
    (violation,) = caught.error.field_violations
    assert violation.field == "request_id"
    assert f'"{mine}"' in violation.description


# -- what the ledger keeps ------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    with Ledger(Home(state=tmp_path, config=tmp_path).make()) as ledger:
        yield Replies(ledger)


def test_a_call_whose_gateway_was_killed_is_known_as_begun(kept: Replies) -> None:
    assert kept.begin("t", "Stop", "1", "digest") is None
    found = kept.begin("t", "Stop", "1", "digest")
    assert found is not None
    assert found.answer is None
    kept.finish("t", "Stop", "1", b"answer")
    found = kept.begin("t", "Stop", "1", "digest")
    assert found is not None
    assert found.answer == b"answer"
    with pytest.raises(Conflict):
        kept.begin("t", "Stop", "1", "another digest")
    assert kept.begin("t", "Start", "1", "digest") is None
    assert kept.begin("u", "Stop", "1", "digest") is None


def test_an_answer_is_kept_over_midnight_and_dropped_after_a_day(
    kept: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [replies.KEPT * 20_000 - 60.0]  # a minute before midnight
    monkeypatch.setattr(time, "time", lambda: now[0])
    assert kept.begin("t", "Stop", "1", "digest") is None
    now[0] += 120
    kept.finish("t", "Stop", "1", b"answer")
    found = kept.begin("t", "Stop", "1", "digest")
    assert found is not None
    assert found.answer == b"answer"
    now[0] += replies.KEPT
    assert kept.begin("t", "Stop", "1", "digest") is None
    now[0] += 2 * replies.KEPT
    assert kept.begin("t", "Stop", "2", "digest") is None
    assert len(kept._db.rows("SELECT key FROM settings WHERE key LIKE 'reply/%'")) == 1


def test_a_call_that_was_taken_back_is_new(kept: Replies) -> None:
    assert kept.begin("t", "Stop", "1", "digest") is None
    kept.forget("t", "Stop", "1")
    assert kept.begin("t", "Stop", "1", "digest") is None
