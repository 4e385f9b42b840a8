"""Properties over generated input: nothing crashes, what is written reads back, injecting twice follows its rules."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dibs.cdi import (
    Cache,
    CdiError,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    apply_edits,
    encode_json,
    encode_yaml,
    minimum_required_version,
    parse_spec,
)

HERE = Path(__file__).parent
GOOD = [path.read_bytes() for path in sorted((HERE / "good").iterdir())]

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
word = text.filter(bool)
env = st.builds("{}={}".format, text.filter(lambda s: s and "=" not in s), text)
envs = st.lists(env, max_size=4).map(tuple)
u32 = st.integers(0, 2**32 - 1)
node = st.builds(
    DeviceNode,
    path=word,
    host_path=text,
    type=st.sampled_from("bcup"),
    major=st.integers(1, 2**63 - 1),
    minor=st.integers(0, 2**63 - 1),
    file_mode=st.none() | u32,
    permissions=st.sampled_from(["", "r", "rwm", "none"]),
    uid=st.none() | u32,
    gid=st.none() | u32,
)
mount = st.builds(Mount, word, word, text, st.lists(text, max_size=3).map(tuple))
hook = st.builds(
    Hook,
    st.sampled_from(["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]),
    word,
    st.lists(text, max_size=2).map(tuple),
    envs,
    st.none() | st.integers(-(2**31), 2**31 - 1),
)
clos = text.filter(lambda s: s not in (".", "..") and not set(s) & set("/\n"))
rdt = st.builds(IntelRdt, clos, text, text, st.lists(text, max_size=2).map(tuple), st.booleans())
nets = st.dictionaries(word, st.just(None), max_size=3).map(
    lambda names: tuple(NetDevice(name, f"in-{name}") for name in names)
)
edits = st.builds(
    ContainerEdits,
    env=envs,
    device_nodes=st.lists(node, max_size=3).map(tuple),
    net_devices=nets,
    mounts=st.lists(mount, max_size=3).map(tuple),
    hooks=st.lists(hook, max_size=3).map(tuple),
    intel_rdt=st.none() | rdt,
    additional_gids=st.lists(u32, max_size=3).map(tuple),
)
label = st.from_regex(r"[a-zA-Z]([a-zA-Z0-9_.-]{0,6}[a-zA-Z0-9])?", fullmatch=True)
name = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9_.:-]{0,6}[a-zA-Z0-9])?", fullmatch=True)
notes = st.dictionaries(text, text, max_size=2)
device = st.builds(Device, name, notes, edits.filter(lambda e: not e.is_empty))
specs = st.builds(
    Spec,
    kind=st.builds("{}/{}".format, label, label),
    annotations=notes,
    devices=st.lists(device, min_size=1, max_size=3, unique_by=lambda d: d.name).map(tuple),
    container_edits=edits,
)

HOST = "/nonexistent"


def refused_or_read(data: bytes) -> None:
    spec: Spec | None = None
    message = ""
    try:
        spec = parse_spec(data)
    except CdiError as exc:
        message = str(exc)
    assert spec.devices if spec is not None else message


@given(st.binary(max_size=200))
@example(b"\x00")
@example(b"%YAML 9.9\n---\n")
@example(b"? {a: b}\n: c\n")
@example(b"? [a]\n")
@example(b"<<: 1\n")
@example(b"<<: <<\n")
@example(b"<<")
@example(b"- <<\n")
@example(b"!!int x")
@example(b"{1: 2, 1: 3}")
@example(b'{"a": ' + b"9" * 5000 + b"}")
@example(b"a: " + b"9" * 5000)
@example(b"a: 0x" + b"f" * 60)
@example(b"devices: .inf")
@example(b"a: &a b\nc: *a\nd: *e\n")
def test_garbage_is_refused_and_never_crashes(data: bytes) -> None:
    refused_or_read(data)


@given(st.text(st.sampled_from(list("{}[]:,-&*!|>'\"%@`#?<~ \n\t0ax.:")), max_size=40))
def test_garbage_made_of_yaml_signs_never_crashes(text: str) -> None:
    refused_or_read(text.encode())


@given(st.sampled_from(GOOD), st.data())
def test_damaged_spec_never_crashes(good: bytes, data: st.DataObject) -> None:
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "drop"]))
        if how == "flip":
            damaged[at] = data.draw(st.integers(0, 255))
        elif how == "cut" and at:
            del damaged[at:]
        elif len(damaged) > 1:
            del damaged[at]
    refused_or_read(bytes(damaged))


@given(st.binary(max_size=60))
def test_garbage_file_is_recorded_by_the_cache_and_hides_nothing(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "garbage.yaml").write_bytes(data)
        (Path(folder) / "good.yaml").write_bytes((HERE / "good" / "minimal.yaml").read_bytes())
        cache = Cache([folder])
        assert cache.devices() == ["acme.com/gpu=gpu0"]
        assert list(cache.errors()) == [str(Path(folder) / "garbage.yaml")]


@given(specs)
def test_spec_survives_encoding_in_both_formats(spec: Spec) -> None:
    spec = Spec(minimum_required_version(spec), spec.kind, spec.annotations, spec.devices, spec.container_edits)
    assert parse_spec(encode_json(spec)) == spec
    assert parse_spec(encode_yaml(spec)) == spec


@given(specs)
@settings(max_examples=30)
def test_spec_survives_writing_and_reading(spec: Spec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache([folder])
        cache.write_spec(spec, "spec")
        (file,) = cache.specs()
        assert file.spec.devices == spec.devices
        assert file.spec.container_edits == spec.container_edits
        assert file.spec.annotations == spec.annotations
        assert file.spec.cdi_version == minimum_required_version(spec)


@given(edits)
def test_injecting_twice_only_doubles_hooks_and_cgroup_rules(part: ContainerEdits) -> None:
    once = apply_edits({}, part, host_root=HOST)
    twice = apply_edits(once, part, host_root=HOST)
    rules = once.get("linux", {}).get("resources", {}).get("devices", [])
    hooks = once.get("hooks", {})
    assert twice.pop("hooks", {}) == {moment: entries * 2 for moment, entries in hooks.items()}
    assert twice.get("linux", {}).get("resources", {}).pop("devices", []) == rules * 2
    rest = {key: value for key, value in once.items() if key != "hooks"}
    if "resources" in rest.get("linux", {}):
        rest["linux"] = {**rest["linux"], "resources": {}}
    # A path given twice in one set of edits is settled by the last; a second pass may reorder, not change.
    assert _sorted(twice) == _sorted(rest)


def _sorted(oci: dict[str, object]) -> object:
    def freeze(value: object) -> object:
        if isinstance(value, dict):
            return tuple(sorted((key, freeze(item)) for key, item in value.items()))
        if isinstance(value, list):
            return tuple(sorted((freeze(item) for item in value), key=repr))
        return repr(value)

    return freeze(oci)
