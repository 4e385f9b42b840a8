"""What is accepted as a spec, what is refused, and that a refusal names every problem with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.cdi import ContainerEdits, SpecError, StoreError, parse_spec, read_spec
from dibs.cdi.tree import MAX_DEPTH

HERE = Path(__file__).parent

# Of each bad file, all problems: the place, and a part of the sentence.
REFUSED: dict[str, list[tuple[str, str]]] = {
    "binary.yaml": [("", "not UTF-8 text: byte 0 is 0xff")],
    "contains-itself.yaml": [("line 3", 'unknown anchor "d"')],
    "cut-off.json": [("", "neither JSON nor YAML")],
    "duplicate-key-by-case.yaml": [("Kind", 'the same field as "kind", given twice')],
    "duplicate-key.json": [("", 'key "kind" is given twice')],
    "duplicate-key.yaml": [("line 3", 'key "kind" is given twice')],
    "empty-edits.yaml": [
        ("devices[0].containerEdits", "empty device edits"),
        ("devices[1].containerEdits", "empty device edits"),
    ],
    "empty.yaml": [("", "the spec is empty")],
    "future-version.yaml": [("cdiVersion", 'invalid version "1.2.0"')],
    "many-problems.yaml": [
        ("devices[2].containerEdits.env", 'must be a list, not the string "wrong"'),
        ("kind", 'invalid vendor name "0acme", should start with a letter'),
        ("kind", 'invalid class name "gpu-", should end with a letter or a digit'),
        ("containerEdits.env[0]", 'invalid environment variable "=x"'),
        ("devices[0].containerEdits.deviceNodes[0].path", "invalid empty device path"),
        ("devices[0].containerEdits.deviceNodes[0].type", 'invalid device type "x"; known are b, c, u, p'),
        ("devices[0].containerEdits.deviceNodes[0].major", "invalid negative device number -1"),
        ("devices[0].containerEdits.deviceNodes[0].permissions", 'invalid permissions "rwx"'),
        ("devices[0].containerEdits.mounts[0].hostPath", "invalid empty mount path"),
        ("devices[0].containerEdits.mounts[0].containerPath", "invalid empty mount path"),
        ("devices[1].containerEdits.hooks[0].hookName", 'invalid hook name "later"'),
        ("devices[1].containerEdits.hooks[0].path", "invalid empty hook path"),
        ("devices[1].containerEdits.hooks[0].env[0]", 'invalid environment variable "X"'),
        ("devices[1].containerEdits.env[1]", 'invalid environment variable "TWO"'),
        ("devices[1].name", 'multiple devices "a", the first is devices[0]'),
        ("devices[2].name", 'invalid device name "_", should start with a letter or a digit'),
    ],
    "no-devices.yaml": [("devices", "no devices")],
    "python-tag.yaml": [("line 3", "unknown tag")],
    "text.yaml": [("", 'must be an object, not the string "just a line of text"')],
    "two-documents.yaml": [("line 6", "more than one YAML document")],
    "unknown-field.yaml": [
        ("colour", "unknown field; known are cdiVersion, kind, annotations, devices, containerEdits"),
        ("devices[0].containerEdits.envs", "unknown field; known are env, deviceNodes"),
    ],
    "version-too-old.yaml": [
        ("cdiVersion", "must be at least v0.7.0, because of devices[0].containerEdits.additionalGids")
    ],
    "wrong-types.json": [
        ("kind", "must be a string, not a list"),
        ('annotations["a"]', "must be a string, not a list"),
        ("devices[0].containerEdits.deviceNodes[0]", "must be an object, not null"),
        ("devices[0].containerEdits.deviceNodes[1].fileMode", "must be between 0 and 4294967295"),
        ("devices[0].containerEdits.deviceNodes[1].major", 'must be a whole number, not the string "7"'),
        ("devices[0].containerEdits.deviceNodes[1].minor", "must be a whole number, not the number 1.5"),
        ("devices[0].containerEdits.deviceNodes[1].uid", "must be between 0 and 4294967295"),
        ("devices[0].containerEdits.intelRdt.enableMonitoring", "must be true or false"),
        ("devices[0].containerEdits.env[0]", "holds a NUL character"),
        ("devices[0].containerEdits.env[1]", "surrogate"),
        ("devices[0].containerEdits.netDevices[1].hostInterfaceName", 'interface "e" is given twice'),
        ("devices[0].containerEdits.netDevices[1].name", 'interface "n" is given twice'),
        ("devices[0].containerEdits.intelRdt.closID", 'invalid closID "a/b"'),
    ],
}


def test_every_bad_file_has_its_expectation() -> None:
    assert sorted(REFUSED) == sorted(path.name for path in (HERE / "bad").iterdir())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_bad_file_is_refused_with_all_its_problems(name: str) -> None:
    path = HERE / "bad" / name
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    found = {(problem.where, problem.what) for problem in caught.value.problems}
    unmatched = [
        want for want in REFUSED[name] if not any(want[0] == where and want[1] in what for where, what in found)
    ]
    assert unmatched == []
    assert len(caught.value.problems) == len(REFUSED[name])
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("path", sorted((HERE / "good").iterdir()), ids=lambda path: path.name)
def test_good_file_is_accepted(path: Path) -> None:
    assert read_spec(path).devices


def test_unquoted_names_are_read_as_the_engines_read_them() -> None:
    spec = read_spec(HERE / "good" / "unquoted-names.yaml")
    assert [device.name for device in spec.devices] == ["0", "1:0", "8", "2026-01-02"]


def test_keys_match_without_regard_to_case_and_null_leaves_a_field_unset() -> None:
    spec = read_spec(HERE / "good" / "mixed-case-keys.json")
    assert spec.cdi_version == "0.7.0"
    assert spec.container_edits == ContainerEdits()
    (device,) = spec.devices
    assert device.container_edits.additional_gids == (44,)
    assert device.container_edits.device_nodes[0].file_mode == 0o660
    assert device.container_edits.device_nodes[0].uid == 0


def test_merge_key_fills_only_what_is_not_given() -> None:
    spec = read_spec(HERE / "good" / "anchors.yaml")
    assert spec.devices[1].container_edits.env == ("A=2",)
    assert spec.devices[1].container_edits.mounts == spec.devices[0].container_edits.mounts


def test_annotation_keys_are_not_checked_as_the_reference_does_not_either() -> None:
    assert read_spec(HERE / "good" / "everything.json").annotations == {"Acme/Note": "kept as it is"}


@pytest.mark.parametrize(
    ("word", "name"),
    [("0x10", "16"), ("0o17", "15"), ("08", "8"), ("1_0", "10"), ("1.5", "1.5"), ("true", "true"), ("off", "false"),
     ("y", "y"), ("'010'", "010"), ("!!str 010", "010"), ("+7", "7")],
)  # fmt: skip
def test_unquoted_word_becomes_the_name_that_go_makes_of_it(word: str, name: str) -> None:
    text = f"cdiVersion: 1.0.0\nkind: a.b/c\ndevices: [{{name: {word}, containerEdits: {{env: [A=1]}}}}]\n"
    assert parse_spec(text.encode()).devices[0].name == name


def test_number_that_writers_print_differently_must_be_quoted() -> None:
    text = "cdiVersion: 1.0.0\nkind: a.b/c\ndevices: [{name: 1e30, containerEdits: {env: [A=1]}}]\n"
    with pytest.raises(SpecError, match=r"devices\[0\].name: must be a string, .*put it in quotes"):
        parse_spec(text.encode())


@pytest.mark.parametrize("opening", [b"[", b"{a: ", b"- ", b'{"a":', b'{"a":['])
def test_deep_nesting_is_refused_and_not_followed(opening: bytes) -> None:
    with pytest.raises(SpecError):
        parse_spec(opening * 100_000)


def test_nesting_limit_is_far_above_what_a_spec_needs() -> None:
    with pytest.raises(SpecError, match="unknown field"):
        parse_spec(b"x: " + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))


def test_nesting_beyond_the_limit_is_named() -> None:
    with pytest.raises(SpecError, match="line 1: nested deeper than 64 levels"):
        parse_spec(b"x: " + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_anchors_cannot_make_a_small_file_large() -> None:
    many = ", ".join(["*e"] * 3000)
    text = f"""
cdiVersion: 0.3.0
kind: a.b/c
annotations: {{x: &e "A=1"}}
devices:
- &d {{name: a, containerEdits: {{env: [{many}]}}}}
{"- *d" + chr(10)}{("- *d" + chr(10)) * 2000}
"""
    with pytest.raises(SpecError, match="holds more than 250000 values"):
        parse_spec(text.encode())


def test_special_file_is_not_opened_for_reading(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(StoreError, match="not a regular file"):
        read_spec(tmp_path / "pipe.yaml")


def test_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"absent.yaml: cannot be read: No such file"):
        read_spec(tmp_path / "absent.yaml")


def test_json_is_accepted_under_a_yaml_name_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes((HERE / "good" / "everything.json").read_bytes())
    (tmp_path / "b.json").write_bytes((HERE / "good" / "minimal.yaml").read_bytes())
    assert read_spec(tmp_path / "a.yaml") == read_spec(HERE / "good" / "everything.json")
    assert read_spec(tmp_path / "b.json") == read_spec(HERE / "good" / "minimal.yaml")
