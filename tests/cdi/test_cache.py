"""Directories, precedence, conflicts, recorded errors, refreshing, resolving."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dibs.cdi import Cache, CdiError, SpecError, StoreError, UnresolvableError, read_spec

Make = Callable[[dict[str, dict[str, str]]], Cache]


def spec(kind: str, devices: Iterable[str], mark: str = "x", **edits: Any) -> str:
    entries = [{"name": name, "containerEdits": {"env": [f"{name.upper()}={mark}"]}} for name in devices]
    return json.dumps({"cdiVersion": "1.0.0", "kind": kind, "devices": entries, "containerEdits": edits})


def path_of(cache: Cache, name: str) -> str:
    device = cache.device(name)
    assert device is not None
    return Path(device.file.path).parent.name + "/" + Path(device.file.path).name


def test_later_directory_wins_without_an_error(spec_dirs: Make) -> None:
    cache = spec_dirs({"etc": {"a.json": spec("a.b/c", ["x", "y"])}, "run": {"z.json": spec("a.b/c", ["x"])}})
    assert path_of(cache, "a.b/c=x") == "run/z.json"
    assert path_of(cache, "a.b/c=y") == "etc/a.json"
    assert cache.errors() == {}


def test_device_twice_in_one_directory_counts_for_neither_file(spec_dirs: Make, tmp_path: Path) -> None:
    cache = spec_dirs({"run": {"a.json": spec("a.b/c", ["x", "y"]), "b.json": spec("a.b/c", ["x", "z"])}})
    assert cache.devices() == ["a.b/c=y", "a.b/c=z"]
    assert set(cache.errors()) == {str(tmp_path / "run/a.json"), str(tmp_path / "run/b.json")}
    for errors in cache.errors().values():
        assert 'conflicting device "a.b/c=x"' in str(errors[0])
    with pytest.raises(
        UnresolvableError, match=r"a\.b/c=x \(in conflict: .*a\.json.* and .*b\.json.* both define it\)"
    ):
        cache.resolve(["a.b/c=x"])


def test_conflict_below_stays_even_where_a_higher_directory_defines_the_device(spec_dirs: Make) -> None:
    cache = spec_dirs(
        {
            "etc": {"a.json": spec("a.b/c", ["x"]), "b.json": spec("a.b/c", ["x"])},
            "run": {"c.json": spec("a.b/c", ["x", "y"])},
        }
    )
    assert cache.devices() == ["a.b/c=y"]


def test_three_files_with_one_device_are_all_told(spec_dirs: Make) -> None:
    cache = spec_dirs({"run": {f"{n}.json": spec("a.b/c", ["x"]) for n in "abc"}})
    assert cache.devices() == []
    assert len(cache.errors()) == 3


def test_broken_spec_does_not_hide_the_others(spec_dirs: Make, tmp_path: Path) -> None:
    cache = spec_dirs({"etc": {"a.json": "{", "b.json": spec("a.b/c", ["x"]), "c.json": spec("a.b/-", ["x"])}})
    assert cache.devices() == ["a.b/c=x"]
    assert {Path(path).name for path in cache.errors()} == {"a.json", "c.json"}
    assert all(isinstance(error, SpecError) for errors in cache.errors().values() for error in errors)


def test_only_json_and_yaml_files_of_the_directory_itself_are_read(spec_dirs: Make, tmp_path: Path) -> None:
    good = spec("a.b/c", ["x"])
    (tmp_path / "etc" / "sub.yaml").mkdir(parents=True)
    (tmp_path / "etc" / "sub.yaml" / "in.yaml").write_text(good)
    cache = spec_dirs({"etc": {"a.yml": good, "b.txt": good, "c": good, "d.json.tmp": good}})
    assert cache.devices() == []
    assert cache.errors() == {}


def test_missing_directories_are_no_error_and_appear_later(tmp_path: Path) -> None:
    cache = Cache([tmp_path / "absent"])
    assert (cache.devices(), dict(cache.errors()), dict(cache.dir_errors())) == ([], {}, {})
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "a.json").write_text(spec("a.b/c", ["x"]))
    assert cache.refresh()
    assert cache.devices() == ["a.b/c=x"]


def test_directory_that_cannot_be_listed_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache([tmp_path / "file"])
    (error,) = cache.dir_errors().values()
    assert isinstance(error, StoreError)
    assert "cannot be listed: Not a directory" in str(error)


def test_dangling_link_and_pipe_are_recorded_and_not_waited_for(spec_dirs: Make, tmp_path: Path) -> None:
    spec_dirs({})
    (tmp_path / "etc" / "gone.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "etc" / "pipe.yaml")
    cache = Cache([tmp_path / "etc"])
    assert {Path(path).name for path in cache.errors()} == {"gone.yaml", "pipe.yaml"}


def test_linked_spec_is_read(spec_dirs: Make, tmp_path: Path) -> None:
    spec_dirs({})
    (tmp_path / "real").write_text(spec("a.b/c", ["x"]))
    (tmp_path / "etc" / "link.json").symlink_to(tmp_path / "real")
    assert Cache([tmp_path / "etc"]).devices() == ["a.b/c=x"]


def test_vendors_classes_and_specs_are_listed(spec_dirs: Make) -> None:
    cache = spec_dirs(
        {
            "etc": {
                "a.json": spec("b.com/gpu", ["x"]),
                "b.json": spec("a.com/gpu", ["x"]),
                "c.json": spec("a.com/nic", ["x"]),
            }
        }
    )
    assert cache.vendors() == ["a.com", "b.com"]
    assert cache.classes() == ["gpu", "nic"]
    assert [Path(file.path).name for file in cache.specs()] == ["a.json", "b.json", "c.json"]
    assert [file.spec.kind for file in cache.specs("a.com")] == ["a.com/gpu", "a.com/nic"]


class Reads:
    """Counts the files that are opened, and says how old they look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        real = read_spec

        def read(path: str) -> Any:
            self.paths.append(Path(path).name)
            return real(path)

        monkeypatch.setattr("dibs.cdi.cache.read_spec", read)

    def taken(self) -> list[str]:
        paths, self.paths = self.paths, []
        return paths


