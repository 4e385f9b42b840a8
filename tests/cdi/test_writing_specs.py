"""Writing and removing spec files: names, versions, atomicity, and that what is written reads back the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dibs.cdi import (
    Cache,
    ContainerEdits,
    Device,
    InvalidNameError,
    Mount,
    Spec,
    SpecError,
    StoreError,
    parse_spec,
    read_spec,
    spec_name,
    transient_spec_name,
)

SPEC = Spec(kind="acme.com/gpu", devices=(Device("gpu0", container_edits=ContainerEdits(env=("A=1",))),))
HERE = Path(__file__).parent


def test_spec_goes_to_the_directory_of_highest_priority_as_yaml(tmp_path: Path) -> None:
    cache = Cache([tmp_path / "etc", tmp_path / "run"])
    path = cache.write_spec(SPEC, spec_name("acme.com/gpu"))
    assert path == str(tmp_path / "run" / "acme.com-gpu.yaml")
    assert Path(path).read_text() == (
        '---\ncdiVersion: "0.3.0"\nkind: "acme.com/gpu"\ndevices:\n'
        '  - name: "gpu0"\n    containerEdits:\n      env:\n        - "A=1"\n'
    )
    assert cache.devices() == ["acme.com/gpu=gpu0"]
    assert os.listdir(tmp_path / "run") == ["acme.com-gpu.yaml"]
    assert Path(path).stat().st_mode & 0o777 == 0o644


def test_json_is_written_for_a_json_name(tmp_path: Path) -> None:
    path = Cache([tmp_path]).write_spec(SPEC, "mine.json")
    assert Path(path).read_text().startswith('{\n  "cdiVersion": "0.3.0"')


def test_minimum_version_is_written_whatever_was_declared(tmp_path: Path) -> None:
    mount = Mount("/a", "/b", "bind")
    spec = Spec(
        cdi_version="1.1.0", kind="acme.com/gpu", devices=SPEC.devices, container_edits=ContainerEdits(mounts=(mount,))
    )
    assert read_spec(Cache([tmp_path]).write_spec(spec, "a")).cdi_version == "0.4.0"


def test_invalid_spec_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    cache = Cache([tmp_path])
    with pytest.raises(SpecError, match="devices: no devices"):
        cache.write_spec(Spec(kind="acme.com/gpu"), "a")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/a", "a\0"])
def test_name_that_leaves_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    cache = Cache([tmp_path])
    with pytest.raises(StoreError, match="must be a plain file name"):
        cache.write_spec(SPEC, name)
    with pytest.raises(StoreError, match="must be a plain file name"):
        cache.remove_spec(name)


def test_failed_write_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache([tmp_path])
    path = Path(cache.write_spec(SPEC, "a"))
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dibs.cdi.store.os.fsync", full)
    with pytest.raises(StoreError, match=r"a\.yaml: cannot be written: No space left on device"):
        cache.write_spec(Spec(kind="acme.com/nic", devices=SPEC.devices), "a")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_existing_file_is_replaced_or_kept_as_asked(tmp_path: Path) -> None:
    cache = Cache([tmp_path])
    cache.write_spec(SPEC, "a")
    other = Spec(kind="acme.com/nic", devices=SPEC.devices)
    with pytest.raises(StoreError, match="exists already"):
        cache.write_spec(other, "a", overwrite=False)
    assert cache.classes() == ["gpu"]
    cache.write_spec(other, "a")
    assert cache.classes() == ["nic"]
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_remove_tells_whether_the_file_was_there(tmp_path: Path) -> None:
    cache = Cache([tmp_path])
    cache.write_spec(SPEC, "a")
    assert cache.remove_spec("a")
    assert cache.devices() == []
    assert not cache.remove_spec("a")


def test_cache_without_directories_cannot_write() -> None:
    with pytest.raises(StoreError, match="no spec directories"):
        Cache([]).write_spec(SPEC, "a")


def test_transient_names_hold_no_slash() -> None:
    assert transient_spec_name("acme.com/gpu", "ns/claim") == "acme.com-gpu_ns_claim"
    with pytest.raises(InvalidNameError, match="is empty"):
        transient_spec_name("acme.com/gpu", "")
    with pytest.raises(InvalidNameError, match='invalid kind "gpu"'):
        spec_name("gpu")


@pytest.mark.parametrize("path", sorted((HERE / "good").iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("ending", [".yaml", ".json"])
def test_good_file_survives_writing_and_reading(path: Path, ending: str, tmp_path: Path) -> None:
    spec = read_spec(path)
    written = read_spec(Cache([tmp_path]).write_spec(spec, "a" + ending))
    assert (written.kind, written.annotations, written.devices, written.container_edits) == (
        spec.kind,
        spec.annotations,
        spec.devices,
        spec.container_edits,
    )


@pytest.mark.parametrize(
    "value", ["0o17", "08", "1e3", "1:0", "yes", "~", "a: b", '\x7f\u2028\ufeff\n\t"\\', "é😀", "- x"]
)
def test_written_yaml_means_the_same_to_any_yaml_reader(value: str, tmp_path: Path) -> None:
    import yaml

    spec = Spec(kind="a.b/c", annotations={value: value}, devices=SPEC.devices)
    text = Path(Cache([tmp_path]).write_spec(spec, "a")).read_bytes()
    assert yaml.safe_load(text)["annotations"] == {value: value}
    assert parse_spec(text).annotations == {value: value}
