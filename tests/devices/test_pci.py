"""The PCI bus, in a sysfs tree of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dibs.devices.model import SourceError
from dibs.devices.pci import PciCard, address_of_node, describe, scan


def test_a_card_knows_its_root_and_its_numa_node(host: Any) -> None:
    host.pci("0000:1b:00.0", "pci0000:15", numa_node="1")
    card = describe("00000000:1B:00.0", host.roots)
    assert isinstance(card, PciCard)
    assert (card.root, card.numa_node, card.vendor_id, card.device_id) == ("pci0000:15", 1, 0x10DE, 0x2330)
    assert card.is_accelerator


def test_an_unknown_numa_node_is_left_out(host: Any) -> None:
    host.pci("0000:1b:00.0", numa_node="-1")
    card = describe("0000:1b:00.0", host.roots)
    assert isinstance(card, PciCard)
    assert card.numa_node is None


def test_an_empty_place_on_the_bus_is_none(host: Any) -> None:
    assert describe("0000:99:00.0", host.roots) is None


def test_a_number_that_is_none_is_an_error(host: Any) -> None:
    host.pci("0000:1b:00.0", numa_node="many")
    error = describe("0000:1b:00.0", host.roots)
    assert isinstance(error, SourceError)
    assert "many" in error.reason


def test_amds_driver_adds_memory_and_a_unique_id(host: Any) -> None:
    host.pci("0000:c1:00.0", vendor="0x1002", device="0x74a1", unique_id="e1a2", mem_info_vram_total="206141652992")
    card = describe("0000:c1:00.0", host.roots)
    assert isinstance(card, PciCard)
    assert (card.memory, card.unique_id) == (206141652992, "e1a2")


def test_a_drm_node_leads_to_its_card(host: Any) -> None:
    host.pci("0000:c1:00.0", drm=("card1", "renderD129"))
    assert address_of_node("/dev/dri/renderD129", host.roots) == "0000:c1:00.0"
    assert address_of_node("/dev/dri/renderD130", host.roots) is None
    assert address_of_node("/dev/nvidia0", host.roots) is None


def test_a_scan_finds_display_and_accelerator_classes_only(host: Any) -> None:
    for bus, kind in {"1b": "0x030200", "1c": "0x120000", "1d": "0x020000", "1e": "0x030000"}.items():
        host.pci(f"0000:{bus}:00.0", **{"class": kind})
    cards, errors = scan(host.roots)
    assert [card.bus_id for card in cards] == ["0000:1b:00.0", "0000:1c:00.0", "0000:1e:00.0"]
    assert errors == ()


def test_a_machine_without_pci_has_no_cards_and_no_error(host: Any) -> None:
    assert scan(host.roots) == ((), ())


def test_a_bus_that_cannot_be_listed_is_an_error(host: Any) -> None:
    folder = Path(host.roots.sys, "bus/pci")
    folder.mkdir(parents=True)
    (folder / "devices").write_text("")
    cards, (error,) = scan(host.roots)
    assert cards == ()
    assert "Not a directory" in error.reason
