"""A gateway's service is the same service: its methods, its answers, its errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.serving import Served

from dibs.backends.port import Exec, Exit, Output, Session
from dibs.errors import DibsError, NotFound, Timeout, exit_code_of
from dibs.home import Home
from dibs.ledger.rows import Taint
from dibs.plan.explanation import Explanation
from dibs.remote.conversion import mapping_of
from dibs.remote.target import Target
from dibs.remote.workloads import RemoteWorkloads
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.sandbox import Sandbox
from dibs.workloads.service import Workloads

# What only a process on the gateway's own machine has a use for.
ON_THE_MACHINE = {
    "backend_of", "check_running", "connect", "expire", "home", "identity", "ledger", "make", "page", "registry",
    "relabel", "renew", "reserve", "seen_by", "snapshot", "started_by_dibs", "usage",
}  # fmt: skip
ONLY_REMOTE = {"asked", "broken", "claim", "claims", "forget_claim", "keep_claim", "open", "target"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_it_has_the_same_methods_with_the_same_parameters() -> None:
    there, here = public(RemoteWorkloads), public(Workloads)
    assert here - there <= ON_THE_MACHINE
    assert there - here <= ONLY_REMOTE
    for name in here & there:
        ours = inspect.signature(getattr(RemoteWorkloads, name)).parameters
        theirs = inspect.signature(getattr(Workloads, name)).parameters
        assert list(ours) == list(theirs), name
        assert [one.default for one in ours.values()] == [one.default for one in theirs.values()], name


_NAME = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_ENV = st.from_regex(r"X_[A-Z0-9_]{1,8}", fullmatch=True)
_WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
_PATH = st.from_regex(r"/[a-z0-9/]{0,20}", fullmatch=True)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "gpu": st.sampled_from(["1", "H100:2", "nvidia:H100,A100:80GB..:2", "all", ["1", "L4:1"]]),
    "device": st.just(["nvidia.com/gpu=0"]),
    "where": st.just('device.driver == "gpu.nvidia.com"'),
    "cpu": st.sampled_from(["2", "500m", "0.5"]),
    "memory": st.sampled_from(["4Gi", "512Mi", "1000"]),
    "pids": st.integers(1, 1000),
    "allow_busy": st.booleans(),
    "command": st.lists(_WORD, min_size=1, max_size=4),
    "name": _NAME,
    "backend": st.sampled_from(["auto", "local", "fake"]),
    "env": st.dictionaries(_ENV, _WORD, max_size=3),
    "workdir": _PATH,
    "network": st.sampled_from(["host", "none"]),
    "mounts": st.lists(st.tuples(_PATH, _PATH, st.sampled_from(["", ":rw"])).map(lambda m: f"{m[0]}:{m[1]}{m[2]}")),
    "ttl": st.sampled_from(["90s", "1h30m", 7]),
    "wait": st.sampled_from(["0s", "10m"]),
    "grace": st.sampled_from(["0s", "2s", "1500ms"]),
    "tty": st.booleans(),
    "interactive": st.booleans(),
    "labels": st.dictionaries(_NAME, _NAME, max_size=2),
    "user": st.sampled_from(["1000", "1000:1000"]),
    "read_only": st.booleans(),
    "shm": st.sampled_from(["64Mi", "100"]),
    "platform": st.just("linux/amd64"),
    "entrypoint": st.lists(_WORD, max_size=2),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_a_request_arrives_as_it_was_meant(mapping: dict[str, Any]) -> None:
    try:
        spec = parse_spec(mapping)
    except DibsError:
        return  # refused before it goes anywhere
    sent = msgspec.json.decode(msgspec.json.encode(mapping_of(spec, here=False)))
    assert parse_spec(sent) == spec


def test_every_field_of_a_request_goes_over_the_wire() -> None:
    fields = {field.name for field in msgspec.structs.fields(SandboxSpec)}
    tried = {"resources", "ttl_seconds", "wait_seconds", "grace_seconds", "shm_bytes", "root", "image", "options"}
    tried |= {"publish", "volumes"}
    tried |= {"brought"}  # nothing comes along to a gateway
    assert fields - tried <= set(FIELDS), "a new field: send it in `mapping_of`, and try it here"
    published = {"publish": ["8080:80", "127.0.0.2:9090:90"], "network": "private"}
    volumes = {"volumes": ["data/sub:/data:ro", "cache:/cache:create,size=2Gi,class=fast,access=ReadWriteMany"]}
    for mapping in ({"root": "/srv/root"}, {"image": "python:3.12"}, published, volumes):
        assert parse_spec(mapping_of(parse_spec(mapping), here=False)) == parse_spec(mapping)


def test_on_this_machine_the_folder_is_ours_and_elsewhere_it_is_theirs(tmp_path: Path) -> None:
    spec = parse_spec({"command": ["true"]})
    assert mapping_of(spec, here=True)["workdir"] == str(tmp_path / "work")
    assert "workdir" not in mapping_of(spec, here=False)
    assert "workdir" not in mapping_of(parse_spec({"image": "python:3.12"}), here=True)


@pytest.mark.parametrize(
    "mapping",
    [
        {"gpu": "9"},
        {"gpu": "L4:1"},
        {"gpu": "1", "wait": "0s", "name": "x"},
        {"command": ["no-such-command"]},
        {"command": ["/etc/passwd"]},
        {"command": ["true"], "workdir": "/no/such/folder"},
        {"command": ["true"], "mounts": ["/no/such:/x", "/nor/this:/y"]},
        {"gpu": "8", "backend": "nowhere"},
        {"gpu": "8"},
        {"command": ["true"], "root": "/no/such/root"},
    ],
)
def test_a_refusal_is_the_same_error(remote: RemoteWorkloads, eight_gpus: Home, mapping: dict[str, Any]) -> None:
    spec = parse_spec(mapping)
    with Workloads(eight_gpus) as local:
        local.create(parse_spec({"name": "holder", "gpu": "8" if "wait" in mapping else "7"}))
        with pytest.raises(DibsError) as here:
            local.create(spec)
        with pytest.raises(DibsError) as there:
            remote.create(spec)
    assert type(there.value) is type(here.value)
    assert exit_code_of(there.value) == exit_code_of(here.value)
    assert [_timeless(one) for one in there.value.problems] == [_timeless(one) for one in here.value.problems]


def _timeless(problem: Any) -> tuple[str, ...]:
    import re

    words = (problem.code, problem.field, problem.value, problem.reason, problem.remedy)
    return tuple(re.sub(r"for \d+s", "for TIME", word) for word in words)


def whole(session: Session, data: bytes = b"") -> tuple[bytes, bytes, Exit]:
    if data:
        session.send(data)
    session.end_of_input()
    pieces = {"stdout": b"", "stderr": b""}
    while True:
        for item in session.receive():
            if isinstance(item, Output):
                pieces[item.stream] += item.data
            else:
                session.close()
                return pieces["stdout"], pieces["stderr"], item


@pytest.fixture
def box(remote: RemoteWorkloads) -> Sandbox:
    return remote.create(parse_spec({"name": "box", "gpu": "1", "command": ["sleep", "100"], "labels": {"a": "b"}}))


def _ageless(explanation: Explanation) -> str:
    """All of it but how long a card has been held: a second may pass between the two questions."""
    return re.sub(r" for [0-9]+s", "", msgspec.json.encode(explanation).decode())


def test_rows_read_the_same_from_both_sides(remote: RemoteWorkloads, box: Sandbox, eight_gpus: Home) -> None:
    with Workloads(eight_gpus) as local:
        known = ("id", "name", "backend", "state", "uid", "username", "created_at", "started_at", "labels", "simulated")
        for here, there in zip(local.sandboxes(), remote.sandboxes(), strict=True):
            assert [getattr(here, name) for name in known] == [getattr(there, name) for name in known]
            assert here.spec == there.spec
        for here_lease, there_lease in zip(local.leases(), remote.leases(), strict=True):
            assert here_lease == there_lease
        assert local.events("box") == remote.events("box")
        assert [event for event in local.events() if event.sandbox_id == box.id] == [
            event for event in remote.events() if event.sandbox_id == box.id
        ]
        assert local.receipt("box") == remote.receipt("box")
        spec = parse_spec({"gpu": "H100:9", "network": "none"})
        assert _ageless(local.explain(spec)) == _ageless(remote.explain(spec))
        assert [one.state for one in local.devices()[1]] == [one.state for one in remote.devices()[1]]
        for ours, theirs in zip(local.devices()[0].devices, remote.devices()[0].devices, strict=True):
            same = (
                "id",
                "model",
                "uuid",
                "index",
                "attributes",
                "capacity",
                "health",
                "aliases",
                "simulated",
                "source",
            )
            assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]


def test_what_is_not_there_is_not_found(remote: RemoteWorkloads) -> None:
    calls = (
        lambda: remote.sandbox("nope"), lambda: remote.receipt("nope"), lambda: remote.attach("nope"),
        lambda: remote.exec("nope", Exec(command=("true",))), lambda: remote.logs("nope"),
        lambda: remote.copy_out("nope", "/tmp"), lambda: remote.remove("nope"), lambda: remote.pause("nope"),
        lambda: remote.sandbox("../etc"), lambda: remote.sandbox("a b"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(NotFound):
            call()


def test_commands_their_streams_and_their_ends(remote: RemoteWorkloads, box: Sandbox) -> None:
    out, err, end = whole(
        remote.exec("box", Exec(command=("sh", "-c", "cat; echo $A >&2; exit 4"), env={"A": "é"})), b"in"
    )
    assert (out, err.decode(), end.code) == (b"in", "é\n", 4)
    with pytest.raises(DibsError) as failure:
        remote.exec("box", Exec(command=("no-such-command",)))
    assert exit_code_of(failure.value) == 127


def test_a_command_too_long_for_an_address_is_run_all_the_same(remote: RemoteWorkloads, box: Sandbox) -> None:
    word = "x" * 100_000
    assert whole(remote.exec("box", Exec(command=("printf", "%s", word))))[0] == word.encode()


def test_much_goes_both_ways_at_once(remote: RemoteWorkloads, box: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    assert whole(remote.exec("box", Exec(command=("cat",))), data)[0] == data


def test_signals_reach_the_command(remote: RemoteWorkloads, box: Sandbox) -> None:
    session = remote.exec(
        "box", Exec(command=("sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; sleep 60 & wait"))
    )
    assert session.receive() == [Output("stdout", b"ready\n")]
    session.signal(15)
    out, _, end = whole(session)
    assert (out, end.code) == (b"caught\n", 3)


def test_nothing_to_receive_is_an_empty_list_at_once(remote: RemoteWorkloads, box: Sandbox) -> None:
    session = remote.exec("box", Exec(command=("sleep", "60")))
    assert session.receive(0) == []
    session.close()


def test_files_and_logs(remote: RemoteWorkloads, tmp_path: Path) -> None:
    from dibs.workloads.files import copy_from, copy_to

    row = remote.create(parse_spec({"command": ["sh", "-c", "echo one; echo two >&2; sleep 100"]}))
    (tmp_path / "f").write_text("data")
    copy_to(remote, str(tmp_path / "f"), row.id, "/tmp")  # type: ignore[arg-type]
    copy_from(remote, row.id, "/tmp/f", str(tmp_path / "g"))  # type: ignore[arg-type]
    assert (tmp_path / "g").read_text() == "data"
    with pytest.raises(NotFound):
        copy_from(remote, row.id, "/no/such", str(tmp_path / "h"))  # type: ignore[arg-type]
    following = remote.logs(row.id, follow=True)
    assert {next(following).data, next(following).data} == {b"one\n", b"two\n"}
    remote.stop(row.id, 0.0)
    assert list(following) == []
    assert b"".join(record.data for record in remote.logs(row.id) if record.stream == "stdout") == b"one\n"


def test_waiting_for_an_end(remote: RemoteWorkloads, box: Sandbox) -> None:
    with pytest.raises(Timeout):
        remote.wait("box", 0.0)
    remote.pause("box")
    assert remote.sandbox("box").state == "paused"
    remote.resume("box")
    remote.stop("box", 0.0)
    assert remote.wait("box").state == "exited"
    assert remote.leases() == []
    assert remote.remove("box").id == box.id


def test_taints_are_put_on_and_taken_off(remote: RemoteWorkloads) -> None:
    assert remote.taint("gpu-3", Taint("maintenance", "fan")).name == "gpu-3"
    assert remote.devices()[1][3].state == "tainted"
    assert remote.untaint("gpu-3", "") == 1
    with pytest.raises(NotFound):
        remote.taint("gpu-77", Taint("maintenance"))


def test_claims_are_kept_at_the_gateway(remote: RemoteWorkloads, eight_gpus: Home) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pair"},
        "spec": {
            "devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}
        },
    }
    remote.keep_claim("pair", claim)
    assert remote.claims() == ["pair"]
    assert remote.claim("pair") == claim
    remote.forget_claim("pair")
    with pytest.raises(NotFound):
        remote.forget_claim("pair")


def test_what_answers_and_is_no_gateway_is_reported(served: Served) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Quiet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Quiet) as other:
        serving = Thread(target=other.serve_forever)
        serving.start()
        try:
            with RemoteWorkloads(Target(f"http://127.0.0.1:{other.server_port}", "DIBS_URL")) as remote:
                for call in (remote.sandboxes, lambda: remote.attach("x")):
                    with pytest.raises(DibsError) as failure:
                        call()
                    assert failure.value.code == "GATEWAY_UNREACHABLE"
        finally:
            other.shutdown()
            serving.join()
