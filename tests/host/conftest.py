"""A home as the host service has it: root's, open enough for users to reach what is theirs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.installation import private

from dibs.home import Home

USER, OTHER = 64123, 64124  # numbers without an account
# Not in /tmp: every sandbox has that of its own, so what is there could not be seen anyhow.
PLACE = next((place for place in ("/srv", "/opt", "/var/lib") if os.access(place, os.W_OK)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = private() if os.getuid() == 0 else "only root can act for other users"
    if reason:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can get to; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-host-", dir=PLACE))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def host_home(open_folder: Path) -> Home:
    state = open_folder / "state"
    state.mkdir(mode=0o711)
    state.chmod(0o711)
    return Home(state=state, config=open_folder / "etc").make()


@pytest.fixture
def users_folder(open_folder: Path) -> Path:
    """The working folder of the ordinary user."""
    folder = open_folder / "work"
    folder.mkdir(mode=0o700)
    os.chown(folder, USER, USER)
    return folder
