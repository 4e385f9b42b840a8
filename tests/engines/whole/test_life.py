"""The life of a container: the command's verbs, ends by hand, time to live, and engines that go away."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engines import images
from tests.engines.whole.house import House, keeper_of, until

from dibs.backends.engines import client
from dibs.backends.port import TakesSnapshots, must
from dibs.errors import BackendUnavailable, Busy, Unsupported
from dibs.workloads.reconcile import handle_of


def run(house: House, *words: str) -> tuple[str, ...]:
    return ("run", "--backend", house.kind, "--image", images.REFERENCE, *words)


# --- in the foreground


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_code_of_the_command_is_the_exit_code_of_dibs(house: House, script: str, code: int) -> None:
    done = house.dibs(*run(house, "--gpu", "1", "--", "sh", "-c", f"echo out; echo err >&2; {script}"))
    assert (done.returncode, done.stdout) == (code, "out\n")
    assert "err\n" in done.stderr
    assert not house.again().leases()


def test_a_command_that_is_not_there_has_the_shells_exit_code(house: House) -> None:
    assert house.dibs(*run(house, "--", "no-such-command")).returncode == 127
    assert house.free()


def test_input_arrives_and_so_does_its_end(house: House, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    with (tmp_path / "in").open() as typed:
        done = house.dibs(*run(house, "-q", "--", "cat"), stdin=typed)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")


def test_a_terminal_goes_through_to_the_container(house: House) -> None:
    done = house.dibs(*run(house, "-q", "--tty", "--", "sh", "-c", "test -t 1 && echo terminal"))
    assert (done.returncode, done.stdout.strip()) == (0, "terminal"), done.stderr


def test_interrupting_dibs_interrupts_the_command(house: House) -> None:
    script = "trap 'echo bye; exit 5' INT TERM; echo ready; while true; do sleep 0.05; done"
    child = house.started("-q", "--gpu", "1", "--", "sh", "-c", script)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.read() == b"bye\n"
    assert child.wait() == 5
    assert not house.again().leases()


def test_sd_09_a_client_that_dies_takes_its_container_with_it(house: House) -> None:
    child = house.started("--gpu", "4", "--grace", "0s", "--", "sh", "-c", "echo ready; sleep 1000")
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.kill()
    child.wait()
    row = house.create(gpu=4, wait="60s")
    assert row.state == "running"
    assert len(house.nodes(row)) == 4


# --- the verbs of a sandbox that stays


def test_the_callers_working_directory_comes_along(house: House) -> None:
    (house.work / "train.sh").write_text("pwd; echo trained >result")
    done = house.dibs(*run(house, "--gpu", "1", "--", "sh", "train.sh"))
    assert (done.stdout, done.returncode) == (f"{house.work}\n", 0), done.stderr
    assert (house.work / "result").read_text() == "trained\n"
    done = house.dibs(*run(house, "--workdir", "/tmp", "--", "sh", "-c", "pwd; ls"))
    assert done.stdout == "/tmp\n", "a folder of the image, and nothing is mounted"


def test_every_verb_of_the_command_works_on_a_container(house: House, tmp_path: Path) -> None:
    def dibs(*words: str, code: int = 0) -> str:
        done = house.dibs("sandbox", *words)
        assert done.returncode == code, done.stderr
        return done.stdout

    dibs(
        "create", "--backend", house.kind, "--image", images.REFERENCE, "--name", "lab", "--gpu", "1", "--grace", "0s",
        "--", "sh", "-c", "echo hello; sleep 1000",
    )  # fmt: skip
    assert "lab " in dibs("ls")
    assert house.kind in dibs("show", "lab")
    assert "simgpu0" in house.dibs("receipt", "lab").stdout
    assert dibs("exec", "lab", "--", "sh", "-c", "echo $((6*7))") == "42\n"
    dibs("exec", "lab", "--", "sh", "-c", "exit 9", code=9)
    until(lambda: dibs("logs", "lab") == "hello\n")
    (tmp_path / "file").write_text("data")
    dibs("cp", str(tmp_path / "file"), "lab:/tmp")
    assert dibs("exec", "lab", "--", "cat", "/tmp/file") == "data"
    dibs("cp", "lab:/tmp/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "data" or (tmp_path / "back" / "file").read_text() == "data"
    dibs("pause", "lab")
    assert house.container(house.service.sandbox("lab"))["State"]["Status"] == "paused"
    dibs("exec", "lab", "--", "true", code=88)
    dibs("resume", "lab")
    assert dibs("exec", "lab", "--", "echo", "awake") == "awake\n"
    dibs("stop", "lab")
    assert not house.again().leases()
    dibs("rm", "lab")
    assert house.free()


def test_a_container_can_be_kept_as_an_image(house: House) -> None:
    row = house.create(command=["sleep", "1000"])
    house.exec(row.id, "sh", "-c", "echo kept > /kept")
    backend = must(house.service.backend_of(row), TakesSnapshots)
    image = backend.snapshot(handle_of(row), "localhost/dibs-kept:1")
    assert house.run("cat", "/kept", image=image)[0] == "kept\n"
    house.engine.api("DELETE", f"{house.engine.prefix}/images/{image}?force=true")


def test_an_image_that_was_made_twice_is_removed_twice(house: House) -> None:
    """An engine finishes what a killed gateway has asked it for, also if the next one asks again."""
    row = house.create(command=["sleep", "1000"])
    backend, before = must(house.service.backend_of(row), TakesSnapshots), house.images()
    for content in ("one", "two"):
        house.exec(row.id, "sh", "-c", f"echo {content} > /kept")
        image = backend.snapshot(handle_of(row), "localhost/dibs-kept:2")
    assert house.run("cat", "/kept", image=image)[0] == "two\n"
    assert len(house.images() - before) == 2
    for one in house.service.sandboxes(all=True):
        house.service.remove(one.id, 0.0)
    backend.remove_snapshot(image)
    assert house.images() == before


DIED = "runc create failed: waiting for init preliminary setup: read init-p: connection reset by peer"


@pytest.mark.parametrize("times", [1, 2])
def test_a_runtime_that_died_before_the_command_gets_one_more_try(
    house: House, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    real, left = client.Client.hijack, [times]

    def hijack(self: client.Client, path: str, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise client.EngineError(500, DIED, f"POST {path}")
        return real(self, path, **more)

    monkeypatch.setattr(client.Client, "hijack", hijack)
    if times == 1:
        assert house.run("echo", "said")[0] == "said\n"
        return
    with pytest.raises(BackendUnavailable, match="died before the command") as caught:
        house.run("echo", "said")
    assert caught.value.code == "RUNTIME_DIED"
    assert house.service.leases() == []


# --- by hand, past dibs


@pytest.mark.parametrize("how", ["killed", "removed"])
def test_a_container_that_is_ended_by_hand_frees_its_cards(house: House, how: str) -> None:
    row = house.create(gpu=4)
    with pytest.raises(Busy):
        house.create(gpu=1)
    if how == "killed":
        house.kill(row)
    else:
        house.remove(f"dibs-{row.id}")
    assert house.create(gpu=4, wait="60s").state == "running"
    ended = house.service.sandbox(row.id)
    assert ended.state in ("failed", "exited")
    result = ended.exit
    assert result is not None
    assert result.code == 137


def test_sd_47_a_card_is_held_as_long_as_its_container_lives(house: House) -> None:
    done = house.dibs(*run(house, "--detach", "--name", "lasting", "--gpu", "4", "--", "sleep", "1000"))
    assert done.returncode == 0, done.stderr
    with pytest.raises(Busy):
        house.create(gpu=1)
    house.kill(house.service.sandbox("lasting"))
    assert house.create(gpu=1, wait="60s").state == "running"


# --- time to live


def test_a_container_ends_in_time_whether_dibs_runs_or_not(house: House) -> None:
    done = house.dibs(*run(house, "--detach", "--ttl", "1s", "--grace", "0s", "--gpu", "4", "--", "sleep", "1000"))
    assert done.returncode == 0, done.stderr
    row = house.create(gpu=4, wait="60s")
    first = next(one for one in house.service.sandboxes(all=True) if one.id != row.id)
    result = first.exit
    assert result is not None
    assert result.reason == "expired"


def test_a_renewed_container_lives_on_and_a_shortened_one_ends(house: House) -> None:
    row = house.create(ttl="2s", gpu=1)
    house.service.renew(row.id, time.time() + 1000)
    assert keeper_of(row).exists()
    deadline = time.monotonic() + 2.5
    until(lambda: time.monotonic() > deadline)
    assert house.again().sandbox(row.id).state == "running"
    house.service.renew(row.id, time.time() + 0.2)
    assert house.service.wait(row.id, 30).state == "exited"
    result = house.service.sandbox(row.id).exit
    assert result is not None
    assert result.reason == "expired"


# --- an engine that goes away


def test_nothing_is_freed_while_the_engine_is_away_and_everything_is_right_when_it_is_back(house: House) -> None:
    """Docker's containers die with it here, or survive; Podman's do not even notice."""
    stays, dies = house.create(gpu=2), house.create(gpu=1)
    pid = house.pid(dies)
    house.engine.kill()
    service = house.again()
    assert len(service.leases()) == 2, "its absence is not proved"
    assert [row.state for row in service.sandboxes()] == ["running", "running"]
    with pytest.raises((BackendUnavailable, Unsupported)):
        house.create(gpu=1)
    assert len(service.leases()) == 2
    end(pid)
    assert len(house.again().leases()) == 2, "how it ended only its engine can say"
    house.engine.start()
    until(lambda: house.again().sandbox(dies.id).state in ("failed", "exited"))
    alive = house.service.sandbox(stays.id).state in ("running", "stopping")
    running = {str(one["Names"][0]).lstrip("/") for one in house.engine.containers() if one["State"] == "running"}  # type: ignore[index]
    assert alive == (f"dibs-{stays.id}" in running)
    assert len(house.service.leases()) == int(alive)
    if alive:
        assert house.nodes(stays) == ["simgpu0 c 1:3", "simgpu1 c 1:3"]
        house.service.remove(stays.id, 0.0)
    assert house.create(gpu=4).state == "running"


def test_a_sandbox_can_be_stopped_while_its_engine_is_away(house: House) -> None:
    row, ended = house.create(gpu=1), house.create(gpu=1)
    pid, other = house.pid(row), house.pid(ended)
    house.engine.kill()
    end(other)
    service = house.again()
    assert service.stop(row.id, 0.0).state == "exited"
    assert zombie(pid), "its process is gone"
    assert service.stop(ended.id, 0.0).state == "failed", "its exit is unknown"
    assert service.leases() == []
    with pytest.raises(BackendUnavailable):
        service.remove(row.id, 0.0)  # the container itself has to wait for its engine
    house.engine.start()
    house.again().remove(row.id, 0.0)
    house.service.remove(ended.id, 0.0)
    assert house.free()


def end(pid: int) -> None:
    import contextlib
    import os

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}/root").exists() or zombie(pid))


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
