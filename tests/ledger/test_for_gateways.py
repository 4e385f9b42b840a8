"""What gateways keep in the ledger: tokens, keys, commands, snapshots, their secret. The same on both databases."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from tests.ledger.books import book, device

from dibs.errors import Conflict, NotFound
from dibs.home import Home
from dibs.ledger import idempotency, tokens
from dibs.ledger.commands import CommandRow, Commands
from dibs.ledger.idempotency import Idempotency
from dibs.ledger.secrets import gateway_secret
from dibs.ledger.snapshots import Snapshots
from dibs.ledger.store import Ledger
from dibs.ledger.tokens import Tokens
from dibs.process import myself
from dibs.sandbox import SandboxState

pytestmark = pytest.mark.usefixtures("database")


def test_a_token_is_found_by_its_secret_and_the_secret_is_nowhere(home: Home) -> None:
    with Ledger(home) as ledger:
        token, secret = Tokens(ledger).create("ci", ["sandboxes:write", "sandboxes:read"], "blue", ttl=3600)
        assert secret.startswith("dibs_")
        assert len(secret) == len("dibs_") + 43
        row = Tokens(ledger).find(secret)
        assert row is not None
        assert (row.id, row.name, row.tenant) == (token, "ci", "blue")
        assert row.scopes == {"sandboxes:read", "sandboxes:write"}
        for wrong in ("", "dibs_", secret[:-1], secret + "x", secret.upper(), "x\0y", "\udc80"):
            assert Tokens(ledger).find(wrong) is None
        kept = str(ledger._db.rows("SELECT * FROM tokens")) + str(ledger.events())
        assert secret not in kept
        assert secret.removeprefix("dibs_") not in kept


def test_a_revoked_token_is_known_as_such_and_its_name_is_free(home: Home) -> None:
    with Ledger(home) as ledger:
        every = Tokens(ledger)
        token, secret = every.create("ci", [], "")
        with pytest.raises(Conflict) as caught:
            every.create("ci", [], "")
        assert caught.value.code == "TOKEN_NAME_TAKEN"
        at = every.revoke("ci").revoked_at
        found = every.find(secret)
        assert found is not None
        assert found.revoked_at == at is not None
        assert every.revoke(token).revoked_at == at, "once more changes nothing"
        again, _ = every.create("ci", [], "")
        assert every.revoke("ci").id == again, "the one that is in use is meant"
        assert [row.id for row in every.list()] == [token, again]
        with pytest.raises(NotFound):
            every.revoke("nobody")


def test_an_expired_token_says_so(home: Home) -> None:
    with Ledger(home) as ledger:
        _, secret = Tokens(ledger).create("ci", [], "", ttl=0)
        row = Tokens(ledger).find(secret)
        assert row is not None
        assert row.expired(time.time())
        assert Tokens(ledger).list()[0].last_used_at is None, "what was refused is no use"
        assert not Tokens(ledger).list()[0].expired(row.created_at - 1)


def test_the_last_use_of_a_token_is_noted_now_and_then(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(home) as ledger:
        every = Tokens(ledger)
        _, secret = every.create("ci", [], "")
        every.find(secret)
        first = every.list()[0].last_used_at
        assert first is not None
        every.find(secret)
        assert every.list()[0].last_used_at == first, "not a write per request"
        monkeypatch.setattr(tokens, "_NOTED_EVERY", 0.0)
        every.find(secret)
        assert every.list()[0].last_used_at != first


def test_the_same_question_twice_is_answered_with_one_sandbox(home: Home) -> None:
    with Ledger(home) as ledger:
        keys = Idempotency(ledger)
        assert keys.recall("blue", "k", "hash") is None
        with ledger.writing():
            keys.remember("blue", "k", "hash", "sb-1")
        assert keys.recall("blue", "k", "hash") == "sb-1"
        assert keys.recall("red", "k", "other") is None, "a key belongs to its tenant"
        with pytest.raises(Conflict) as caught:
            keys.recall("blue", "k", "other")
        assert caught.value.code == "IDEMPOTENCY_KEY_REUSED"
        with pytest.raises(Conflict), ledger.writing():
            keys.remember("blue", "k", "hash", "sb-2")
        assert keys.recall("blue", "k", "hash") == "sb-1"


def test_a_key_is_new_again_when_it_is_old_or_its_sandbox_forgotten(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(home) as ledger:
        keys, row = Idempotency(ledger), book(ledger, device("gpu-0"))
        keys.remember("", "k", "hash", row.id)
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
            ledger.forget(row.id)
        assert keys.recall("", "k", "hash") is None
        keys.remember("", "k", "hash", "sb-2")
        monkeypatch.setattr(idempotency, "KEPT", 0.0)
        assert keys.recall("", "k", "other") is None
        keys.remember("", "k", "other", "sb-3")
        assert len(ledger._db.rows("SELECT * FROM idempotency")) == 1


def test_a_command_is_found_again_and_its_end_is_recorded_once(home: Home) -> None:
    with Ledger(home) as ledger:
        commands, row, other = Commands(ledger), book(ledger, device("gpu-0")), book(ledger, device("gpu-1"))
        first = CommandRow("c1", row.id, "sleep 5", "/tmp/c1.pid", "/tmp/c1.log", 1.0, detail=b'{"cwd":"/"}')
        commands.add(first)
        commands.add(CommandRow("c2", row.id, "true", "/p", "/l", 2.0))
        with pytest.raises(Conflict):
            commands.add(first)
        assert commands.find("c1") == commands.find("c1", sandbox_id=row.id) == first
        assert first.running
        with pytest.raises(NotFound):
            commands.find("c1", sandbox_id=other.id)
        assert [command.id for command in commands.of_sandbox(row.id)] == ["c1", "c2"]
        assert commands.update("c1", finished_at=9.0, exit_code=3)
        assert not commands.update("c1", finished_at=10.0, exit_code=0, error="too late")
        commands.set_detail("c1", b'{"x":1}')
        found = commands.find("c1")
        assert (found.finished_at, found.exit_code, found.error, found.detail) == (9.0, 3, None, b'{"x":1}')
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
            ledger.forget(row.id)
        assert commands.of_sandbox(row.id) == []


def test_a_snapshot_outlives_its_sandbox(home: Home) -> None:
    with Ledger(home) as ledger:
        row, snapshots = book(ledger, device("gpu-0")), Snapshots(ledger)
        more: Any = {"tenant": "blue", "backend": "docker", "repository": "img", "owner": myself()}
        first = snapshots.add(row.id, name="good", **more)
        second = snapshots.add(row.id, name="bad", **more)
        assert not first.abandoned
        snapshots.ready(first.id)
        snapshots.failed(second.id, "no space")
        with pytest.raises(Conflict):
            snapshots.ready(second.id)
        with ledger.writing():
            ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
            ledger.forget(row.id)
        found, total = snapshots.list(tenant="blue", limit=1)
        assert (len(found), total) == (1, 2)
        assert snapshots.list(tenant="red") == ([], 0)
        assert snapshots.list(sandbox_id=row.id)[1] == 2
        assert snapshots.find(first.id, tenant="blue").image == f"img:{first.id}"
        assert snapshots.find(second.id).reason == "no space"
        with pytest.raises(NotFound):
            snapshots.find(first.id, tenant="red")
        assert snapshots.forget(first.id)
        assert not snapshots.forget(first.id)


def test_a_snapshot_whose_maker_is_gone_is_taken_over_by_one(home: Home) -> None:
    dead = msgspec.structs.replace(myself(), started=1)
    with Ledger(home) as ledger, Ledger(home) as other:
        row = book(ledger, device("gpu-0"))
        made = Snapshots(ledger).add(row.id, tenant="", name="", backend="docker", repository="img", owner=dead)
        assert made.abandoned
        assert Snapshots(ledger).adopt(made, myself())
        assert not Snapshots(other).adopt(made, myself())
        assert not Snapshots(other).find(made.id).abandoned
        Snapshots(other).ready(made.id)
        assert not Snapshots(ledger).adopt(Snapshots(ledger).find(made.id), myself())


def test_all_gateways_of_a_ledger_have_one_secret(home: Home) -> None:
    with Ledger(home) as ledger, Ledger(home) as other:
        secret = gateway_secret(ledger)
        assert len(secret) == 32
        assert gateway_secret(other) == secret
    with Ledger(home) as later:
        assert gateway_secret(later) == secret
