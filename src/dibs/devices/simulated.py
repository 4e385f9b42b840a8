"""The simulated world: devices that look like real ones and are `/dev/null` underneath.

A person switches it on and off (`dibs gpus simulate 8`); while it is on, `inventory` offers nothing else, so simulated
and real devices are never mixed. The world is a small JSON file in the state folder. A file that cannot be read is an
error that is shown: it never reads as "off", because then real devices would be offered unexpectedly.

A card that can be cut is offered whole and in parts. The units make them exclude each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices import catalogue
from dibs.devices.catalogue import Model
from dibs.devices.model import Attribute, CdiAttachment, Device, Health, UnitId
from dibs.devices.names import CDI_NAME, NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, SIMULATED, plain_index, pool_name, version
from dibs.errors import InvalidRequest, Problem, StateError
from dibs.home import Home

MAX_DEVICES = 100_000
MAX_PARTS = 64
DEFAULT_MODEL = "H100"
DEFAULT_REASON = "switched off by the simulation"

IDENTITY = "simulated-id"
SPEC_FILE = "sim.dibs-gpu.json"
_SPEC = "sim.dibs/gpu"
_DRIVER_VERSIONS = {"nvidia": "580.95.5", "amd": "6.16.6", "intel": "1.6.0"}

# A real box with eight cards: four PCIe roots, two on each processor, two cards under each. Larger worlds repeat it in
# further PCI domains.
_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_ROOTS = ("15", "15", "4b", "4b", "97", "97", "c7", "c7")


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """So many cards of one model, whole or also cut in so many equal parts."""

    model: str
    count: int
    partitions: int = 0
    shared: bool = False  # several claims may take parts of a card's memory


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is simulated. Cards are numbered over all groups; `unhealthy` says why a card is broken, by its number."""

    groups: tuple[Group, ...]
    unhealthy: dict[int, str] = {}
    version: int = 1

    @property
    def cards(self) -> int:
        return sum(group.count for group in self.groups)


def parse_world(
    count_or_spec: str | int,
    model: str | None = None,
    partitions: int | None = None,
    unhealthy: str | Iterable[str] | None = None,
    shared: bool = False,
) -> World:
    """Read what a person wrote: `8` with a model, or `H100:4,L4:2`; broken cards as `3` or `3=Xid 79`.

    Raises InvalidRequest with all problems.
    """
    problems: list[Problem] = []
    groups = _parse_groups(str(count_or_spec).strip(), model, partitions or 0, problems)
    if shared and partitions:
        reason = "a card is cut in parts or shared by memory, not both"
        problems.append(Problem("INVALID_REQUEST", "shared", "", reason, "leave one of them out"))
    groups = tuple(msgspec.structs.replace(group, shared=shared) for group in groups)
    broken = _parse_unhealthy(unhealthy, problems)
    world = World(groups, broken)
    problems += _problems(world, counts_known=not problems)
    if problems:
        raise InvalidRequest(problems)
    return world


def simulate(home: Home, world: World) -> tuple[Device, ...]:
    """Switch a world on, in place of the one before, and return its devices. The file is replaced in one step."""
    problems = _problems(world)
    if problems:
        raise InvalidRequest(problems)
    home.make()
    data = msgspec.json.format(msgspec.json.encode(world), indent=2) + b"\n"
    try:
        _write(home, data)
        _make_identity(home)
    except OSError as error:
        raise _unusable(home, f"the simulated world cannot be written: {error.strerror}") from error
    devices = devices_of(world)
    _write_spec(home, devices)
    return devices


def _make_identity(home: Home) -> None:
    """What tells this home's simulated cards from another's of the same name; it stays when the world changes."""
    if identity(home):
        return
    draft = home.state / f".simulated-id.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, home.file_mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(8).hex())
    with contextlib.suppress(FileExistsError):
        os.link(draft, home.state / IDENTITY)
    draft.unlink()


def identity(home: Home) -> str:
    """The identity of a home's simulation; "" if it has none yet."""
    try:
        return (home.state / IDENTITY).read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unusable(home, f"the simulated world's identity cannot be read: {error.strerror}") from error


