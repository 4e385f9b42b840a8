"""With an image the caller's working directory comes along, where the chosen backend sees folders of the host."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dibs.backends import installed
from dibs.backends.fake.cluster import FakeCluster
from dibs.cli.options import read_spec
from dibs.errors import InvalidRequest, Unsupported
from dibs.home import Home
from dibs.request.model import MountSpec
from dibs.request.spec import parse_spec
from dibs.settings import Settings
from dibs.workloads.explain import choose, meant_for
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

HERE = "/srv/project"


def test_the_backend_that_is_chosen_decides_and_not_the_name_in_the_request(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry = Registry(home, Settings())
    here = MountSpec(str(tmp_path), str(tmp_path), writable=True)
    for kind in installed.built_in():
        for asked in ("auto", kind.name):
            spec = read_spec({"image": "host", "backend": asked}, ("true",))
            found = meant_for(spec, kind.name, registry)
            expected = ((here,), str(tmp_path)) if kind.host_files else ((), "")
            assert (found.mounts, found.workdir) == expected, (kind.name, asked)
            assert meant_for(found, kind.name, registry) == found
    assert {kind.host_files for kind in installed.built_in()} == {True, False}


def test_what_is_named_is_kept_as_it_is(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    registry = Registry(home, Settings())
    spec = read_spec({"image": "python:3.12", "mounts": ("data:/data",)}, ("true",))
    named = MountSpec(str(tmp_path / "data"), "/data")
    assert meant_for(spec, "docker", registry).mounts == (named, MountSpec(str(tmp_path), str(tmp_path), writable=True))
    assert meant_for(spec, "kubernetes", registry).mounts == (named,), "its refusal is the backend's"
    for more in ({"image": "python:3.12", "workdir": "/srv"}, {"workdir": "/srv"}, {}):
        assert not read_spec(more, ("true",)).brought
    monkeypatch.chdir("/usr")
    assert not read_spec({"image": "python:3.12"}, ("true",)).brought, "it would hide a part of the image"


def test_what_stays_behind_is_told_before_and_after(home: Home, tmp_path: Path) -> None:
    cluster = FakeCluster.make(str(tmp_path / "cluster.db"))
    settings = Settings(backends=("fake-cluster",), fake_cluster=cluster.path)
    told = "your working directory does not come along: the fake-cluster backend sees no folders of this host"
    asked = parse_spec({"command": ["sleep", "1000"]})
    spec = msgspec.structs.replace(asked, brought=HERE)
    with Workloads(home, registry=Registry(home, settings)) as service:
        assert service.explain(spec).backends[0].notes == (told,)
        assert service.explain(asked).backends[0].notes == ()
        notes: list[str] = []
        row = service.create(spec, on_note=notes.append)
        assert notes == [told]
        assert told in service.receipt(row.id).notes
        assert (row.spec.mounts, row.spec.workdir) == ((), "")
        service.remove(row.id, 0.0)


@pytest.mark.parametrize(
    ("brought", "more", "code"),
    [(HERE, {"volumes": [f"data:{HERE}"]}, "CONFLICT"), ("/srv/\x07", {}, "WORKDIR_INVALID")],
)
def test_what_comes_along_is_checked_like_what_is_named(
    home: Home, brought: str, more: dict[str, list[str]], code: str
) -> None:
    spec = msgspec.structs.replace(parse_spec({"command": ["true"], "backend": "fake", **more}), brought=brought)
    with pytest.raises((InvalidRequest, Unsupported)) as refused:
        choose(spec, Registry(home, Settings()))
    assert code in [problem.code for problem in refused.value.problems]
