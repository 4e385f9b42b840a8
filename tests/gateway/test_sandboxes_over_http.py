"""The life of a sandbox over the native API."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import RunningGateway

ROOT = "/api/v1/sandboxes"


@pytest.fixture
def lab(served: RunningGateway) -> Iterator[str]:
    """A running sandbox with two GPUs; its id."""
    reply = served.ask("POST", ROOT, {"gpu": 2, "labels": {"team": "red"}})
    assert reply.status == 202, reply.body
    assert reply.headers["location"] == f"{ROOT}/{reply.data['id']}"
    yield served.sandbox(reply.data["id"], "running")["id"]
    served.ask("DELETE", f"{ROOT}/{reply.data['id']}?grace=0s")


def tar_of(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_what_was_asked_is_delivered_with_a_receipt(served: RunningGateway, lab: str) -> None:
    data = served.ask("GET", f"{ROOT}/{lab}").data
    assert (data["state"], len(data["devices"]), data["request"]) == ("running", 2, {"gpu": "2"})
    receipt = served.ask("GET", f"{ROOT}/{lab}/receipt").data
    assert receipt["verdict"] == "delivered"
    seen = served.ask("POST", f"{ROOT}/{lab}/exec", {"command": ["sh", "-c", "ls /dev | grep -c simgpu"]}).data
    assert seen == {"exit_code": 0, "stdout": "2\n", "stderr": "", "reason": "exited"}


def test_nothing_internal_is_in_an_answer(served: RunningGateway, lab: str) -> None:
    text = served.ask("GET", f"{ROOT}/{lab}").body + served.ask("GET", ROOT).body
    for word in (b"handle", b"folder", b"owner", b"pid_namespace", str(served.home.state).encode()):
        assert word not in text


def test_values_of_variables_are_hidden(served: RunningGateway) -> None:
    made = served.ask("POST", ROOT, {"command": ["true"], "env": {"KEY": "s3cret"}, "base_env": {"MORE": "s3cret"}})
    done = served.sandbox(made.data["id"], "exited")
    assert "s3cret" not in json.dumps(done)
    assert b"s3cret" not in served.ask("GET", f"{ROOT}/{done['id']}/receipt").body
    assert "s3cret" not in served.log


def test_a_command_gets_its_input_user_folder_and_variables(served: RunningGateway, lab: str) -> None:
    body = {"command": ["sh", "-c", "cat; pwd; echo $A; exit 7"], "stdin": "in\n", "workdir": "/tmp", "env": {"A": "b"}}
    data = served.ask("POST", f"{ROOT}/{lab}/exec", body).data
    assert (data["exit_code"], data["stdout"]) == (7, "in\n/tmp\nb\n")


def test_a_command_that_takes_too_long_is_killed(served: RunningGateway, lab: str) -> None:
    reply = served.ask("POST", f"{ROOT}/{lab}/exec", {"command": ["sleep", "600.25"], "timeout": "100ms"})
    assert (reply.status, reply.data["code"]) == (504, "COMMAND_TIMEOUT")
    served.until(lambda: not _sleeping(served, lab))


def _sleeping(served: RunningGateway, ref: str) -> list[str]:
    body = {"command": ["sh", "-c", "for f in /proc/[0-9]*; do tr '\\0' ' ' < $f/cmdline; echo; done 2>/dev/null"]}
    lines = served.ask("POST", f"{ROOT}/{ref}/exec", body).data["stdout"].splitlines()
    return [line for line in lines if line.startswith("sleep 600")]


def test_a_missing_command_is_reported(served: RunningGateway, lab: str) -> None:
    reply = served.ask("POST", f"{ROOT}/{lab}/exec", {"command": ["no-such-command"]})
    assert (reply.status, reply.data["code"]) == (409, "COMMAND_NOT_FOUND")


def test_files_go_in_and_out(served: RunningGateway, lab: str) -> None:
    big = bytes(range(256)) * 20000
    assert served.ask("PUT", f"{ROOT}/{lab}/files?path=/tmp", tar_of(**{"a.txt": b"one", "big": big})).status == 204
    reply = served.ask("GET", f"{ROOT}/{lab}/files?path=/tmp/big")
    assert reply.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as archive:
        file = archive.extractfile("big")
        assert file is not None
        assert file.read() == big
    missing = served.ask("GET", f"{ROOT}/{lab}/files?path=/no/such")
    assert missing.status in (400, 404)
    assert missing.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["relative", "/../etc", "/tmp/../../etc", "", "/a%00b"])
def test_a_path_that_leads_elsewhere_is_refused(served: RunningGateway, lab: str, path: str) -> None:
    for method, body in (("GET", None), ("PUT", tar_of(x=b"1"))):
        assert served.ask(method, f"{ROOT}/{lab}/files?path={path}", body).status == 400


@pytest.mark.parametrize("name", ["/etc/escaped", "../escaped", "a/../../escaped"])
def test_an_archive_that_leads_outside_is_refused(served: RunningGateway, lab: str, name: str) -> None:
    reply = served.ask("PUT", f"{ROOT}/{lab}/files?path=/tmp", tar_of(**{name: b"1"}))
    assert (reply.status, reply.data["error"]) == (400, "InvalidRequest")


def test_what_is_no_archive_is_refused(served: RunningGateway, lab: str) -> None:
    assert served.ask("PUT", f"{ROOT}/{lab}/files?path=/tmp", b"no tar" * 500).status == 400


def test_labels_and_ttl_change_and_a_null_removes(served: RunningGateway, lab: str) -> None:
    data = served.ask("PATCH", f"{ROOT}/{lab}", {"labels": {"team": None, "run": "7"}, "ttl": "1h"}).data
    assert data["labels"] == {"run": "7"}
    assert data["expires_at"] > data["created_at"] + 3000
    assert "expires_at" not in served.ask("PATCH", f"{ROOT}/{lab}", {"ttl": None}).data


def test_pause_and_resume_and_the_wrong_state_is_a_conflict(served: RunningGateway, lab: str) -> None:
    assert served.ask("POST", f"{ROOT}/{lab}/pause").data["state"] == "paused"
    again = served.ask("POST", f"{ROOT}/{lab}/pause")
    assert (again.status, again.data["code"]) == (409, "WRONG_STATE")
    assert served.ask("POST", f"{ROOT}/{lab}/resume").data["state"] == "running"


def test_the_list_is_filtered_and_paged(served: RunningGateway) -> None:
    ids = []
    for number in range(3):
        made = served.ask("POST", ROOT, {"command": ["true"], "labels": {"n": str(number), "test": "pages"}})
        ids.append(made.data["id"])
    for ref in ids:
        served.sandbox(ref, "exited")
    page = served.ask("GET", f"{ROOT}?all=true&label=test=pages&page_size=2").data
    assert ([one["id"] for one in page["sandboxes"]], page["total"]) == (ids[::-1][:2], 3)
    page = served.ask("GET", f"{ROOT}?all=true&label=test=pages&page_size=2&page=2").data
    assert [one["id"] for one in page["sandboxes"]] == [ids[0]]
    one = served.ask("GET", f"{ROOT}?state=exited&label=test=pages&label=n=1").data
    assert [found["id"] for found in one["sandboxes"]] == [ids[1]]
    assert served.ask("GET", f"{ROOT}?label=test=pages").data["total"] == 0


def test_the_same_key_makes_one_sandbox_and_another_body_is_a_conflict(served: RunningGateway) -> None:
    headers = {"Idempotency-Key": "build/42"}
    first = served.ask("POST", ROOT, {"command": ["true"]}, headers=headers)
    second = served.ask("POST", ROOT, {"command": ["true"]}, headers=headers)
    assert first.data["id"] == second.data["id"]
    assert second.headers["idempotency-replayed"] == "true"
    other = served.ask("POST", ROOT, {"command": ["false"]}, headers=headers)
    assert (other.status, other.data["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")
    bad = served.ask("POST", ROOT, {"command": ["true"]}, headers={"Idempotency-Key": "a b"})
    assert (bad.status, bad.data["code"]) == (400, "IDEMPOTENCY_KEY_INVALID")


def test_busy_devices_are_a_refusal_or_with_wait_a_place_in_the_queue(served: RunningGateway) -> None:
    all_of_them = served.ask("POST", ROOT, {"gpu": 8, "command": ["sleep", "600"]}).data["id"]
    busy = served.ask("POST", ROOT, {"gpu": 1})
    assert (busy.status, busy.data["error"], busy.data["retryable"]) == (409, "Busy", True)
    queued = served.ask("POST", ROOT, {"gpu": 1, "wait": "1h", "command": ["true"]})
    assert (queued.status, queued.data["state"]) == (202, "queued")
    ref = queued.data["id"]
    waiting = served.ask("GET", f"{ROOT}/{ref}").data["waiting"]
    assert (waiting["place"], waiting["length"]) == (1, 1)
    assert [one["sandbox_id"] for one in served.ask("GET", "/api/v1/queue").data["tickets"]] == [ref]
    late = served.ask("GET", f"{ROOT}/{ref}/wait?timeout=0.1&until=ready").data
    assert late["state"] == "queued"
    served.ask("DELETE", f"{ROOT}/{all_of_them}?grace=0s")
    assert served.ask("GET", f"{ROOT}/{ref}/wait?timeout=30").data["exit"]["code"] == 0


def test_a_queued_sandbox_can_be_removed(served: RunningGateway) -> None:
    holder = served.ask("POST", ROOT, {"gpu": 8, "command": ["sleep", "600"]}).data["id"]
    ref = served.ask("POST", ROOT, {"gpu": 1, "wait": "1h"}).data["id"]
    assert served.ask("DELETE", f"{ROOT}/{ref}").data["state"] == "exited"
    assert served.ask("GET", "/api/v1/queue").data["length"] == 0
    served.ask("DELETE", f"{ROOT}/{holder}?grace=0s")


def test_removing_what_is_still_being_made_waits_for_it(served: RunningGateway) -> None:
    ref = served.ask("POST", ROOT, {"gpu": 1, "command": ["sleep", "600"]}).data["id"]
    reply = served.ask("DELETE", f"{ROOT}/{ref}?grace=0s")
    assert (reply.status, reply.data["state"]) == (200, "exited")


def test_a_refusal_has_every_problem_and_changes_nothing(served: RunningGateway) -> None:
    before = served.ask("GET", f"{ROOT}?all=true").data["total"]
    reply = served.ask("POST", ROOT, {"gpu": "1.5", "memory": "4GB", "name": "No", "frobnicate": 1})
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/problem+json"
    assert {one["field"] for one in reply.data["problems"]} == {"gpu", "memory", "name", "frobnicate"}
    assert served.ask("GET", f"{ROOT}?all=true").data["total"] == before


def test_explain_creates_nothing(served: RunningGateway) -> None:
    before = served.ask("GET", f"{ROOT}?all=true").data["total"]
    data = served.ask("POST", "/api/v1/explain", {"gpu": 9}).data
    assert not any(backend["ok"] for backend in data["backends"])
    assert served.ask("GET", f"{ROOT}?all=true").data["total"] == before


def test_a_taint_keeps_a_device_and_goes_again(served: RunningGateway) -> None:
    tainted = served.ask("POST", "/api/v1/devices/gpu-7/taints", {"taint": "maintenance=fan"}).data
    assert (tainted["name"], tainted["state"]) == ("gpu-7", "tainted")
    assert served.ask("DELETE", "/api/v1/devices/gpu-7/taints?key=maintenance").data == {"removed": 1}
    assert served.ask("POST", "/api/v1/devices/gpu-77/taints", {"taint": "maintenance"}).status == 404


def test_claims_are_checked_solved_and_kept(served: RunningGateway) -> None:
    claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pair"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.dibs", "count": 2}}]}},
    }
    check = served.ask("POST", "/api/v1/claims/check", {"claim": claim}).data
    if not check["ok"]:  # the class of this catalogue has another name
        claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
        check = served.ask("POST", "/api/v1/claims/check", {"claim": claim}).data
    assert check == {"ok": True, "problems": []}
    broken = served.ask("POST", "/api/v1/claims/check", {"claim": {**claim, "spec": {"devices": 1}}}).data
    assert broken["ok"] is False
    assert broken["problems"]
    assert served.ask("POST", "/api/v1/claims/solve", {"claim": claim}).status == 200
    assert served.ask("PUT", "/api/v1/claims/pair", claim).status == 200
    assert served.ask("GET", "/api/v1/claims").data == {"claims": ["pair"]}
    assert served.ask("GET", "/api/v1/claims/pair").data["metadata"] == {"name": "pair"}
    assert served.ask("DELETE", "/api/v1/claims/pair").status == 204
    assert served.ask("GET", "/api/v1/claims/pair").status == 404
    assert served.ask("GET", "/api/v1/claims/..%2f..%2fconfig").status == 404


def test_capabilities_are_the_delivery_table(served: RunningGateway) -> None:
    from dibs.plan.delivery import table

    data = served.ask("GET", "/api/v1/capabilities").data
    assert {(row["field"], row["backend"]) for row in data["table"]} == {
        (field, backend) for field, row in table().items() for backend in row
    }
    assert next(one for one in data["backends"] if one["name"] == "local")["available"] is True


def test_the_longest_time_to_live_is_given_and_kept(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings='[gateway]\nmax_sandbox_ttl = "1h"\n')
    made = gateway.ask("POST", ROOT, {"command": ["sleep", "60"]}).data["id"]
    data = gateway.sandbox(made, "running")
    assert 3000 < data["expires_at"] - data["created_at"] < 4000
    over = gateway.ask("POST", ROOT, {"ttl": "2h"})
    assert (over.status, over.data["code"]) == (400, "TTL_TOO_LONG")
    assert gateway.ask("PATCH", f"{ROOT}/{made}", {"ttl": "2h"}).data["code"] == "TTL_TOO_LONG"
    assert gateway.ask("PATCH", f"{ROOT}/{made}", {"ttl": None}).data["code"] == "TTL_TOO_LONG"
