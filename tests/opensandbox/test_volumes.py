"""Named volumes (`pvc`) with the unmodified SDK: made, reused, of each tenant its own, on every backend."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import PVC, Volume
from opensandbox.sync.sandbox import SandboxSync
from tests.engines import shared
from tests.engines.running import Engine
from tests.opensandbox.conftest import Place, clear


@pytest.fixture(params=["local", "docker", "podman", "kubernetes"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    found: Place = request.getfixturevalue(request.param)
    yield found
    clear(found)


@pytest.fixture
def claim(request: pytest.FixtureRequest, place: Place) -> Iterator[str]:
    """The name of a volume of team-a that can be made; it is removed in the end."""
    name = f"v{uuid.uuid4().hex[:8]}"
    if place.backend == "kubernetes":
        with request.getfixturevalue("cluster_place").storage(f"team-a.{name}"):
            yield name
        return
    yield name
    if place.backend == "local":
        shutil.rmtree(place.gateway.home.state / "volumes" / f"team-a.{name}", ignore_errors=True)
        return
    engine = shared.engine(place.backend)
    assert isinstance(engine, Engine)
    engine.api("DELETE", f"{engine.prefix}/volumes/team-a.{name}")


@contextmanager
def sandbox(place: Place, *volumes: Volume, token: str = "") -> Iterator[SandboxSync]:
    made = SandboxSync.create(
        place.image, connection_config=place.sync(token=token), volumes=list(volumes), timeout=timedelta(minutes=10),
        extensions={"dibs.backend": place.backend}, entrypoint=["sleep", "1000"], ready_timeout=timedelta(minutes=2),
        resource={"gpu": "1"},  # for nothing, the client asks for limits, which an ordinary user cannot have everywhere
    )  # fmt: skip
    try:
        yield made
    finally:
        made.kill()
        made.close()


def volume(claim: str, target: str = "/data", **more: Any) -> Volume:
    pvc = PVC.model_validate({"claimName": claim, "createIfNotExists": more.pop("create", True)})
    return Volume.model_validate({"name": "v", "pvc": pvc, "mountPath": target, **more})


def said(box: SandboxSync, script: str) -> str:
    done = box.commands.run(script)
    return "".join(line.text for line in (*done.logs.stdout, *done.logs.stderr)).strip()


def test_a_volume_outlives_its_sandbox_and_is_mounted_as_it_was_asked_for(place: Place, claim: str) -> None:
    with sandbox(place, volume(claim)) as first:
        assert (
            said(first, "mkdir -p /data/models/a && echo kept > /data/models/a/note && cat /data/models/a/note")
            == "kept"
        )
        receipt = place.gateway.ask("GET", f"/api/v1/sandboxes/{first.id}/receipt").data
        (line,) = [line for line in receipt["lines"] if line["field"] == "volume"]
        assert line["outcome"] == "delivered"
        assert line["asked"] == f"team-a.{claim}:/data:rw"
    read_only = volume(claim, "/models", subPath="models/a", readOnly=True, create=False)
    with sandbox(place, read_only) as second:
        assert said(second, "cat /models/note") == "kept"
        assert "Read-only file system" in said(second, "echo changed > /models/note")
    with sandbox(place, volume(claim, subPath="models/b")) as third:
        assert said(third, "touch /data/new; ls /data") == "new"


def test_a_volume_that_is_missing_is_refused_unless_it_is_to_be_created(place: Place) -> None:
    with pytest.raises(SandboxApiException) as refused, sandbox(place, volume("nothing-here", create=False)):
        pass
    assert (refused.value.status_code, refused.value.error.code) == (400, "VOLUME_NOT_FOUND")
    assert place.held() == 0


def test_another_tenants_volume_is_not_there(place: Place, claim: str) -> None:
    with sandbox(place, volume(claim)) as first:
        assert said(first, "echo mine > /data/secret; cat /data/secret") == "mine"
    with pytest.raises(SandboxApiException) as refused, sandbox(place, volume(claim, create=False), token=place.other):
        pass
    assert refused.value.error.code == "VOLUME_NOT_FOUND"


def test_what_dibs_does_not_do_with_volumes_is_refused_by_name(place: Place) -> None:
    pvc = {"claimName": "x", "deleteOnSandboxTermination": True, "colour": "red"}
    answer = place.create(volumes=[{"name": "v", "mountPath": "/v", "pvc": pvc}])
    assert answer.status == 400
    assert "volumes[0].pvc.deleteOnSandboxTermination" in answer.data["message"]
    assert "volumes[0].pvc.colour" in answer.data["message"]
