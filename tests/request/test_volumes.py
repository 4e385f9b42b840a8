"""Named volumes: the short form, the long form, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import InvalidRequest
from dibs.request.model import VolumeSpec
from dibs.request.spec import parse_spec


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("data:/data", VolumeSpec("data", "/data")),
        ("data:/data:ro", VolumeSpec("data", "/data", writable=False)),
        ("data/a/b:/data:create", VolumeSpec("data", "/data", "a/b", create=True)),
        (
            "data:/data:create,size=2Gi,class=fast,access=ReadWriteMany",
            VolumeSpec(
                "data", "/data", create=True, size_bytes=2 << 30, storage_class="fast", access_modes=("ReadWriteMany",)
            ),
        ),
        ({"name": "d", "target": "/d", "sub_path": "x", "read_only": True}, VolumeSpec("d", "/d", "x", writable=False)),
    ],
)
def test_both_forms_mean_the_same_and_the_short_one_is_printed(said: Any, meant: VolumeSpec) -> None:
    (found,) = parse_spec({"volumes": [said]}).volumes
    assert found == meant
    assert parse_spec({"volumes": [str(found)]}).volumes == (meant,)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("data", "volumes"),
        ("/host:/data", "volumes.name"),
        ("data:data", "volumes.target"),
        ("data:/", "volumes.target"),
        ("data:/a/../b", "volumes.target"),
        ("data/../x:/data", "volumes.sub_path"),
        ("data/:/data", "volumes.sub_path"),
        ("data:/data:rwx", "volumes"),
        ("data:/data:size=1Gi", "volumes"),
        ("data:/data:create,size=much", "volumes.size"),
        ("data:/data:create,access=Mine", "volumes.access_modes"),
        ({"name": "d", "target": "/d", "colour": "red"}, "volumes.colour"),
        ({"name": "d", "target": "/d", "create": "yes"}, "volumes.create"),
        (7, "volumes"),
    ],
)
def test_what_is_no_volume_is_refused_by_its_field(said: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_spec({"volumes": [said]})
    assert [problem.field for problem in refused.value.problems] == [field]


def test_two_things_on_one_target_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_spec({"volumes": ["a:/x", "b:/x/"], "mounts": ["/tmp:/x"]})
    assert [problem.code for problem in refused.value.problems] == ["CONFLICT", "CONFLICT"]
