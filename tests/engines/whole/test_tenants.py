"""Snapshots belong to a tenant, whatever they are called; and so do the ports of its containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.engines import images
from tests.engines.whole.house import House
from tests.gateway.conftest import RunningGateway

from dibs.backends.port import TakesSnapshots, must
from dibs.errors import DibsError, NotFound
from dibs.ledger.snapshots import Snapshots
from dibs.process import myself
from dibs.workloads.admission import Admitted, Asking, admit_all
from dibs.workloads.delivery import withdraw
from dibs.workloads.identity import Identity
from dibs.workloads.images import REPOSITORY
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads


def tenant(house: House, name: str) -> Workloads:
    return house.service.seen_by(Identity(name=name, uid=0, tenant=name, remote=True))


@pytest.fixture
def snapshot(house: House) -> Iterator[str]:
    """The image of a snapshot that belongs to the tenant red; the tag `other:1` was added later."""
    row = house.create(command=["sleep", "1000"])
    books = Snapshots(house.service.ledger)
    made = books.add(row.id, tenant="red", name="kept", backend=house.kind, repository=REPOSITORY, owner=myself())
    must(house.service.backend_of(row), TakesSnapshots).snapshot(handle_of(row), made.image)
    books.ready(made.id)
    path = f"{house.engine.prefix}/images/{quote(made.image, safe='')}/tag?repo=localhost/other&tag=1"
    assert house.engine.api("POST", path)[0] == 201
    yield made.image
    for name in (made.image, "localhost/other:1"):
        house.engine.api("DELETE", f"{house.engine.prefix}/images/{quote(name, safe='')}?force=true")


def names(house: House, image: str) -> dict[str, str]:
    document = house.engine.api("GET", f"{house.engine.prefix}/images/{quote(image, safe='')}/json")[1]
    assert isinstance(document, dict)
    identity = str(document["Id"]).removeprefix("sha256:")
    return {
        "name": image, "id": f"sha256:{identity}", "bare id": identity, "short id": identity[:12],
        "tag": "localhost/other:1",
    }  # fmt: skip


def admitted(house: House, who: str, image: str) -> Admitted | Exception:
    """What the gateway answers; what it accepts is not made."""
    [answer] = admit_all([Asking(workloads=tenant(house, who), spec=house.spec(image=image))])
    if isinstance(answer, Admitted):
        with house.service.ledger.writing():
            withdraw(house.service.ledger, answer.row.id)
    return answer


@pytest.mark.parametrize("way", ["name", "id", "bare id", "short id", "tag"])
def test_a_snapshot_of_another_tenant_is_as_missing_as_one_that_never_was(
    house: House, snapshot: str, way: str
) -> None:
    image = names(house, snapshot)[way]
    for attempt in (
        lambda: admitted(house, "blue", image),
        lambda: tenant(house, "blue").create(house.spec(image=image)),
        lambda: tenant(house, "blue").explain(house.spec(image=image)),
    ):
        try:
            refused = attempt()
        except DibsError as error:
            refused = error
        assert isinstance(refused, NotFound), refused
        assert refused.code == "IMAGE_NOT_FOUND"
    never = {"name": f"{REPOSITORY}:snap-never", "id": "sha256:" + "0" * 64, "bare id": "0" * 64, "short id": "0" * 12}
    if way in never:
        missing = admitted(house, "blue", never[way])
        assert isinstance(missing, NotFound)
        assert str(missing).replace(never[way], image) == str(refused)


def test_its_own_tenant_and_the_host_use_a_snapshot(house: House, snapshot: str) -> None:
    mine = admitted(house, "red", snapshot)
    assert isinstance(mine, Admitted), mine
    assert house.create(image=snapshot).state == "running"


def test_an_image_that_is_no_snapshot_is_for_every_tenant(house: House) -> None:
    assert isinstance(admitted(house, "blue", images.REFERENCE), Admitted)


ANSWER = "HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\nConnection: close\\r\\n\\r\\ncrimson"


@pytest.fixture
def gateway(house: House, tmp_path: Path) -> Iterator[RunningGateway]:
    one = RunningGateway(house.home, tmp_path).start()
    yield one
    one.stop()


@pytest.mark.parametrize("network", ["", "none"])
def test_a_port_of_a_container_is_passed_on_to_its_own_tenant_alone(
    house: House, gateway: RunningGateway, network: str
) -> None:
    """Through the gateway's proxy; with `none` only the container's own loopback is there."""
    red, blue = (gateway.make_token(name, "--tenant", name) for name in ("red", "blue"))
    serve = f"while true; do printf '{ANSWER}' | nc -l -p 8000; done"

    def made(token: str, *command: str) -> str:
        asked = {"backend": house.kind, "image": images.REFERENCE, "command": list(command), "grace": "0s"}
        answer = gateway.ask(
            "POST", "/api/v1/sandboxes", {**asked, **({"network": network} if network else {})}, token=token
        )
        assert answer.status == 202, answer.data
        box: str = answer.data["id"]
        path = f"/api/v1/sandboxes/{box}"
        gateway.until(lambda: gateway.ask("GET", path, token=token).data["state"] == "running")
        return box

    def passed_on(box: str, token: str) -> tuple[int, bytes]:
        reply = gateway.ask("GET", f"/v1/sandboxes/{box}/proxy/8000/", token=token)
        return reply.status, reply.body

    server, other = made(red, "sh", "-c", serve), made(blue, "sleep", "1000")
    gateway.until(lambda: passed_on(server, red) == (200, b"crimson"))
    assert passed_on(server, blue)[0] == 404
    status, body = passed_on(other, blue)
    assert (status in (404, 502), b"crimson" in body) == (True, False), body