def _write_spec(home: Home, devices: tuple[Device, ...]) -> None:
    """The world as a CDI spec in `<state>/cdi`: an engine that is told to read that folder knows it by name."""
    from dibs.cdi.errors import CdiError
    from dibs.cdi.names import parse_qualified_name
    from dibs.cdi.spec import Device as SpecDevice
    from dibs.cdi.spec import Spec
    from dibs.cdi.store import at_minimum_version, write_file

    entries = tuple(
        SpecDevice(name=parse_qualified_name(device.cdi.cdi_name)[2], container_edits=device.cdi.edits)
        for device in devices
        if device.cdi is not None
    )
    try:
        marked = ContainerEdits(env=(f"DIBS_WORLD={identity(home)}",))  # also what is started past dibs is told apart
        spec = at_minimum_version(Spec(kind=_SPEC, devices=entries, container_edits=marked))
        write_file(spec, str(home.state / "cdi" / SPEC_FILE), overwrite=True)
    except CdiError as error:
        raise _unusable(home, f"the spec of the simulated world cannot be written: {error}") from error


def off(home: Home) -> bool:
    """Switch the simulation off, even if its file is broken. True if there was one."""
    try:
        (home.state / "cdi" / SPEC_FILE).unlink(missing_ok=True)
        home.simulated.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(home, f"the simulated world cannot be switched off: {error.strerror}") from error
    return True


def load(home: Home) -> World | None:
    """The world that is switched on; None if none is. StateError if that cannot be known."""
    data = _read(home)
    return None if data is None else _decode(home, data)


def load_devices(home: Home) -> tuple[Device, ...] | None:
    """The devices of the world that is switched on; None if none is. StateError if that cannot be known."""
    data = _read(home)
    return None if data is None else _devices_of_file(home, data, pool_name())


@lru_cache(maxsize=4)
def _devices_of_file(home: Home, data: bytes, pool: str) -> tuple[Device, ...]:
    """A gateway asks many times for the same large world; it is built again only when the file says something else."""
    return devices_of(_decode(home, data), pool)


def _read(home: Home) -> bytes | None:
    try:
        return home.simulated.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(home, f"the simulated world cannot be read: {error.strerror}") from error


def _decode(home: Home, data: bytes) -> World:
    try:
        world = msgspec.json.decode(data, type=World)
    except msgspec.DecodeError as error:
        raise _unusable(home, f"the simulated world is damaged: {error}") from error
    if world.version != 1:
        raise _unusable(home, f"the simulated world has version {world.version}, and this dibs knows 1")
    problems = _problems(world)
    if problems:
        raise _unusable(home, "the simulated world is damaged: " + "; ".join(str(problem) for problem in problems))
    return world


def devices_of(world: World, pool: str | None = None) -> tuple[Device, ...]:
    """All devices of a world: each card, followed by its parts."""
    pool = pool or pool_name()
    devices: list[Device] = []
    first = 0
    for group in world.groups:
        model = catalogue.find(group.model)
        if model is None:
            raise AssertionError(f"unknown model {group.model} in a checked world")
        shared = _attributes(model)
        for index in range(first, first + group.count):
            reason = world.unhealthy.get(index)
            card = _card(model, pool, index, shared, group.partitions)
            if group.shared:
                card = msgspec.structs.replace(card, shareable=True)
            if reason is not None:
                card = msgspec.structs.replace(card, health=Health(ok=False, reason=reason or DEFAULT_REASON))
            devices.append(card)
            devices.extend(_part(card, part, group.partitions) for part in range(group.partitions))
        first += group.count
    return tuple(devices)


