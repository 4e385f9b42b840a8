"""What the clients do not show: exact answers, the edges of each operation, and that a tenant sees only its own."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from tests.opensandbox.conftest import Place

from dibs.errors import BackendUnavailable, Conflict
from dibs.gateway.opensandbox.answers import status_for
from dibs.gateway.opensandbox.types import moment


def no_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(no_nulls(inner) for inner in value.values())
    if isinstance(value, list):
        return all(no_nulls(inner) for inner in value)
    return value is not None


@pytest.fixture
def sandbox(place: Place) -> str:
    """A running one."""
    made = place.made(metadata={"who": "anna"}, resourceLimits={"gpu": "1"})
    place.gateway.until(lambda: place.state(made) == "Running")
    return made


def test_a_create_is_answered_when_the_sandbox_runs(place: Place) -> None:
    """The JavaScript and Go clients sleep before they look again at a sandbox that is Pending."""
    answer = place.create(resourceLimits={"gpu": "2"}, metadata={"a": "b"})
    assert answer.status == 202
    assert no_nulls(answer.data)
    assert answer.data["status"]["state"] == "Running"
    assert answer.data["entrypoint"] == ["tail", "-f", "/dev/null"]
    assert len(answer.data["extensions"]["dibs.devices"].split(",")) == 2
    assert answer.data["extensions"]["dibs.receipt"] == "delivered"


def test_a_create_that_waits_for_devices_is_answered_without_them(place: Place) -> None:
    ahead = place.made(resourceLimits={"gpu": "8"})
    answer = place.create(resourceLimits={"gpu": "1"}, extensions={"dibs.backend": place.backend, "dibs.wait": "10m"})
    assert answer.status == 202
    assert answer.data["status"]["state"] == "Pending"
    assert "in the queue" in answer.data["status"]["message"]
    place.remove(answer.data["id"], ahead)


def test_a_create_whose_command_does_not_exist_is_answered_with_the_failure(place: Place) -> None:
    answer = place.create(entrypoint=["/no/such/program"])
    assert answer.status == 202
    assert answer.data["status"]["state"] == "Failed"
    assert "no such" in answer.data["status"]["message"]


def test_the_platform_of_the_host_is_accepted_and_any_other_is_refused(place: Place) -> None:
    own, other = ("amd64", "arm64") if os.uname().machine == "x86_64" else ("arm64", "amd64")
    answer = place.create(platform={"os": "linux", "arch": own})
    assert answer.status == 202, answer.body
    assert answer.data["platform"] == {"os": "linux", "arch": own}
    refused = place.create(platform={"os": "linux", "arch": other})
    assert refused.status in (400, 409)
    assert f"the host is linux/{own}" in refused.data["message"]
    unnamed = place.create(platform={"os": "linux", "arch": other}, extensions={})
    assert unnamed.status in (400, 409)
    assert f"the host is linux/{own}" in unnamed.data["message"]


def test_a_search_counts_the_folders_that_could_not_be_read_in_a_header(place: Place) -> None:
    prepare = "mkdir -p /tmp/s/closed; touch /tmp/s/a; chmod 0 /tmp/s/closed; touch /tmp/s/b; exec sleep 1000"
    made = place.made(entrypoint=["sh", "-c", prepare])
    user = "/v1/filesystem/1000/1000" if os.getuid() == 0 else ""
    path = f"/v1/sandboxes/{made}/proxy/44772{user}/files/search?path=/tmp/s"

    def found() -> Any:
        answer = place.ask("GET", path)
        return answer if answer.status == 200 and len(answer.data) == 2 else None

    answer = place.gateway.until(found)
    assert [one["path"] for one in answer.data] == ["/tmp/s/a", "/tmp/s/b"]
    assert answer.headers["dibs-unreadable"].startswith("1; ")
    assert "/tmp/s/closed" in answer.headers["dibs-unreadable"]


def test_every_path_is_served_bare_and_under_v1(place: Place, sandbox: str) -> None:
    for path in (f"/sandboxes/{sandbox}", "/sandboxes", f"/sandboxes/{sandbox}/diagnostics/inspect", "/snapshots"):
        assert place.ask("GET", path).body == place.ask("GET", f"/v1{path}").body


def test_shown_sandboxes_have_no_nulls_and_all_required_keys(place: Place, sandbox: str) -> None:
    shown = place.ask("GET", f"/v1/sandboxes/{sandbox}").data
    assert no_nulls(shown)
    assert {"id", "status", "createdAt", "entrypoint", "expiresAt", "image", "metadata", "extensions"} <= set(shown)
    unlimited = place.made(timeout=None)
    assert "expiresAt" not in place.ask("GET", f"/v1/sandboxes/{unlimited}").data


def test_the_environment_is_a_minimal_one_and_not_the_gateways(place: Place) -> None:
    made = place.made(entrypoint=["sh", "-c", "env; exec sleep 100"], env={"MINE": "1"})
    place.gateway.until(lambda: place.state(made) == "Running")

    def logs() -> str:
        found: str = place.ask("GET", f"/v1/sandboxes/{made}/diagnostics/logs?scope=container").data["content"]
        return found if "MINE=1" in found else ""

    seen = dict(line.split("=", 1) for line in place.gateway.until(logs).splitlines())
    assert "SECRET_OF_THE_GATEWAY" not in seen
    assert {"PATH", "MINE", "DIBS_SANDBOX"} <= set(seen)
    assert not {"DIBS_HOME", "USER", "LOGNAME", "PYTEST_CURRENT_TEST"} & set(seen)


def test_also_on_the_unix_socket_no_folder_of_the_host_is_shared(place: Place) -> None:
    """A request of OpenSandbox's API gets a private sandbox, not the gateway's working directory."""
    body = {
        "image": {"uri": place.image},
        "entrypoint": ["sh", "-c", "pwd; touch left-behind; exec sleep 100"],
        "extensions": {"dibs.backend": place.backend},
    }
    made = place.gateway.ask("POST", "/v1/sandboxes", body, unix=True)
    assert made.status == 202
    path = f"/v1/sandboxes/{made.data['id']}"

    def logs() -> str:
        found: str = place.gateway.ask("GET", f"{path}/diagnostics/logs?scope=all", unix=True).data["content"]
        return found

    assert place.gateway.until(logs) == "/\n"
    assert not (place.gateway.folder / "left-behind").exists()
    assert place.gateway.ask("DELETE", path, unix=True).status == 204


def test_what_belongs_to_another_user_of_the_host_is_forbidden() -> None:
    assert status_for(Conflict("it belongs to bert", code="NOT_YOURS")) == 403
    assert status_for(Conflict("it is paused", code="WRONG_STATE")) == 409
    assert status_for(BackendUnavailable("the engine is away")) == 500  # the clients know no 503 here


# -- endpoints --------------------------------------------------------------------------------------------------------


def test_an_endpoint_is_this_gateway_with_the_sandboxs_own_token(place: Place, sandbox: str) -> None:
    for port in (44772, 18080, 8000):
        direct = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/{port}?use_server_proxy=false").data
        assert direct["endpoint"] == f"{place.domain}/v1/sandboxes/{sandbox}/proxy/{port}"
        assert direct["headers"]["OpenSandbox-Secure-Access"]
        proxied = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/{port}?use_server_proxy=true").data
        assert proxied == direct


@pytest.mark.parametrize("host", ["gpu-box.example:8443", "[::1]:80", "10.0.0.1"])
def test_an_endpoint_is_where_the_client_has_found_us(place: Place, sandbox: str, host: str) -> None:
    found = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/80", headers={"Host": host}).data
    assert found["endpoint"].startswith(f"{host}/v1/")


@pytest.mark.parametrize("host", ["evil.example/x?", "a b", "user@evil", "", "x" * 300, "a\\b", "http://x"])
def test_a_host_that_is_none_does_not_get_into_an_endpoint(place: Place, sandbox: str, host: str) -> None:
    answer = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/80", headers={"Host": host})
    assert answer.status == 400 or answer.data["endpoint"].startswith(f"{place.domain}/v1/")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "1e3", "٤"])
def test_a_port_that_is_none_is_refused(place: Place, sandbox: str, port: str) -> None:
    from urllib.parse import quote

    answer = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/{quote(port)}")
    assert (answer.status, answer.data["code"]) == (400, "PORT_INVALID")


def test_a_signed_endpoint_is_not_offered(place: Place, sandbox: str) -> None:
    answer = place.ask("GET", f"/v1/sandboxes/{sandbox}/endpoints/80?expires={int(time.time()) + 60}")
    assert (answer.status, answer.data["code"]) == (501, "SIGNED_ENDPOINT_NOT_OFFERED")


# -- renewal, metadata, states ----------------------------------------------------------------------------------------


def test_renewal_moves_the_end_both_ways(place: Place, sandbox: str) -> None:
    for seconds in (7200, 120):
        at = moment(time.time() + seconds)
        answer = place.ask("POST", f"/v1/sandboxes/{sandbox}/renew-expiration", {"expiresAt": at})
        assert (answer.status, answer.data) == (200, {"expiresAt": at})
        assert place.ask("GET", f"/v1/sandboxes/{sandbox}").data["expiresAt"] == at


def test_renewal_into_the_past_is_refused_and_so_is_renewing_what_has_no_end(place: Place, sandbox: str) -> None:
    past = place.ask("POST", f"/v1/sandboxes/{sandbox}/renew-expiration", {"expiresAt": moment(time.time() - 1)})
    assert (past.status, past.data["code"]) == (400, "EXPIRY_INVALID")
    endless = place.made(timeout=None)
    place.gateway.until(lambda: place.state(endless) == "Running")
    none = place.ask("POST", f"/v1/sandboxes/{endless}/renew-expiration", {"expiresAt": moment(time.time() + 60)})
    assert (none.status, none.data["code"]) == (409, "NO_EXPIRY")


def test_a_time_to_live_that_is_over_ends_the_sandbox(place: Place) -> None:
    short = place.made(timeout=1)
    place.gateway.until(lambda: place.state(short) in ("Terminated", "Failed"))
    assert place.ask("GET", f"/v1/sandboxes/{short}").data["status"]["reason"] == "EXPIRED"


def test_metadata_is_merged_and_reserved_keys_are_refused(place: Place, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/metadata"
    assert place.ask("PATCH", path, {"who": None, "colour": "blue"}).data["metadata"] == {"colour": "blue"}
    assert place.ask("PATCH", path, {}).data["metadata"] == {"colour": "blue"}
    for bad in ({"opensandbox.io/x": "1"}, {"a": 1}, {"": "x"}, {"a": ["b"]}, {"a\n": "b"}, {"k" * 64: "v"}):
        answer = place.ask("PATCH", path, bad)
        assert answer.status == 400, bad
    assert place.ask("PATCH", path, {"colour": None}).status == 200
    assert "metadata" not in place.ask("GET", f"/v1/sandboxes/{sandbox}").data


def test_pause_and_resume_answer_202_and_409_in_the_wrong_state(place: Place, sandbox: str) -> None:
    assert place.ask("POST", f"/v1/sandboxes/{sandbox}/resume").status == 409
    assert place.ask("POST", f"/v1/sandboxes/{sandbox}/pause").status == 202
    assert place.state(sandbox) == "Paused"
    assert place.ask("POST", f"/v1/sandboxes/{sandbox}/pause").status == 409
    assert place.ask("POST", f"/v1/sandboxes/{sandbox}/resume").status == 202
    assert place.state(sandbox) == "Running"


def test_deleting_is_final_and_may_be_repeated(place: Place, sandbox: str) -> None:
    assert place.ask("DELETE", f"/v1/sandboxes/{sandbox}").status == 204
    assert place.ask("DELETE", f"/v1/sandboxes/{sandbox}").status == 204
    assert place.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404
    for method, path in (("POST", "pause"), ("GET", "endpoints/80"), ("GET", "diagnostics/logs?scope=all")):
        assert place.ask(method, f"/v1/sandboxes/{sandbox}/{path}").status == 404
    listed = place.ask("GET", "/v1/sandboxes?state=Terminated&state=Failed&state=Running").data["items"]
    assert sandbox not in [item["id"] for item in listed]


def test_deleting_while_it_is_made_or_waits_leaves_nothing(place: Place) -> None:
    place.remove(place.made(resourceLimits={"gpu": "8"}))
    place.remove(place.made(resourceLimits={"gpu": "8"}))
    holder = place.made(resourceLimits={"gpu": "8"})
    waiter = place.made(resourceLimits={"gpu": "1"}, extensions={"dibs.backend": place.backend, "dibs.wait": "1h"})
    assert place.held() == 2
    place.remove(waiter)
    assert place.held() == 1
    place.remove(holder)


def test_the_same_idempotency_key_makes_one_sandbox(place: Place) -> None:
    extensions = {"dibs.backend": place.backend, "dibs.idempotency-key": "once"}
    first, again = place.create(extensions=extensions), place.create(extensions=extensions)
    assert (first.status, again.status) == (202, 202)
    assert first.data["id"] == again.data["id"]
    other = place.create(extensions=extensions, timeout=61)
    assert (other.status, other.data["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


# -- lists ------------------------------------------------------------------------------------------------------------


def test_lists_come_in_pages_newest_first(place: Place) -> None:
    made = [place.made(metadata={"n": str(number), "all": "yes"}) for number in range(5)]
    seen: list[str] = []
    for page in (1, 2, 3):
        answer = place.ask("GET", f"/v1/sandboxes?metadata=all%3Dyes&page={page}&pageSize=2").data
        seen += [item["id"] for item in answer["items"]]
        expected = {"page": page, "pageSize": 2, "totalItems": 5, "totalPages": 3, "hasNextPage": page < 3}
        assert answer["pagination"] == expected
    assert seen == made[::-1]
    beyond = place.ask("GET", "/v1/sandboxes?page=9").data
    assert (beyond["items"], beyond["pagination"]["hasNextPage"]) == ([], False)


def test_ended_sandboxes_are_listed_when_they_are_asked_for(place: Place) -> None:
    gone = place.made(entrypoint=["true"])
    place.gateway.until(lambda: place.state(gone) == "Terminated")
    assert place.ask("GET", "/v1/sandboxes").data["items"] == []
    listed = place.ask("GET", "/v1/sandboxes?state=terminated&state=running").data
    assert gone in [item["id"] for item in listed["items"]]


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_a_tenant_learns_nothing_of_anothers_sandboxes(place: Place, sandbox: str) -> None:
    never = "sb-000000000000"
    calls: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("DELETE", "", None), ("GET", "/endpoints/44772", None), ("POST", "/pause", None),
        ("POST", "/resume", None), ("PATCH", "/metadata", {"a": "b"}), ("GET", "/diagnostics/logs?scope=all", None),
        ("GET", "/diagnostics/events", None), ("GET", "/diagnostics/inspect", None),
        ("GET", "/diagnostics/summary", None), ("POST", "/snapshots", {}),
        ("POST", "/renew-expiration", {"expiresAt": moment(time.time() + 99)}),
        ("GET", "/proxy/44772/ping", None),
    ]  # fmt: skip
    for method, path, body in calls:
        foreign = place.ask(method, f"/v1/sandboxes/{sandbox}{path}", body, token=place.other)
        unknown = place.ask(method, f"/v1/sandboxes/{never}{path}", body, token=place.other)
        assert foreign.status == unknown.status == 404, (path, foreign.body)
        assert foreign.body.replace(sandbox.encode(), never.encode()) == unknown.body
    assert place.ask("GET", "/v1/sandboxes", token=place.other).data["pagination"]["totalItems"] == 0
    assert place.state(sandbox) == "Running"


def test_an_id_is_needed_whole(place: Place, sandbox: str) -> None:
    named = place.made(extensions={"dibs.backend": place.backend, "dibs.name": "a-name"})
    for reference in (sandbox[:-1], sandbox[3:], "a-name", sandbox.upper(), f"{sandbox}%00", f"{sandbox}%"):
        assert place.ask("GET", f"/v1/sandboxes/{reference}").status == 404, reference
    place.remove(named)


def test_a_reader_changes_nothing(place: Place, sandbox: str) -> None:
    reader = place.gateway.make_token("reader", "--tenant", "team-a", "--scope", "sandboxes:read")
    assert place.ask("GET", f"/v1/sandboxes/{sandbox}", token=reader).status == 200
    refused = [
        ("POST", "/v1/sandboxes"), ("DELETE", f"/v1/sandboxes/{sandbox}"), ("POST", f"/v1/sandboxes/{sandbox}/pause"),
        ("GET", f"/v1/sandboxes/{sandbox}/endpoints/44772"), ("PATCH", f"/v1/sandboxes/{sandbox}/metadata"),
    ]  # fmt: skip
    for method, path in refused:
        answer = place.ask(method, path, {}, token=reader)
        assert (answer.status, answer.data["code"]) == (403, "SCOPE_MISSING"), path


# -- diagnostics, reports, what is not offered ------------------------------------------------------------------------


def test_diagnostics_without_a_scope_are_plain_text(place: Place, sandbox: str) -> None:
    for kind in ("logs?tail=5&since=10m", "events?limit=2", "inspect", "summary?tail=5&event_limit=1"):
        answer = place.ask("GET", f"/v1/sandboxes/{sandbox}/diagnostics/{kind}")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain")
    page = place.ask("GET", f"/v1/sandboxes/{sandbox}/diagnostics/summary").body.decode()
    assert "devices" in page
    assert "sandbox.running" in page
    wrong = place.ask("GET", f"/v1/sandboxes/{sandbox}/diagnostics/logs?lines=5")
    assert (wrong.status, wrong.data["code"]) == (400, "PARAMETER_INVALID")


def test_what_clients_report_is_in_the_metrics(place: Place) -> None:
    event = {"eventType": "sandbox.create", "createDurationMs": 120, "success": True, "image": "host"}
    assert place.ask("POST", "/v1/metrics/events", event).status == 204
    assert b"dibs_client_create_seconds_count" in place.gateway.ask("GET", "/metrics").body
    assert place.ask("POST", "/v1/metrics/events", {"eventType": "x"}).status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/templates"), ("POST", "/templates"), ("DELETE", "/templates/t"), ("GET", "/pools"), ("PUT", "/pools/p"),
     ("GET", "/sandboxes/{id}/networkpolicy"), ("PATCH", "/sandboxes/{id}/networkpolicy"),
     ("GET", "/sandboxes/{id}/proxy/18080/policy"), ("POST", "/sandboxes/{id}/proxy/18080/credential-vault")],
)  # fmt: skip
def test_what_is_not_there_answers_501_with_code_and_message(
    place: Place, sandbox: str, method: str, path: str
) -> None:
    answer = place.ask(method, f"/v1{path.format(id=sandbox)}", {} if method != "GET" else None)
    assert answer.status == 501
    assert set(answer.data) == {"code", "message"}


def test_a_snapshot_on_a_backend_without_images_is_a_conflict_with_the_reason(place: Place, sandbox: str) -> None:
    if place.backend != "local":
        pytest.skip("engines keep images")
    answer = place.ask("POST", f"/v1/sandboxes/{sandbox}/snapshots", {"name": "x"})
    assert (answer.status, answer.data["code"]) == (409, "SNAPSHOT_UNSUPPORTED")
    assert place.ask("GET", "/v1/snapshots").data["items"] == []
    assert place.ask("GET", "/v1/snapshots/snap-0").status == 404


def test_every_answer_has_a_request_id(place: Place) -> None:
    for path in ("/v1/sandboxes", "/v1/sandboxes/none", "/v1/nothing", "/v1/templates"):
        assert place.ask("GET", path).headers["x-request-id"]
    assert place.ask("GET", "/v1/sandboxes", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
