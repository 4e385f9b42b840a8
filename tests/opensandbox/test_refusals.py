"""A refusal, a wait and a failure as the unmodified SDK shows them: exception, code, message with every reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from opensandbox.exceptions import SandboxApiException, SandboxReadyTimeoutException
from opensandbox.models.sandboxes import Host as HostPath
from opensandbox.models.sandboxes import (
    NetworkPolicy,
    NetworkRule,
    PlatformSpec,
    SandboxFilter,
    SandboxImageAuth,
    SandboxImageSpec,
    Volume,
)
from opensandbox.models.templates import TemplateFilter
from opensandbox.sync.manager import SandboxManagerSync
from opensandbox.sync.sandbox import SandboxSync
from tests import needs
from tests.opensandbox.conftest import Place


def refused(place: Place, token: str = "", **changes: Any) -> SandboxApiException:
    wanted = {"image": place.image, "resource": {"gpu": "1"}, "extensions": {"dibs.backend": place.backend}, **changes}
    with pytest.raises(SandboxApiException) as caught:
        SandboxSync.create(wanted.pop("image"), connection_config=place.sync(token=token), **wanted)
    return caught.value


def said(error: SandboxApiException) -> str:
    return error.error.message or ""


def ready_never(place: Place, seconds: float, **changes: Any) -> Exception:
    wanted = {"resource": {}, "skip_health_check": True, **changes}
    with pytest.raises((SandboxApiException, SandboxReadyTimeoutException)) as caught:
        SandboxSync.create(
            place.image, connection_config=place.sync(), ready_timeout=timedelta(seconds=seconds), **wanted
        )
    return caught.value


def test_every_reason_arrives_with_the_code_of_the_first(place: Place) -> None:
    error = refused(
        place, resource={"gpu": "1.5", "disk": "10Gi", "memory": "2GB"}, extensions={"dibs.wait": "soon", "colour": "x"}
    )
    assert (error.status_code, error.error.code) == (400, "UNKNOWN_RESOURCE")
    assert error.request_id
    for part in ("resourceLimits.gpu", "resourceLimits.disk", "2Gi", "extensions.dibs.wait", "extensions.colour"):
        assert part in said(error)
    assert len(said(error).splitlines()) == 5


@pytest.mark.parametrize("gpu", ["0", "-1", "0.5", "half", ""])
def test_a_gpu_value_that_means_nothing_is_refused_and_nothing_is_made(place: Place, gpu: str) -> None:
    assert refused(place, resource={"gpu": gpu}).status_code == 400
    assert place.ask("GET", "/v1/sandboxes").data["items"] == []


def test_a_model_that_is_not_here_is_refused_with_what_there_is(place: Place) -> None:
    error = refused(place, resource={"gpu": "B200:1"})
    assert (error.status_code, error.error.code) == (409, "NO_MATCHING_DEVICE")
    assert "H100" in said(error)


def test_busy_devices_are_refused_with_who_holds_them(place: Place) -> None:
    place.made(resourceLimits={"gpu": "8"}, extensions={"dibs.backend": place.backend, "dibs.name": "greedy"})
    error = refused(place)
    assert (error.status_code, error.error.code) == (409, "DEVICES_BUSY")
    assert said(error).startswith("resourceLimits.gpu ")
    assert "greedy" in said(error)


def test_a_quota_is_refused_with_403(place: Place) -> None:
    error = refused(place, token=place.small, resource={"gpu": "3"})
    assert (error.status_code, error.error.code) == (403, "QUOTA_EXCEEDED")
    assert "holds 0 of 2" in said(error)


def test_an_unknown_image_is_refused_with_what_there_is(place: Place) -> None:
    error = refused(place, image="python:3.11", extensions={"dibs.backend": "local"})
    assert error.error.code == "IMAGE_UNKNOWN"
    assert "host" in said(error)


def test_what_dibs_does_not_offer_is_refused_and_not_ignored(place: Place) -> None:
    rule = NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target="example.com")])
    assert refused(place, network_policy=rule).error.code == "NETWORK_POLICY_NOT_OFFERED"
    windows = PlatformSpec(os="windows", arch="amd64")
    assert refused(place, platform=windows).error.code == "PLATFORM_INVALID"
    assert refused(place, extensions={"poolRef": "p"}).error.code == "POOLS_NOT_OFFERED"
    volume = Volume(name="v", mountPath="/data", readOnly=True, host=HostPath(path="/etc"))
    assert refused(place, volumes=[volume]).error.code == "MOUNT_NOT_ALLOWED"
    spec = SandboxImageSpec(place.image, auth=SandboxImageAuth(username="u", password="hidden!"))
    error = refused(place, image=spec)
    assert error.error.code == "IMAGE_AUTH_NOT_OFFERED"
    assert "hidden!" not in str(error)
    error = refused(place, resource={"cpu": "2"}, resource_requests={"cpu": "1"})
    assert error.error.code == "REQUEST_NOT_LIMIT"


def test_templates_are_not_offered(place: Place) -> None:
    with SandboxManagerSync.create(place.sync()) as manager, pytest.raises(SandboxApiException) as caught:
        manager.list_templates(TemplateFilter())
    assert (caught.value.status_code, caught.value.error.code) == (501, "TEMPLATES_NOT_OFFERED")
    with pytest.raises(SandboxApiException) as caught:
        SandboxSync.create_from_template("t", timeout=timedelta(minutes=1), connection_config=place.sync())
    assert (caught.value.status_code, caught.value.error.code) == (400, "TEMPLATES_NOT_OFFERED")


def test_a_sandbox_that_waits_says_what_for_when_patience_ends(place: Place) -> None:
    place.made(resourceLimits={"gpu": "8"}, extensions={"dibs.backend": place.backend, "dibs.name": "greedy"})
    ahead = place.made(resourceLimits={"gpu": "8"}, extensions={"dibs.backend": place.backend, "dibs.wait": "10m"})
    assert place.state(ahead) == "Pending"
    for seconds in (1.0, 2.0, 4.0, 8.0):
        error = ready_never(
            place, seconds, resource={"gpu": "2"}, extensions={"dibs.backend": place.backend, "dibs.wait": "10m"}
        )
        assert isinstance(error, SandboxReadyTimeoutException)
        if "overall_deadline" not in str(error):
            break  # else its patience ended within a request, and it tells that instead of the last answer
    assert "number 2 of 2 in the queue" in str(error)
    assert "greedy" in str(error)
    with SandboxManagerSync.create(place.sync()) as manager:
        waiting = manager.list_sandbox_infos(SandboxFilter(states=["pending"])).sandbox_infos
        assert [info.id for info in waiting] == [ahead]  # the SDK has removed the other one, queued as it was
        assert "number 1 of 1" in (manager.get_sandbox_info(ahead).status.message or "")


def test_a_sandbox_that_waits_is_served_when_its_turn_comes(place: Place) -> None:
    first = place.made(resourceLimits={"gpu": "8"})
    second = place.made(resourceLimits={"gpu": "8"}, extensions={"dibs.backend": place.backend, "dibs.wait": "10m"})
    answer = place.ask("GET", f"/v1/sandboxes/{second}/endpoints/44772")
    assert (answer.status, answer.data["code"]) == (404, "KUBERNETES::POD_IP_NOT_AVAILABLE")
    place.remove(first)
    place.gateway.until(lambda: place.state(second) == "Running")
    assert place.ask("GET", f"/v1/sandboxes/{second}/endpoints/44772").status == 200


def test_a_wait_that_was_too_short_ends_in_an_error_that_is_not_tried_again(place: Place) -> None:
    place.made(resourceLimits={"gpu": "8"}, extensions={"dibs.backend": place.backend, "dibs.name": "greedy"})
    error = ready_never(
        place, 30.0, resource={"gpu": "1"}, extensions={"dibs.backend": place.backend, "dibs.wait": "200ms"}
    )
    assert isinstance(error, SandboxApiException)
    assert (error.status_code, error.error.code) == (500, "WAIT_TIMEOUT")
    assert "greedy" in said(error)


def test_an_entrypoint_that_does_not_exist_ends_in_an_error_that_is_not_tried_again(place: Place) -> None:
    needs.limits(place.backend)  # the client asks for its own defaults
    error = ready_never(place, 30.0, entrypoint=["/no/such/program"], extensions={"dibs.backend": place.backend})
    assert isinstance(error, SandboxApiException)
    assert (error.status_code, error.error.code) == (500, "COMMAND_NOT_FOUND")
    assert "/no/such/program" in said(error)


def test_an_entrypoint_that_has_ended_is_said_to_have(place: Place) -> None:
    gone = place.made(entrypoint=["sh", "-c", "exit 7"])
    place.gateway.until(lambda: place.state(gone) == "Terminated")
    answer = place.ask("GET", f"/v1/sandboxes/{gone}/endpoints/44772")
    assert (answer.status, answer.data["code"]) == (404, "SANDBOX_ENDED")
    assert "exit code 7" in answer.data["message"]


def test_a_wrong_or_missing_key_is_an_api_error(place: Place) -> None:
    error = refused(place, token="dibs_" + "x" * 43)
    assert (error.status_code, error.error.code) == (401, "TOKEN_UNKNOWN")