def _card(model: Model, pool: str, index: int, shared: dict[str, Attribute], parts: int) -> Device:
    domain, place = divmod(index, 8)
    uuid = _uuid("GPU", f"{pool}/{index}")
    card_id = f"{model.driver}/{pool}/gpu-{index}"
    cdi_name = f"sim.dibs/gpu={index}"
    return Device(
        driver=model.driver,
        pool=pool,
        name=f"gpu-{index}",
        vendor=model.vendor,
        model=model.key,
        uuid=uuid,
        index=index,
        attributes={
            "type": "gpu",
            "uuid": uuid,
            "index": index,
            **shared,
            PCIE_ROOT: f"pci{domain:04x}:{_ROOTS[place]}",
            PCI_BUS_ID: f"{domain:04x}:{_BUSES[place]}:00.0",
            NUMA_NODE: place // 4,
            CDI_NAME: cdi_name,
        },
        capacity={"memory": model.memory},
        units=tuple([UnitId(f"{card_id}#{part}") for part in range(parts)]) if parts else (),
        aliases=(str(index), cdi_name, f"{model.vendor}.com/gpu={index}"),
        attachment=CdiAttachment(cdi_name, ContainerEdits(device_nodes=(_node(f"/dev/simgpu{index}"),)), _SPEC),
        simulated=True,
        source="simulated",
    )


def _part(card: Device, part: int, parts: int) -> Device:
    """One of the equal parts of a card: its own node beside the card's, as a MIG device has."""
    assert card.cdi is not None
    spelled = f"{card.index}:{part}"
    uuid = _uuid("MIG", f"{card.pool}/{spelled}")
    attributes = {**card.attributes, "type": "mig", "uuid": uuid, "parentUUID": card.uuid}
    attributes["parentIndex"] = attributes.pop("index")
    memory = card.capacity["memory"] // parts
    if profile := _profile(card, parts):
        attributes["profile"] = profile
        memory = card.capacity["memory"] * _SLICES[parts][1] // _MEMORY_SLICES
    attributes[CDI_NAME] = f"sim.dibs/gpu={spelled}"
    nodes = (*card.cdi.edits.device_nodes, _node(f"/dev/simgpu{card.index}p{part}"))
    return Device(
        driver=card.driver,
        pool=card.pool,
        name=f"{card.name}-part-{part}",
        vendor=card.vendor,
        model=card.model,
        uuid=uuid,
        attributes=attributes,
        capacity={"memory": memory},
        units=(card.units[part],),
        parent=card.id,
        health=card.health,
        aliases=(spelled, f"sim.dibs/gpu={spelled}", f"{card.vendor}.com/gpu={spelled}"),
        attachment=CdiAttachment(f"sim.dibs/gpu={spelled}", ContainerEdits(device_nodes=nodes), _SPEC),
        simulated=True,
        source="simulated",
    )


# The MIG instances that a card can be cut into evenly, and the compute and memory slices of each. The memory comes in
# eighths, so seven instances leave one of them unused.
_SLICES = {7: (1, 1), 4: (1, 2), 3: (2, 2), 2: (3, 4)}
_MEMORY_SLICES = 8


def _profile(card: Device, parts: int) -> str:
    """The MIG profile of equal parts; empty for cards without MIG and for numbers that no profile gives."""
    model = catalogue.find(card.model)
    if model is None or not model.mig or parts not in _SLICES:
        return ""
    compute, memory = _SLICES[parts]
    return f"{compute}g.{-(-model.nominal_gb * memory // _MEMORY_SLICES)}gb"


def _attributes(model: Model) -> dict[str, Attribute]:
    """What all cards of a model have in common."""
    attributes: dict[str, Attribute] = {
        "productName": model.product,
        "architecture": model.architecture,
        SIMULATED: True,
    }
    for name, text in (
        ("driverVersion", _DRIVER_VERSIONS[model.vendor]),
        ("cudaComputeCapability", model.compute),
    ):
        value = version(text)
        if value is not None:
            attributes[name] = value
    return attributes


def _uuid(prefix: str, what: str) -> str:
    """Always the same for the same card of the same host."""
    from _blake2 import blake2b  # what hashlib gives; hashlib itself would load all of OpenSSL

    digits = blake2b(what.encode(), digest_size=16).hexdigest()
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _node(path: str) -> DeviceNode:
    """A node that exists everywhere and does nothing: /dev/null under another name."""
    return DeviceNode(path=path, host_path="/dev/null", type="c", major=1, minor=3)


