"""Images of a registry that wants a login: a real one, in the engine's own network."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.engines.images import REFERENCE
from tests.engines.running import REGISTRY
from tests.engines.whole.house import House, until

from dibs.errors import Unsupported

IMAGE = f"{REGISTRY}/team/private:1"
USER, PASSWORD = "worker", "secret"
HASH = "$2b$04$mjrN8nn8EXtePlmQMV0N0O/GmxrTEU6794PHt32Tf2wjfIPWzfq02"  # of the password; htpasswd takes bcrypt only
CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}
http: {{addr: {address}}}
auth: {{htpasswd: {{realm: team, path: {folder}/users}}}}
"""


@pytest.fixture
def registry(house: House) -> Iterator[House]:
    """The image is there, and not in the engine; there is no login."""
    engine = house.engine
    if not (engine.root / "usr/bin/docker-registry").exists():
        pytest.skip("the engine's root has no registry (the package docker-registry)")
    (engine.folder / "users").write_text(f"{USER}:{HASH}\n")
    (engine.folder / "registry.yml").write_text(CONFIG.format(folder=engine.folder, address=REGISTRY))
    log = (engine.folder / "registry.log").open("w")
    server = engine.inside("docker-registry", "serve", f"{engine.folder}/registry.yml", stdout=log, stderr=log)
    try:
        until(lambda: "listening on" in (engine.folder / "registry.log").read_text())
        engine.cli("tag", REFERENCE, IMAGE)
        login(house)
        engine.cli("push", IMAGE)
        engine.cli("logout", REGISTRY)
        forget(house)
        yield house
    finally:
        engine.inside("rm", "-rf", "/run/containers/auth.json", f"{engine.folder}/docker").wait()
        forget(house)
        server.kill()
        server.wait()
        log.close()


def login(house: House) -> None:
    house.engine.cli("login", "--username", USER, "--password", PASSWORD, REGISTRY)


def forget(house: House) -> None:
    house.engine.api("DELETE", f"{house.engine.prefix}/images/{quote(IMAGE, safe='')}?force=true")


def test_without_a_login_the_remedy_works_and_nothing_is_left(registry: House) -> None:
    house = registry
    with pytest.raises(Unsupported) as caught:
        house.create(image=IMAGE, gpu=1, command=["sleep", "1000"])
    [problem] = caught.value.problems
    assert problem.code == "REGISTRY_DENIED"
    assert house.free()
    login(house)
    if house.kind == "docker":
        assert "docker pull" in problem.remedy, "the engine itself keeps no login"
        house.engine.cli("pull", IMAGE)
    else:
        assert "podman login" in problem.remedy
    row = house.create(image=IMAGE, gpu=1, command=["sleep", "1000"])
    assert house.service.sandbox(row.id).state == "running"
    assert house.nodes(row) == ["simgpu0 c 1:3"]


def test_a_login_is_in_no_message_receipt_or_file_of_dibs(registry: House) -> None:
    house = registry
    login(house)
    said = house.dibs("run", "--backend", house.kind, "--image", IMAGE, "--", "true")
    told = said.stdout + said.stderr
    files = [path for path in house.home.state.rglob("*") if path.is_file()]
    assert PASSWORD not in told
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    assert (said.returncode, "REGISTRY_DENIED" in told) == ((81, True) if house.kind == "docker" else (0, False)), told
