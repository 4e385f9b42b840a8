"""The same words in, the same words out: every verb on one ledger, in process and over the gateway that serves it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.remote.serving import Served

from dibs.home import Home
from dibs.remote.workloads import RemoteWorkloads
from dibs.request.spec import parse_spec

VERBS: list[tuple[str, ...]] = [
    ("gpus",),
    ("gpus", "-o", "wide"),
    ("gpus", "-o", "json"),
    ("gpus", "-o", "slices"),
    ("gpus", "--where", 'device.driver == "gpu.nvidia.com"'),
    ("gpus", "--where", "nonsense("),
    ("gpus", "taint", "gpu-77", "maintenance"),
    ("gpus", "untaint", "gpu-7", "nothing"),
    ("leases",),
    ("leases", "--all", "-o", "wide"),
    ("leases", "-o", "yaml"),
    ("sandbox", "ls"),
    ("sandbox", "ls", "--all", "-o", "wide"),
    ("sandbox", "ls", "--all", "-o", "json"),
    ("sandbox", "show", "lab"),
    ("sandbox", "show", "over", "-o", "json"),
    ("sandbox", "show", "nope"),
    ("sandbox", "show", "nope", "-o", "json"),
    ("sandbox", "logs", "lab"),
    ("sandbox", "logs", "over"),
    ("sandbox", "logs", "nope"),
    ("sandbox", "exec", "lab", "--", "sh", "-c", "echo out; echo err >&2; exit 7"),
    ("sandbox", "exec", "lab", "--", "no-such-command"),
    ("sandbox", "exec", "-w", "/no/such", "lab", "--", "true"),
    ("sandbox", "exec", "over", "--", "true"),
    ("sandbox", "pause", "over"),
    ("sandbox", "resume", "lab"),
    ("sandbox", "stop", "over"),
    ("sandbox", "cp", "lab:/no/such", "."),
    ("sandbox", "cp", "/no/such", "lab:/tmp"),
    ("receipt", "lab"),
    ("receipt", "lab", "-o", "json"),
    ("receipt", "nope"),
    ("explain", "--gpu", "2"),
    ("explain", "--gpu", "H100:9", "-o", "json"),
    ("explain", "--gpu", "L4:1", "--memory", "4Gi", "-o", "yaml"),
    ("run", "--gpu", "9", "--", "true"),
    ("run", "--gpu", "8", "--", "true"),
    ("run", "--gpu", "8", "--wait", "0s", "--", "true"),
    ("run", "--gpu", "no such", "--", "true"),
    ("run", "--gpu", "1", "-o", "--", "true"),
    ("run", "--name", "lab", "--", "true"),
    ("run", "--gpu", "1", "--", "sh", "-c", "ls /dev | grep simgpu; echo $DIBS_GPU_COUNT; exit 4"),
    ("run", "--", "no-such-command"),
    ("claims", "ls"),
    ("claims", "rm", "nope"),
    ("run", "--claim", "nope", "--", "true"),
]


def dibs(home: Home, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        env={**os.environ, "DIBS_HOME": str(home.state), "CUDA_VISIBLE_DEVICES": "3"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, _timeless(done.stdout), _timeless(done.stderr)


def _timeless(text: str) -> str:
    """Without what differs from one look to the next: ids, ages, times."""
    for pattern, instead in (
        (r"\b(sb|ls|tk)-[0-9a-f]{12}\b", r"\1-ID"),
        (r"\b\d+(ms|[smhd])(\d\d[smh])?\b", "AGE"),
        (r"\b1[0-9]{9}\.[0-9]+\b", "WHEN"),
        (r" +", " "),
    ):
        text = re.sub(pattern, instead, text)
    return text


@pytest.fixture
def world(remote: RemoteWorkloads) -> None:
    remote.create(parse_spec({"name": "lab", "gpu": "1", "command": ["sh", "-c", "echo hello; sleep 100"]}))
    remote.create(parse_spec({"name": "over", "gpu": "1", "command": ["sh", "-c", "echo bye; exit 3"]}))
    remote.wait("over", 60.0)


@pytest.mark.usefixtures("world")
def test_every_verb_says_the_same_both_ways(served: Served, eight_gpus: Home) -> None:
    different = []
    for verb, *rest in VERBS:
        # Without a word about it, a sandbox has the host's network here and one of its own there; or none, and a note.
        words = (verb, "--network", "none", *rest) if verb in ("run", "explain") else (verb, *rest)
        here = dibs(eight_gpus, "--gateway", "none", *words)
        there = dibs(eight_gpus, "--gateway", served.url, *words)
        if there != here:
            different.append((words, here, there))
    assert different == []


def test_verbs_about_this_machine_do_not_go_to_the_gateway(served: Served, eight_gpus: Home) -> None:
    code, _, text = dibs(eight_gpus, "--gateway", served.url, "gpus", "simulate", "2")
    assert code == 81
    assert "NOT_OVER_A_GATEWAY" in text
    _, _, text = dibs(eight_gpus, "--gateway", served.url, "doctor")
    assert "about this machine" in text
