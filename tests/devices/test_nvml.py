"""What NVML says, and what it refuses to say: recorded answers of the library, no GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.devices.model import ExternalUse, Health
from dibs.devices.nvml import NvmlReading, external_use, read

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LOST, RESET, MISMATCH, UNKNOWN = (
    3,
    4,
    9,
    12,
    15,
    16,
    18,
    999,
)


def reading(host: Any, *cards: dict[str, Any], ours: tuple[int, ...] = (), **system: Any) -> NvmlReading:
    return read(lambda pid: pid in ours, host.roots, host.recorded(list(cards), **system))


def test_a_card_is_described_in_full(host: Any) -> None:
    (card,) = reading(host, host.card(0)).cards
    assert card.uuid == host.uuids[0]
    assert card.minor == 0
    assert card.product == "NVIDIA H100 80GB HBM3"
    assert card.memory == 85520809984
    assert card.bus_id == "0000:1b:00.0"
    assert card.architecture == "Hopper"
    assert card.compute == "9.0"
    assert card.mig is False
    assert card.health == Health()
    assert card.used_by == ()


def test_the_library_is_closed_again(host: Any) -> None:
    library = host.recorded([host.card(0)])
    read(lambda _: False, host.roots, library)
    assert library.open == 0


CALLS = {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetName": "product",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPciInfo": "bus_id",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "compute",
    "nvmlDeviceGetMigMode": "mig",
}


@pytest.mark.parametrize(("call", "field"), CALLS.items())
def test_what_is_not_supported_is_left_out_and_nothing_else(host: Any, call: str, field: str) -> None:
    complete = reading(host, host.card(0)).cards[0]
    result = reading(host, host.card(0, **{call: host.fails(NOT_SUPPORTED)}))
    assert result.errors == ()
    for name in CALLS.values():
        value = getattr(result.cards[0], name)
        if name == field:
            assert value in (None, "")
        else:
            assert value == getattr(complete, name)
    assert result.cards[0].health.ok


@pytest.mark.parametrize("call", [*CALLS, "nvmlDeviceGetRemappedRows", "nvmlDeviceGetComputeRunningProcesses"])
def test_another_failure_is_an_error_in_the_librarys_words(host: Any, call: str) -> None:
    result = reading(host, host.card(0, **{call: host.fails(UNKNOWN)}), host.card(1))
    assert len(result.cards) == 2
    (error,) = result.errors
    assert error.source == "nvml"
    assert error.reason.startswith("card 0: ")
    assert "Unknown Error" in error.reason


@pytest.mark.parametrize(("code", "words"), [(LOST, "GPU is lost"), (RESET, "GPU requires restart")])
def test_a_lost_card_is_unhealthy_and_keeps_what_is_known_of_it(host: Any, code: int, words: str) -> None:
    result = reading(host, host.card(0), host.card(1, nvmlDeviceGetName=host.fails(code)))
    assert result.errors == ()
    lost = result.cards[1]
    assert lost.health == Health(ok=False, reason=f"NVML: {words}")
    assert lost.uuid == host.uuids[1]
    assert result.cards[0].health.ok


def test_a_card_without_a_handle_is_unhealthy(host: Any) -> None:
    result = reading(host, host.card(0, nvmlDeviceGetHandleByIndex=host.fails(LOST)), host.card(1))
    assert [card.health.ok for card in result.cards] == [False, True]
    assert result.cards[0].uuid == ""


def test_a_card_that_cannot_be_opened_is_unhealthy_and_an_error(host: Any) -> None:
    result = reading(host, host.card(0, nvmlDeviceGetHandleByIndex=host.fails(NO_PERMISSION)))
    assert not result.cards[0].health.ok
    assert "Insufficient Permissions" in result.errors[0].reason


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"nvmlDeviceGetRemappedRows": (0, 1, 1, 0)}, "waits to be remapped: reset the GPU"),
        ({"nvmlDeviceGetRemappedRows": (0, 1, 0, 1)}, "could not be remapped: the card needs service"),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, "wait to be retired"),
        ({"action": 2}, "the driver asks to reboot the node"),
    ],
)
def test_broken_memory_and_a_wanted_reset_make_a_card_unhealthy(
    host: Any, answers: dict[str, Any], reason: str
) -> None:
    if "action" in answers:
        value = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=answers["action"]))
        answers = {"nvmlDeviceGetFieldValues": [value]}
    (card,) = reading(host, host.card(0, **answers)).cards
    assert not card.health.ok
    assert reason in card.health.reason


def test_rows_that_were_remapped_long_ago_are_healthy(host: Any) -> None:
    assert reading(host, host.card(0, nvmlDeviceGetRemappedRows=(3, 2, 0, 0))).cards[0].health.ok


def test_a_field_that_an_old_driver_does_not_know_is_no_illness(host: Any) -> None:
    unknown = [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=7))]
    assert reading(host, host.card(0, nvmlDeviceGetFieldValues=unknown)).cards[0].health.ok


def test_instances_are_listed_with_their_numbers(host: Any) -> None:
    parts = [host.part(0, 7), host.fails(6), host.part(2, 9)]
    card = host.card(0, nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7, parts=parts)
    result = reading(host, card)
    assert result.errors == ()
    found = result.cards[0]
    assert found.mig is True
    assert [(part.index, part.uuid, part.gpu_instance) for part in found.parts] == [
        (0, host.mig_uuids[0], 7),
        (2, host.mig_uuids[2], 9),
    ]
    assert found.parts[0].profile == "1g.10gb"
    assert found.parts[0].memory == 10 << 30


def test_processes_of_others_are_named_and_our_own_are_not(host: Any) -> None:
    host.file("/proc/41/cmdline", "python\0train.py\0")
    host.file("/proc/42/cmdline", "python\0ours.py\0")
    running = [SimpleNamespace(pid=41), SimpleNamespace(pid=42), SimpleNamespace(pid=41)]
    result = reading(host, host.card(0, nvmlDeviceGetComputeRunningProcesses=running), ours=(42,))
    (use,) = result.cards[0].used_by
    assert (use.pid, use.command) == (41, "python train.py")
    assert use.user


def test_a_process_that_cannot_be_seen_still_counts(host: Any) -> None:
    running = [SimpleNamespace(pid=77)]
    result = reading(host, host.card(0, nvmlDeviceGetComputeRunningProcesses=running))
    assert result.cards[0].used_by == (ExternalUse(77, "unknown", "not visible from here"),)


def test_this_very_process_has_a_user_and_a_command() -> None:
    use = external_use(os.getpid())
    assert use.user not in ("", "unknown")
    assert "py" in use.command


def test_a_host_without_nvidia_has_no_cards_and_no_error(host: Any) -> None:
    assert read(lambda _: False, host.roots) == NvmlReading(present=False)
    library = host.recorded([], nvmlInit=host.fails(LIBRARY_NOT_FOUND))
    assert read(lambda _: False, host.roots, library) == NvmlReading(present=False)


@pytest.mark.parametrize("trace", ["/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version"])
def test_a_driver_that_does_not_answer_is_an_error_where_it_left_traces(host: Any, trace: str) -> None:
    host.file(trace, "NVRM version: 580.95.05\n")
    result = reading(host, nvmlInit=host.fails(DRIVER_NOT_LOADED))
    assert not result.present
    (error,) = result.errors
    assert "Driver Not Loaded" in error.reason
    assert result.unusable == "NVML: Driver Not Loaded"


def test_the_real_library_is_asked_where_there_are_traces(host: Any) -> None:
    host.nodes("/dev/nvidiactl")
    try:
        import ctypes

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        result = read(lambda _: False, host.roots)
        assert "NVML Shared Library Not Found" in result.errors[0].reason
        assert result.unusable == ""
    else:
        pytest.skip("this host has NVIDIA's library")


def test_a_mismatch_of_driver_and_library_says_what_is_loaded_and_to_reboot(host: Any) -> None:
    host.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1.2\nGCC\n")
    (error,) = reading(host, nvmlInit=host.fails(MISMATCH)).errors
    assert "570.1.2" in error.reason
    assert "GCC" not in error.reason
    assert "reboot" in error.remedy


def test_a_failure_to_count_is_an_error_and_closes_the_library(host: Any) -> None:
    library = host.recorded([], nvmlDeviceGetCount=host.fails(UNKNOWN))
    result = read(lambda _: False, host.roots, library)
    assert not result.present
    assert "Unknown Error" in result.errors[0].reason
    assert library.open == 0
