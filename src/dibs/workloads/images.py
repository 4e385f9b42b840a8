"""Which images a tenant may use: all that an engine has or can pull, but no snapshot of another tenant.

`admission` and `service` ask before anything is made of an image. A snapshot belongs to the tenant of its sandbox, by
whatever it is called: its name, its id, a digest or a tag that was added later. To other tenants it is as missing as
one that never was. A caller without a tenant (a user of the host, an administrator) may use every image.
"""

from __future__ import annotations

from dibs.backends.port import Backend, ImageStore
from dibs.errors import NotFound
from dibs.ledger.snapshots import Snapshots
from dibs.ledger.store import Ledger
from dibs.patterns import lazy_pattern
from dibs.workloads.identity import HOST, Identity

REPOSITORY = "localhost/dibs-snapshot"  # of all snapshots; with a registry that is none, so it is never pulled
_AN_ID = lazy_pattern(r"sha256:[0-9a-f]{1,64}|[0-9a-f]{12,64}")


def check_image(ledger: Ledger, backend: Backend, who: Identity, image: str) -> None:
    """Raises NotFound if there is no such image for this caller. Asks the engine: call it outside of a transaction."""
    if not image or who.sees_all or who.tenant == HOST or not isinstance(backend, ImageStore):
        return
    found = backend.image(image)
    if found is None:
        if _is_snapshot(image) or _AN_ID.fullmatch(image):  # it cannot be pulled
            raise _missing(image)
        return
    names = {name for name in (found.snapshot, *found.names, image) if name and _is_snapshot(name)}
    if names and not any(_belongs(ledger, name, who) for name in names):
        raise _missing(image)


def _is_snapshot(name: str) -> bool:
    return name.removeprefix("docker.io/").partition("@")[0].partition(":")[0] == REPOSITORY


def _belongs(ledger: Ledger, name: str, who: Identity) -> bool:
    row = Snapshots(ledger).of_image(name)
    return row is not None and who.sees(row.tenant)


def _missing(image: str) -> NotFound:
    remedy = "check its name and tag"
    return NotFound("there is no such image", field="image", value=image, code="IMAGE_NOT_FOUND", remedy=remedy)
