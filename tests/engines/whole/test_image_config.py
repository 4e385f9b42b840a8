"""What an image brings along must not say or allow what was not asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.engines.whole.house import House

from dibs.errors import InvalidRequest
from dibs.request import parse_spec

NAME = "localhost/dibs-brings:1"


@pytest.fixture
def image(house: House) -> Iterator[str]:
    """An image with a volume, and with variables that look like those of dibs."""
    row = house.create(command=["sleep", "1000"])
    changes = ["VOLUME /vol", "ENV DIBS_GPUS=forged", "ENV DIBS_RECEIPT=forged", "ENV KEPT=yes"]
    path = f"{house.engine.prefix}/commit?container=dibs-{row.id}&repo=localhost/dibs-brings&tag=1"
    path += "".join(f"&changes={quote(change)}" for change in changes)
    status, answer = house.engine.api("POST", path, json={})
    assert status in (200, 201), answer
    house.service.remove(row.id, 0.0)
    yield NAME
    house.engine.remove_containers()
    house.engine.api("DELETE", f"{house.engine.prefix}/images/{quote(NAME, safe='')}?force=true")


def test_a_volume_of_the_image_is_read_only_where_the_root_is(house: House, image: str, tmp_path: Path) -> None:
    command = ("sh", "-c", "touch /vol/x && echo wrote")
    if house.kind == "docker":  # which cannot do it
        with pytest.raises(InvalidRequest, match="/vol") as caught:
            house.run(*command, image=image, read_only=True)
        assert caught.value.code == "FIELD_NOT_SUPPORTED"
        assert house.names() == set()
        said, end = house.run(*command, image=image, read_only=True, mounts=[f"{tmp_path}:/vol"])
    else:
        said, end = house.run(*command, image=image, read_only=True)
    assert end.code != 0
    assert "wrote" not in said
    said, end = house.run("sh", "-c", "touch /vol/x && echo wrote", image=image)
    assert (said, end.code) == ("wrote\n", 0)


def test_variables_of_the_image_do_not_speak_for_dibs(house: House, image: str) -> None:
    said, end = house.run("sh", "-c", "env | grep -e ^DIBS_ -e ^KEPT= | sort", image=image)
    assert end.code == 0
    found = dict(line.partition("=")[::2] for line in said.splitlines())
    assert found["KEPT"] == "yes"
    assert found["DIBS_GPU_COUNT"] == "0"
    assert not {"DIBS_GPUS", "DIBS_RECEIPT"} & set(found)


@pytest.mark.parametrize("name", ["dibs.home", "dibs.sandbox", "dibs.anything"])
def test_labels_of_dibs_itself_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        parse_spec({"labels": {name: "/elsewhere", "team": "blue"}})
    assert [problem.code for problem in caught.value.problems] == ["LABELS_INVALID"]
