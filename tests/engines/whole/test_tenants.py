"""Snapshots belong to a tenant, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.engines import images
from tests.engines.whole.house import House

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
    house.service.backend_of(row).snapshot(handle_of(row), made.image)
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
