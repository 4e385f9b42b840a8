"""OCI hooks of devices: each is run when it should be, or the device is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.local.bench import PATIENCE, Bench, granted

from dibs.backends.port import GrantedDevice, Phase
from dibs.cdi.spec import ContainerEdits, DeviceNode, Hook
from dibs.errors import BackendUnavailable, DibsError, Unsupported


def script(bench: Bench, name: str, text: str) -> str:
    path = bench.work / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {bench.work}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def with_hooks(*hooks: Hook) -> GrantedDevice:
    node = DeviceNode(path="/dev/simgpu0", host_path="/dev/null")
    return granted("0", ContainerEdits(device_nodes=(node,), hooks=hooks))


def test_every_hook_runs_at_its_moment(bench: Bench) -> None:
    program = script(bench, "hook", 'echo "$1 $MARK" >> order; cat > "$1.json"')
    names = ("poststop", "poststart", "startContainer", "createContainer", "createRuntime", "prestart")
    hooks = [Hook(name, program, ("hook", name), ("MARK=m",)) for name in names]
    handle = bench.create("sh", "-c", "echo command >> order", devices=(with_hooks(*hooks),))
    order = bench.work / "order"
    assert order.read_text().splitlines() == ["createRuntime m", "prestart m", "createContainer m"]
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    lines = order.read_text().splitlines()
    assert lines[3] == "startContainer m"
    assert sorted(lines[4:]) == ["command", "poststart m", "poststop m"]
    assert handle.init is not None
    state = json.loads((bench.work / "createRuntime.json").read_text())
    assert (state["id"], state["status"], state["pid"]) == (handle.sandbox_id, "created", handle.init.pid)
    assert json.loads((bench.work / "poststop.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize("name", ["createContainer", "startContainer"])
@pytest.mark.parametrize("command", [("sleep", "1000"), ("setsid", "sleep", "1000")], ids=["plain", "own-session"])
def test_a_command_that_goes_on_is_found_whatever_ran_in_the_sandbox_before_it(
    bench: Bench, name: str, command: tuple[str, ...]
) -> None:
    """A process of a hook has had the number that the command has otherwise, and another is left of it."""
    program = script(bench, "hook", "(sleep 1000 &) </dev/null >/dev/null 2>&1; echo hook >> ran")
    handle = bench.create(*command, devices=(with_hooks(Hook(name, program)),))
    bench.backend.start(handle)
    assert (bench.work / "ran").read_text() == "hook\n"
    assert bench.backend.status(handle).phase is Phase.RUNNING
    bench.backend.stop(handle, PATIENCE)  # by a signal that the command hears
    ended = bench.backend.wait(handle, PATIENCE).exit
    assert ended is not None
    assert (ended.reason, ended.signal) == ("stopped", 15)


def test_a_hook_outside_finds_the_root_of_the_sandbox(bench: Bench) -> None:
    text = 'root=$(sed "s/.*\\"path\\":\\"//;s/\\".*//" $(sed "s/.*\\"bundle\\":\\"//;s/\\".*//")/config.json)'
    program = script(bench, "hook", f'{text}; ls $root/dev > seen; echo "$root" > root')
    bench.create("true", devices=(with_hooks(Hook("createRuntime", program)),))
    assert "simgpu0" in (bench.work / "seen").read_text()


def test_a_hook_in_the_sandbox_has_its_files_and_powers_over_them(bench: Bench) -> None:
    text = (
        'bundle=$(sed "s/.*\\"bundle\\":\\"//;s/\\".*//"); cat $bundle/config.json > config;'
        "ln -s here /tmp/link-by-hook; mount -t tmpfs none /run && echo mounted > mounted; ls /dev > seen"
    )
    program = script(bench, "hook", text)
    device = with_hooks(Hook("createContainer", program))
    assert bench.sh("readlink /tmp/link-by-hook", devices=(device,)) == "here\n"
    assert json.loads((bench.work / "config").read_text())["root"]["path"] == "/"
    assert "simgpu0" in (bench.work / "seen").read_text()
    assert not os.path.lexists("/tmp/link-by-hook")
    assert (bench.work / "mounted").exists()


@pytest.mark.parametrize("name", ["prestart", "createRuntime", "createContainer", "startContainer"])
def test_a_failing_hook_keeps_the_command_from_running(bench: Bench, name: str) -> None:
    program = script(bench, "hook", "exit 3")
    workload = bench.workload("touch", "ran", devices=(with_hooks(Hook(name, program)),))
    folder = bench.home.sandbox(workload.id)
    realisation = bench.backend.render(workload, folder)
    with pytest.raises(BackendUnavailable, match=f"{name} hook ended with 3"):
        handle = bench.backend.create(workload, realisation, folder)
        bench.handles.append(handle)
        bench.backend.start(handle)
    assert not (bench.work / "ran").exists()
    if name == "startContainer":
        assert bench.backend.status(bench.handles[0]).phase is Phase.EXITED
    else:
        assert not folder.exists()


@pytest.mark.parametrize("name", ["createRuntime", "createContainer"])
def test_a_hook_that_takes_too_long_is_ended(bench: Bench, name: str) -> None:
    program = script(bench, "hook", "exec sleep 1000")
    with pytest.raises(BackendUnavailable, match="longer than 1 s"):
        bench.create("true", devices=(with_hooks(Hook(name, program, timeout=1)),))


def test_a_failing_hook_after_the_start_is_reported_in_the_log(bench: Bench) -> None:
    program = script(bench, "hook", "exit 3")
    device = with_hooks(Hook("poststart", program), Hook("poststop", program))
    handle = bench.start("sh", "-c", "read x; echo fine", interactive=True, devices=(device,))
    bench.attach(handle).send(b"\n")
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert status.exit.code == 0
    told = bench.said(handle, "stderr")
    assert "poststart hook ended with 3" in told
    assert "poststop hook" in told


def test_hooks_that_cannot_be_run_make_the_device_refused(bench: Bench) -> None:
    device = with_hooks(Hook("createRuntime", "/no/such/hook"), Hook("whenever", "/bin/true"))
    with pytest.raises(Unsupported) as caught:
        bench.create("true", devices=(device,))
    assert [(p.code, p.value) for p in caught.value.problems] == [
        ("HOOK_NOT_FOUND", "/no/such/hook"),
        ("FIELD_NOT_SUPPORTED", "whenever"),
    ]


def test_a_missing_hook_in_the_sandbox_is_an_error_at_the_start(bench: Bench) -> None:
    handle = bench.create("touch", "ran", devices=(with_hooks(Hook("startContainer", "/no/such/hook")),))
    with pytest.raises(DibsError):
        bench.backend.start(handle)
    assert not (bench.work / "ran").exists()


def test_hooks_do_not_get_the_environment_of_the_sandbox(bench: Bench) -> None:
    program = script(bench, "hook", "env > seen-env")
    bench.create("true", env={"PATH": "/bin", "SECRET": "x"}, devices=(with_hooks(Hook("createRuntime", program)),))
    assert "SECRET" not in Path(bench.work / "seen-env").read_text()
