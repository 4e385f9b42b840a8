"""What a backend says of itself before it is made: its column of the delivery table, and a few facts.

Each backend's package has a `declaration` module; `installed` finds it by the backend's name. The layers above decide
by what is declared here and by the optional protocols of the port, never by a name. A declaration is plain data: it
loads neither the backend nor what the backend needs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from dibs.backends.port import Backend
    from dibs.errors import Problem
    from dibs.home import Home
    from dibs.process import ProcessName
    from dibs.sandbox import Handle
    from dibs.settings import Settings


class Outcome(enum.StrEnum):
    DELIVERED = "delivered"
    DELEGATED = "delegated"
    REFUSED = "refused"


class Cell(msgspec.Struct, frozen=True):
    """What happens to a field on a backend, and how it is known. `probe`: only if the backend finds it can, here."""

    outcome: Outcome
    how: str
    probe: bool = False
    code: str = ""  # of the refusal, where there is a better one than that the field is not supported


def delivered(how: str, *, probe: bool = False) -> Cell:
    return Cell(Outcome.DELIVERED, how, probe)


def delegated(how: str) -> Cell:
    return Cell(Outcome.DELEGATED, how)


def refused(why: str, code: str = "") -> Cell:
    return Cell(Outcome.REFUSED, why, code=code)


class Place(msgspec.Struct, frozen=True):
    """What a backend is made from. `name`: of this one, where there can be several of a kind."""

    name: str
    home: Home
    settings: Settings
    long_lived: bool = False  # the process makes many sandboxes, such as a gateway


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of backend.

    name            in requests, in the configuration and in the ledger
    make            makes one; loads what it needs only then
    column          a cell for every field of a request (`plan.delivery` says which there are)
    auto            whether `auto` tries it where the configuration has no order
    testing         runs nothing real: only ever taken by name, and not offered by completion
    root            where a sandbox's files come from. "host": this host's own, a folder or a tar; names of images are
                    those of the configuration. "image": a container image. "none": there are no files
    host_files      whether folders of this host can be seen in its sandboxes
    scheduled       a scheduler of its own chooses the devices (`Scheduler` in the port)
    inspects_images asks another program about an image before a request is accepted, which may take its time
    per_user        the host service can run its sandboxes as the users who ask; else only root may have them there
    peer_network    the network that the ranks of a job get if none is said, where they can be given names only there
    served          the names of this kind that a configuration serves
    domains         the domains of devices that a configuration serves by it, beside this host
    absent          why this host does not have what it talks to, known without asking it; None if it has
    first_process   the first process of a sandbox as seen from this host, where the handle does not name it
    """

    name: str
    make: Callable[[Place], Backend]
    column: Mapping[str, Cell]
    auto: bool = False
    testing: bool = False
    root: Literal["host", "image", "none"] = "image"
    host_files: bool = True
    scheduled: bool = False
    inspects_images: bool = False
    per_user: bool = False
    peer_network: Literal["", "host", "private"] = ""
    served: Callable[[Settings], tuple[str, ...]] | None = None
    domains: Callable[[Settings], tuple[str, ...]] | None = None
    absent: Callable[[Settings], Problem | None] | None = None
    first_process: Callable[[Handle], ProcessName | None] | None = None

    def names(self, settings: Settings) -> tuple[str, ...]:
        return (self.name,) if self.served is None else self.served(settings)


_CHOSEN = delivered("chosen by dibs, booked in the ledger")

# What dibs does by itself, whatever runs the workload.
BY_DIBS: dict[str, Cell] = {
    "name": delivered("unique among the live sandboxes of a tenant, by the ledger"),
    "wait": delivered("a place in the ledger's queue, first come first served"),
    "labels": delivered("kept in the ledger"),
}

# The same for backends of this host, whose devices dibs chooses and books.
BOOKED: dict[str, Cell] = {
    **BY_DIBS,
    "gpu.vendor": _CHOSEN,
    "gpu.models": _CHOSEN,
    "gpu.memory": _CHOSEN,
    "gpu.profile": _CHOSEN,
    "gpu.all": delivered("resolved to a list when planned; the list is in the plan and the receipt"),
    "devices": delivered("exactly the named devices, or a refusal that names the holder"),
    "where": delivered("CEL, evaluated by dibs on the devices that it found"),
    "claim": delivered("solved by dibs' own DRA allocator; admin access and driver configuration are refused"),
    "allow_busy": delivered("cards that processes outside dibs use may be given; the receipt says so"),
}
