"""Where the engines of the tests come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conformance.factories import FACTORIES
from tests.engines import installing


def apt(folder: Path, monkeypatch: pytest.MonkeyPatch, *uris: str) -> None:
    """An apt that is set up for these archives."""
    (folder / "apt-get").write_text("#!/bin/sh\n" + "".join(f"echo {uri}\n" for uri in uris))
    (folder / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(installing, "MIRROR", "")


def test_the_mirror_is_the_one_of_this_machines_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt(
        tmp_path, monkeypatch,
        "https://vendor.example/apt/", "http://mirror.example/debian-security/", "http://mirror.example/pub/debian/",
    )  # fmt: skip
    assert installing.mirror() == "http://mirror.example/pub/debian"


def test_without_a_mirror_of_debian_the_reason_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt(tmp_path, monkeypatch, "http://mirror.example/ubuntu/")
    with pytest.raises(installing.CannotInstall, match="DIBS_ENGINES_MIRROR"):
        installing.mirror()


def test_every_version_of_an_engine_that_is_tested_is_installed_before_the_tests() -> None:
    installed = {name.strip() for names in installing.ENGINES.values() for name in names.split(",")}
    kinds = {name.split()[0] for name in installed}  # forms of a cluster's sandboxes are no versions of an engine
    engines = [one for one in FACTORIES if one.declaration.name in kinds]
    further = {one.name.replace("-", " ") for one in engines if one.name != one.declaration.name}
    assert further
    assert further <= installed
