"""The polling watcher: what it reports, and when it ends. No test sleeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dibs.cdi import Cache, Change, watch_specs


def spec(value: str) -> str:
    devices = [{"name": "x", "containerEdits": {"env": [f"A={value}"]}}]
    return json.dumps({"cdiVersion": "0.3.0", "kind": "a.b/c", "devices": devices})


def test_each_look_tells_what_changed_and_quiet_looks_tell_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    steps: list[Callable[[], object]] = [
        lambda: file.write_text(spec("1")),
        lambda: None,
        lambda: file.write_text(spec("2")),
        lambda: file.write_text("{"),
        file.unlink,
    ]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        steps[len(slept)]()
        slept.append(seconds)

    seen = list(watch_specs(Cache([tmp_path]), 2.5, polls=len(steps), sleep=sleep))
    assert slept == [2.5] * len(steps)
    path = str(file)
    everything = [("specs", path), ("vendors", "a.b"), ("classes", "c"), ("devices", "a.b/c=x")]
    assert seen == [
        [Change(what, "added", name) for what, name in everything],
        [Change("specs", "changed", path), Change("devices", "changed", "a.b/c=x")],
        [*(Change(what, "removed", name) for what, name in everything), Change("errors", "added", path)],
        [Change("errors", "removed", path)],
    ]


def test_directory_that_becomes_unreadable_is_reported(tmp_path: Path) -> None:
    target = tmp_path / "dir"

    def sleep(_: float) -> None:
        target.write_text("now a file")

    assert list(watch_specs(Cache([target]), 1, polls=1, sleep=sleep)) == [[Change("errors", "added", str(target))]]