def _parse_groups(spec: str, model: str | None, parts: int, problems: list[Problem]) -> tuple[Group, ...]:
    count = plain_index(spec)
    if count is not None:
        return (Group(model or DEFAULT_MODEL, count, parts),)
    if model is not None:
        reason = "a world that names its models takes no further --model"
        problems.append(Problem("INVALID_REQUEST", "model", model, reason, f"write a count such as 8, or only {spec}"))
    groups = []
    for item in spec.split(","):
        name, colon, number = item.strip().rpartition(":")
        if not colon:
            name, number = item.strip(), "1"
        amount = plain_index(number.strip())
        if amount is None or not name:
            reason = "write a count such as 8, or models with counts such as H100:4,L4:2"
            problems.append(Problem("INVALID_REQUEST", "simulate", item.strip() or spec, reason))
            continue
        groups.append(Group(name.strip(), amount, parts))
    return tuple(groups)


def _parse_unhealthy(unhealthy: str | Iterable[str] | None, problems: list[Problem]) -> dict[int, str]:
    if unhealthy is None:
        return {}
    if isinstance(unhealthy, str):
        # A reason may hold commas; a list of bare numbers may not hold a reason.
        items: Iterable[str] = (unhealthy,) if "=" in unhealthy else unhealthy.split(",")
    else:
        items = unhealthy
    broken: dict[int, str] = {}
    for item in items:
        number, _, reason = item.partition("=")
        index = plain_index(number.strip())
        if index is None:
            why = "name a card by its number, with a reason if you like: 3 or 3=Xid 79"
            problems.append(Problem("INVALID_REQUEST", "unhealthy", item, why))
        elif index in broken:
            problems.append(Problem("INVALID_REQUEST", "unhealthy", item, f"card {index} is named twice"))
        else:
            broken[index] = reason.strip() or DEFAULT_REASON
    return broken


def _problems(world: World, *, counts_known: bool = True) -> list[Problem]:
    """Everything that is wrong with a world. Where the counts were unreadable, what follows from them is not judged."""
    problems: list[Problem] = []
    devices = 0
    for group in world.groups:
        if catalogue.find(group.model) is None:
            close = catalogue.close_matches(group.model)
            remedy = f"did you mean {', '.join(close)}?" if close else f"the models are {_all_models()}"
            problems.append(Problem("UNKNOWN_MODEL", "model", group.model, "there is no such model", remedy))
        if group.count < 1:
            remedy = "to have no simulated devices: dibs gpus simulate off"
            problems.append(Problem("INVALID_REQUEST", "count", str(group.count), "must be at least 1", remedy))
        if group.partitions != 0 and not 2 <= group.partitions <= MAX_PARTS:
            reason = f"a card can be cut in 2 to {MAX_PARTS} parts"
            remedy = "leave it out for whole cards only"
            problems.append(Problem("INVALID_REQUEST", "partitions", str(group.partitions), reason, remedy))
        devices += group.count * (1 + max(group.partitions, 0))
    if not world.groups and counts_known:
        problems.append(Problem("INVALID_REQUEST", "groups", "", "a world needs at least one card"))
    if devices > MAX_DEVICES:
        reason = f"a world can have at most {MAX_DEVICES} devices, parts included"
        problems.append(Problem("INVALID_REQUEST", "count", str(devices), reason))
    cards = world.cards
    for index in world.unhealthy:
        if counts_known and not 0 <= index < cards:
            reason = f"there is no such card; they are numbered 0 to {cards - 1}"
            problems.append(Problem("INVALID_REQUEST", "unhealthy", str(index), reason))
    return problems


def _all_models() -> str:
    return ", ".join(model.key for model in catalogue.MODELS)


def _write(home: Home, data: bytes) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(prefix=".simulated-", dir=home.state)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o660 if home.shared else 0o600)
        os.replace(temporary, home.simulated)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _unusable(home: Home, reason: str) -> StateError:
    return StateError(
        reason,
        field="simulated world",
        value=str(home.simulated),
        code="SIMULATED_WORLD_UNUSABLE",
        remedy="switch the simulation off: dibs gpus simulate off",
    )
