"""The reference implementation's own tables, run against this library.

The data is not part of the project: the folder is named by DIBS_CONFORMANCE_DATA. Each case is passed, failed, or
excluded by name with a reason; the counts are printed at the end of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from dibs.cdi import (
    Cache,
    CdiError,
    ContainerEdits,
    Device,
    InvalidNameError,
    Spec,
    annotation_key,
    apply_edits,
    device_problems,
    edits_problems,
    is_qualified_name,
    merge_edits,
    minimum_required_version,
    parse_annotations,
    parse_device,
    parse_qualified_name,
    parse_spec,
    transient_spec_name,
    update_annotations,
)
from dibs.cdi.decode import decode_value
from dibs.cdi.version import version_problems

T = TypeVar("T", bound=msgspec.Struct)
Case = dict[str, Any]

NO_INPUT = "the data holds neither the input nor an expectation for it (the reference keeps them in private fields)"
EXCLUDED = {
    "TestUpdateAnnotations/invalid,_empty_plugin": NO_INPUT,
    "TestUpdateAnnotations/invalid,_malformed_device_reference": NO_INPUT,
    "TestFuzzSelfRefreshCache/one_device_in_/etc,_update_it,_then_shadow_it_in_/run": NO_INPUT,
}

# Here the input is missing too, but follows from the case's name and from what must come out.
REBUILT = ("TestUpdateAnnotations/", "TestRefreshCache/", "TestDefaultCacheRefresh/")


def _cases() -> list[Any]:
    folder = os.environ.get("DIBS_CONFORMANCE_DATA")
    if not folder:
        return [pytest.param("", {}, marks=pytest.mark.skip(reason="DIBS_CONFORMANCE_DATA is not set"), id="none")]
    data = json.loads((Path(folder) / "cdi-cases.json").read_text())
    return [pytest.param(case["test"], case["case"], id=case["test"]) for case in data["cases"]]


@pytest.mark.parametrize(("test", "case"), _cases())
def test_case_of_the_reference(
    test: str, case: Case, tmp_path: Path, empty_host: str, request: pytest.FixtureRequest
) -> None:
    if test in EXCLUDED:
        pytest.skip(f"{test}: {EXCLUDED[test]}")
    if test.startswith(REBUILT):
        request.node.user_properties.append(("input", "rebuilt"))
    CHECKS[test.partition("/")[0]](case, tmp_path, empty_host)


def decoded(raw: Any, kind: type[T]) -> T:
    """A Go value of the tables; its nil is our empty value."""
    value, problems = decode_value(raw if raw is not None else {}, kind)
    assert problems == []
    return value


def fill(tmp_path: Path, directories: dict[str, Any]) -> Cache:
    for name in ("etc", "run"):
        (tmp_path / name).mkdir(exist_ok=True)
        for file, text in (directories.get(name) or {}).items():
            (tmp_path / name / file).write_text(text)
    return Cache([tmp_path / "etc", tmp_path / "run"])


def check_annotation_key(case: Case, tmp_path: Path, host: str) -> None:
    if case["invalid"]:
        with pytest.raises(CdiError):
            annotation_key(case["plugin"], case["devID"])
    else:
        assert annotation_key(case["plugin"], case["devID"]) == case["key"]


def check_parse_annotation(case: Case, tmp_path: Path, host: str) -> None:
    if case["invalid"]:
        with pytest.raises(CdiError):
            parse_annotations(case["annotations"])
    else:
        keys, devices = parse_annotations(case["annotations"])
        assert sorted(keys) == sorted(case["annotations"])
        assert sorted(devices) == sorted(case["devices"])


def check_update_annotations(case: Case, tmp_path: Path, host: str) -> None:
    # The requests are not in the data: they are taken back from the keys and values that they must lead to.
    made: dict[str, str] | None = case["existing"]
    for key, value in case["annotations"].items():
        plugin, _, device_id = key.removeprefix("cdi.k8s.io/").rpartition("_")
        made = update_annotations(made, plugin, device_id, value.split(","))
    assert made == case["annotations"]
    assert sorted(parse_annotations(made)[1]) == sorted(case["parsed"])


def check_append(case: Case, tmp_path: Path, host: str) -> None:
    parts = [None if part is None else decoded(part, ContainerEdits) for part in [case["dst"], *case["src"]]]
    assert merge_edits(parts) == decoded(case["result"], ContainerEdits)


def check_apply_edits(case: Case, tmp_path: Path, host: str) -> None:
    assert apply_edits(case["spec"], decoded(case["edits"], ContainerEdits), host_root=host) == case["result"]


def check_injection_race(case: Case, tmp_path: Path, host: str) -> None:
    files = {f"{index}.yaml": text for index, text in enumerate(case["cdiSpecFiles"] or ())}
    cache = fill(tmp_path, {"etc": files})

    def run() -> dict[str, Any]:
        return cache.inject({}, parse_annotations(case["annotations"])[1], host_root=host)

    if case["expectError"]:
        with pytest.raises(CdiError):
            run()
        return
    result = run()
    env = result.get("process", {}).get("env", [])
    assert sorted(env) == sorted(case["expectEnv"] or [])
    assert result.get("linux", {}).get("devices", []) == (case["expectDevices"] or [])


def check_transient_specs(case: Case, tmp_path: Path, host: str) -> None:
    cache = fill(tmp_path, {})
    for index, text in enumerate(case["specs"]):
        if str(index) in (case["invalid"] or {}):
            with pytest.raises(CdiError):
                parse_spec(text.encode())
            with pytest.raises(InvalidNameError):
                transient_spec_name("vendor.comdevice", f"id{index}")
    assert cache.devices() == (case["expected"] or [])


def check_cache_write(case: Case, tmp_path: Path, host: str) -> None:
    source = fill(tmp_path, {"etc": case["etc"]})
    target = Cache([tmp_path / "copy"])
    for file in source.specs():
        target.write_spec(file.spec, Path(file.path).name)
    assert target.devices() == source.devices() != []
    for name in source.devices():
        old, new = source.device(name), target.device(name)
        assert old is not None
        assert new is not None
        assert new.device == old.device
        assert new.file.spec == old.file.spec


def check_configure(case: Case, tmp_path: Path, host: str) -> None:
    assert fill(tmp_path, case["entries"]).devices() == case["devices"]


def check_inject(case: Case, tmp_path: Path, host: str) -> None:
    assert case["expectedErr"] is None
    assert case["unresolved"] is None
    cache = fill(tmp_path, case["cdiSpecs"])
    assert cache.inject(case["ociSpec"], case["devices"], host_root=host) == case["result"]


def check_refresh(case: Case, tmp_path: Path, host: str) -> None:
    # The files of each step are not in the data. They follow from the name and from what must be seen.
    steps: list[dict[str, list[str]]] = {
        "empty cache, add one Spec": [{}, {"vendor1.yaml": ["dev1"]}],
        "two Specs, remove one": [
            {"vendor1.yaml": ["dev1"], "vendor1-other.yaml": ["dev2"]},
            {"vendor1-other.yaml": ["dev2"]},
        ],
        "one Spec, add another, conflicts": [
            {"vendor1.yaml": ["dev1", "dev2"]},
            {"vendor1.yaml": ["dev1", "dev2"], "vendor1-other.yaml": ["dev1", "dev3"]},
        ],
    }[case["name"]]
    cache = fill(tmp_path, {})
    for index, files in enumerate(steps):
        for old in (tmp_path / "run").iterdir():
            old.unlink()
        for file, devices in files.items():
            entries = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in devices]
            spec = {"cdiVersion": "0.3.0", "kind": "vendor1.com/device", "devices": entries}
            (tmp_path / "run" / file).write_text(json.dumps(spec))
        cache.refresh()
        if case["name"].endswith("conflicts") and index == 1:
            # dev1 is in both files: gone. The expectation names dev2 and dev3.
            assert cache.device("vendor1.com/device=dev1") is None
        assert cache.devices() == (case["devices"][index] or [])
        priorities = {name: cached.file.priority for name in cache.devices() if (cached := cache.device(name))}
        assert priorities == case["devprio"][index]
        assert {str(Path(p).relative_to(tmp_path)) for p in cache.errors()} == set(case["errors"][index])


def check_device(case: Case, tmp_path: Path, host: str) -> None:
    assert bool(device_problems(decoded(case["device"], Device))) == case["invalid"]


def check_spec_text(case: Case, tmp_path: Path, host: str) -> None:
    """TestGetters, TestNewSpec, TestReadSpec, TestWriteSpec: a text is a spec, or is not."""
    refused = case["invalid"] or case.get("unparsable") or case.get("schemaFail")
    if refused:
        with pytest.raises(CdiError):
            parse_spec(case["data"].encode())
        return
    cache = fill(tmp_path, {"run": {"spec.yaml": case["data"]}})
    (file,) = cache.specs()
    assert file.spec == parse_spec(case["data"].encode())
    assert (file.vendor, file.device_class) == (case.get("vendor", "vendor.com"), case.get("class", "device"))
    assert file.priority == case.get("priority", 1)
    written = Path(Cache([tmp_path / "copy"]).write_spec(file.spec, case["name"]))
    assert parse_spec(written.read_bytes()) == file.spec


def check_vendors_and_classes(case: Case, tmp_path: Path, host: str) -> None:
    cache = fill(tmp_path, case["cdiSpecs"])
    assert cache.vendors() == case["vendors"]
    assert cache.classes() == case["classes"]


def check_minimum_version(case: Case, tmp_path: Path, host: str) -> None:
    wanted = case["want"] if "want" in case else case["expectedVersion"]
    assert minimum_required_version(decoded(case["spec"], Spec)) == wanted


def check_declared_version(case: Case, tmp_path: Path, host: str) -> None:
    spec = msgspec.structs.replace(decoded(case["spec"], Spec), cdi_version=case["version"])
    text = "; ".join(str(problem) for problem in version_problems(spec))
    assert bool(text) == bool(case["wantErr"])
    assert case["wantErr"] in text


def check_new_cache(case: Case, tmp_path: Path, host: str) -> None:
    cache = fill(tmp_path, case)
    sources = {name: cached.file.path for name in cache.devices() if (cached := cache.device(name))}
    assert sources == {name: str(tmp_path / path) for name, path in case["sources"].items()}
    assert {str(Path(p).relative_to(tmp_path)) for p in cache.errors()} == set(case["errors"] or {})
    assert set(cache.dir_errors()) == set(case["dirErrors"] or {})


def check_name(case: Case, tmp_path: Path, host: str) -> None:
    parts = (case["vendor"], case["class"], case["name"])
    assert is_qualified_name(case["device"]) == case["isQualified"]
    assert parse_device(case["device"]) == parts
    if case["isQualified"]:
        assert parse_qualified_name(case["device"]) == parts
    else:
        with pytest.raises(InvalidNameError):
            parse_qualified_name(case["device"])


def check_scan(case: Case, tmp_path: Path, host: str) -> None:
    cache = fill(tmp_path, {"etc": case["files"]})
    failed = {Path(path).name for path in cache.errors()}
    assert failed == set(case["failure"])
    if case["abort"]:
        return  # stopping at the first error is the caller's choice there; a cache here always goes on
    assert {Path(file.path).name for file in cache.specs()} == set(case["success"])
    assert {Path(file.path).name: file.vendor for file in cache.specs()} == case["vendors"]
    assert {Path(file.path).name: file.device_class for file in cache.specs()} == case["classes"]


def check_edits(case: Case, tmp_path: Path, host: str) -> None:
    assert bool(edits_problems(decoded(case["edits"], ContainerEdits))) == case["invalid"]


CHECKS: dict[str, Callable[[Case, Path, str], None]] = {
    "TestAnnotationKey": check_annotation_key,
    "TestAppend": check_append,
    "TestApplyContainerEdits": check_apply_edits,
    "TestCDIInjectionRace": check_injection_race,
    "TestCacheTransientSpecs": check_transient_specs,
    "TestCacheWriteSpec": check_cache_write,
    "TestDefaultCacheConfigure": check_configure,
    "TestDefaultCacheInjectDevice": check_inject,
    "TestDefaultCacheRefresh": check_refresh,
    "TestDeviceValidate": check_device,
    "TestGetters": check_spec_text,
    "TestInjectDevice": check_inject,
    "TestListVendorsAndClasses": check_vendors_and_classes,
    "TestMinimumRequiredVersion": check_minimum_version,
    "TestNewCache": check_new_cache,
    "TestNewSpec": check_spec_text,
    "TestParseAnnotation": check_parse_annotation,
    "TestQualifiedName": check_name,
    "TestReadSpec": check_spec_text,
    "TestRefreshCache": check_refresh,
    "TestRequiredVersion": check_minimum_version,
    "TestScanSpecDirs": check_scan,
    "TestUpdateAnnotations": check_update_annotations,
    "TestValidateContainerEdits": check_edits,
    "TestValidateVersion": check_declared_version,
    "TestWriteSpec": check_spec_text,
}