def age(path: Path, cache_clock: pytest.MonkeyPatch) -> None:
    """Let the cache's clock be far ahead of all files, so that none looks freshly written."""
    cache_clock.setattr("dibs.cdi.cache.time.time_ns", lambda: path.stat().st_ctime_ns + 10**12)


def test_unchanged_files_are_not_read_again(spec_dirs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec_dirs({"etc": {"a.json": spec("a.b/c", ["x"]), "b.json": "{"}})
    age(tmp_path / "etc" / "b.json", monkeypatch)
    reads = Reads(monkeypatch)
    cache = Cache([tmp_path / "etc"])
    assert reads.taken() == ["a.json", "b.json"]
    assert not cache.refresh()
    assert reads.taken() == []
    (tmp_path / "etc" / "b.json").write_text(spec("a.b/c", ["y"]))
    assert cache.refresh()
    assert reads.taken() == ["b.json"]
    assert cache.devices() == ["a.b/c=x", "a.b/c=y"]
    (tmp_path / "etc" / "a.json").unlink()
    assert cache.refresh()
    assert reads.taken() == []
    assert cache.devices() == ["a.b/c=y"]


def test_file_written_a_moment_ago_is_read_again_since_its_time_may_not_move(
    spec_dirs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec_dirs({"etc": {"a.json": spec("a.b/c", ["x"])}})
    path = tmp_path / "etc" / "a.json"
    monkeypatch.setattr("dibs.cdi.cache.time.time_ns", lambda: path.stat().st_ctime_ns + 1)
    reads = Reads(monkeypatch)
    cache = Cache([tmp_path / "etc"])
    assert not cache.refresh()
    assert reads.taken() == ["a.json", "a.json"]


def test_refresh_tells_when_an_error_comes_and_goes(spec_dirs: Make, tmp_path: Path) -> None:
    cache = spec_dirs({"etc": {"a.json": spec("a.b/c", ["x"])}})
    (tmp_path / "etc" / "a.json").write_text("{")
    assert cache.refresh()
    assert (cache.devices(), len(cache.errors())) == ([], 1)
    assert not cache.refresh()
    (tmp_path / "etc" / "a.json").write_text(spec("a.b/c", ["x"]))
    assert cache.refresh()
    assert (cache.devices(), len(cache.errors())) == (["a.b/c=x"], 0)


def test_recorded_errors_cannot_be_changed_by_the_reader(spec_dirs: Make) -> None:
    with pytest.raises(TypeError):
        spec_dirs({}).errors()["x"] = ()  # type: ignore[index]


def test_resolution_keeps_the_edits_of_specs_and_devices_apart(spec_dirs: Make) -> None:
    cache = spec_dirs(
        {"etc": {"a.json": spec("a.b/c", ["x", "y"], env=["ALL=1"]), "b.json": spec("a.b/d", ["x"], mark="2")}}
    )
    resolution = cache.resolve(["a.b/c=y", "a.b/d=x", "a.b/c=x"])
    assert [(part.origin, part.name) for part in resolution.parts] == [
        ("spec", "a.b/c"),
        ("device", "a.b/c=y"),
        ("device", "a.b/d=x"),
        ("device", "a.b/c=x"),
    ]
    assert resolution.merged.env == ("ALL=1", "Y=x", "X=2", "X=x")
    assert [part.edits.env for part in resolution.specs] == [("ALL=1",)]
    assert [part.edits.env for part in resolution.devices] == [("Y=x",), ("X=2",), ("X=x",)]


def test_all_unresolvable_names_are_in_one_error(spec_dirs: Make) -> None:
    cache = spec_dirs({"etc": {"a.json": spec("a.b/c", ["x"])}})
    with pytest.raises(UnresolvableError) as caught:
        cache.resolve(["a.b/c=nope", "a.b/c=x", "gpu", "z.b/c=x"])
    assert caught.value.names == ("a.b/c=nope", "gpu", "z.b/c=x")
    assert str(caught.value) == (
        "unresolvable CDI devices a.b/c=nope, gpu (not a qualified name; write vendor/class=name), z.b/c=x"
    )
    assert isinstance(caught.value, CdiError)


def test_no_devices_resolve_to_no_edits(spec_dirs: Make) -> None:
    assert spec_dirs({}).resolve([]).merged.is_empty
