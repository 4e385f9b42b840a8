"""The whole life of a sandbox as a Python client drives it: the same steps for the asynchronous SDK and the sync one.

Written once, for the asynchronous one; `Awaitable` gives the sync SDK's objects the same look. `test_python_sdk` runs
it as a program of its own, as a user would: what the SDK leaves open at its end is not a matter of our tests.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from opensandbox.config import ConnectionConfig
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxFilter
from opensandbox.sync.manager import SandboxManagerSync
from opensandbox.sync.sandbox import SandboxSync

from opensandbox import Sandbox, SandboxManager

# What a pod has not, and says so: its processes run as its own user, and it cannot be frozen. Its devices are told by
# the driver on its node.
IN_POD = os.environ.get("DIBS_TEST_BACKEND") == "kubernetes"
# An ordinary user's sandbox on `local` has that user alone.
ANY_USER = os.environ.get("DIBS_TEST_BACKEND") != "local" or os.getuid() == 0
# A user and group other than root: an ordinary user's sandbox has no others than its own.
OTHER = (1000, 1001) if ANY_USER else (os.getuid(), os.getgid())


class Awaitable:
    """A sync object whose methods can be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "files_with_identity":
            return lambda *args: Awaitable(found(*args))
        if inspect.ismethod(found) or inspect.isfunction(found):

            async def call(*args: Any, **kwargs: Any) -> Any:
                return await asyncio.to_thread(found, *args, **kwargs)

            return call
        return Awaitable(found) if hasattr(found, "__dict__") and not isinstance(found, str) else found


class Client:
    """One of the two SDKs: how to make, connect to and resume a sandbox, and its manager."""

    def __init__(self, create: Any, connect: Any, resume: Any, manager: Any) -> None:
        self.create = create
        self.connect = connect
        self.resume = resume
        self.manager = manager


async def until(question: Callable[[], Any], tries: int = 600) -> Any:
    """Ask again and again until the answer is true."""
    for _ in range(tries):
        if answer := await question():
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")


IMAGE = os.environ.get("DIBS_TEST_IMAGE", "")
BACKEND = os.environ.get("DIBS_TEST_BACKEND", "")


def _config() -> dict[str, Any]:
    return {
        "domain": os.environ["DIBS_TEST_DOMAIN"],
        "api_key": os.environ["DIBS_TEST_KEY"],
        "use_server_proxy": os.environ["DIBS_TEST_PROXY"] == "1",
        "request_timeout": timedelta(seconds=60),
    }


def asynchronous() -> Client:
    def config() -> ConnectionConfig:
        return ConnectionConfig(**_config())

    async def create(*args: Any, **kwargs: Any) -> Any:
        return await Sandbox.create(*args, connection_config=config(), **kwargs)

    async def connect(sandbox_id: str) -> Any:
        return await Sandbox.connect(sandbox_id, connection_config=config())

    async def resume(sandbox_id: str) -> Any:
        return await Sandbox.resume(sandbox_id, connection_config=config())

    async def manager() -> Any:
        return await SandboxManager.create(config())

    return Client(create, connect, resume, manager)


def sync() -> Client:
    def config() -> ConnectionConfigSync:
        return ConnectionConfigSync(**_config())

    async def create(*args: Any, **kwargs: Any) -> Any:
        return Awaitable(await asyncio.to_thread(SandboxSync.create, *args, connection_config=config(), **kwargs))

    async def connect(sandbox_id: str) -> Any:
        return Awaitable(await asyncio.to_thread(SandboxSync.connect, sandbox_id, connection_config=config()))

    async def resume(sandbox_id: str) -> Any:
        return Awaitable(await asyncio.to_thread(SandboxSync.resume, sandbox_id, connection_config=config()))

    async def manager() -> Any:
        return Awaitable(SandboxManagerSync.create(config()))

    return Client(create, connect, resume, manager)


async def live(client: Client) -> None:
    sandbox = await client.create(
        IMAGE,
        resource={"cpu": "1", "memory": "512Mi", "gpu": "2"},
        resource_requests={"gpu": "2"},
        metadata={"purpose": "life", "odd": "a=b&c %1"},
        env={"GREETING": "hello"},
        extensions={"dibs.backend": BACKEND},
        entrypoint=["sh", "-c", "echo the entrypoint speaks; exec sleep 1000"],
        timeout=timedelta(minutes=10),
    )
    await what_it_is(sandbox)
    await commands(sandbox)
    await background(sandbox)
    await sessions(sandbox)
    await files(sandbox)
    await metrics(sandbox)
    await lists(client, sandbox)
    await renewal(sandbox)
    await diagnostics(sandbox)
    sandbox = await standing_still(client, sandbox)
    again = await client.connect(sandbox.id)
    assert (await again.commands.run("echo still here")).text == "still here"
    await again.close()
    await sandbox.kill()
    with pytest.raises(SandboxApiException) as caught:
        await sandbox.get_info()
    assert caught.value.status_code == 404
    assert not await sandbox.is_healthy()
    await sandbox.close()


async def what_it_is(sandbox: Any) -> None:
    info = await sandbox.get_info()
    assert info.status.state == "Running"
    assert info.image.image == IMAGE
    assert info.metadata == {"purpose": "life", "odd": "a=b&c %1"}
    assert info.extensions["dibs.receipt"] == "delivered"
    assert info.extensions["dibs.backend"] == BACKEND
    assert info.extensions["dibs.simulated"] == ("false" if IN_POD else "true")
    devices = info.extensions["dibs.devices"].split(",")
    assert len(devices) == 2
    assert devices[0] in info.status.message
    seen = await sandbox.commands.run('ls /dev | grep -c simgpu; echo "$CUDA_VISIBLE_DEVICES"')
    told = [] if IN_POD else [info.extensions["dibs.uuids"]]
    assert [line.text.strip() for line in seen.logs.stdout if line.text.strip()] == ["2", *told]
    assert len(info.extensions["dibs.uuids"].split(",")) == 2
    assert abs((info.expires_at - info.created_at).total_seconds() - 600) < 60


async def commands(sandbox: Any) -> None:
    done = await sandbox.commands.run("echo out; echo err >&2; echo; printf tail")
    assert [line.text for line in done.logs.stdout] == ["out", "\n", "tail"]
    assert [line.text for line in done.logs.stderr] == ["err"]
    assert done.exit_code == 0
    assert done.error is None
    failed = await sandbox.commands.run("exit 3")
    assert failed.exit_code == 3
    words = await sandbox.commands.run(["printf", "%s|", "a b", "$HOME"])
    assert words.text == "a b|$HOME|"
    where = RunCommandOpts(working_directory="/tmp", envs={"COLOUR": "blue"})
    assert (await sandbox.commands.run("echo $PWD $COLOUR $GREETING", opts=where)).text == "/tmp blue hello"
    late = await sandbox.commands.run("sleep 100", opts=RunCommandOpts(timeout=timedelta(milliseconds=300)))
    assert late.error is not None
    uid, gid = OTHER
    opts = RunCommandOpts(uid=uid, gid=gid)
    if IN_POD:
        with pytest.raises(SandboxApiException) as caught:
            await sandbox.commands.run("id -u; id -g", opts=opts)
        assert (caught.value.status_code, caught.value.error.code) == (400, "USER_NOT_MAPPED")
    else:
        who = await sandbox.commands.run("id -u; id -g", opts=opts)
        assert [line.text for line in who.logs.stdout] == [str(uid), str(gid)]
    await sandbox.commands.set_env("KEPT", "for 'ever'")
    assert (await sandbox.commands.run('echo "$KEPT"')).text == "for 'ever'"


async def background(sandbox: Any) -> None:
    opts = RunCommandOpts(background=True)
    begun = await sandbox.commands.run("echo one; echo two >&2; exit 4", opts=opts)
    assert begun.id

    async def over() -> Any:
        status = await sandbox.commands.get_command_status(begun.id)
        return None if status.running else status

    status = await until(over)
    assert status.exit_code == 4, status
    assert status.started_at <= status.finished_at
    logs = await sandbox.commands.get_background_command_logs(begun.id)
    assert sorted(logs.content.split()) == ["one", "two"]
    assert (await sandbox.commands.get_background_command_logs(begun.id, cursor=logs.cursor)).content == ""
    long = await sandbox.commands.run("sleep 1000", opts=opts)
    seen = await sandbox.commands.get_command_status(long.id)
    assert seen.running, seen
    await sandbox.commands.interrupt(long.id)

    async def ended() -> bool:
        return not (await sandbox.commands.get_command_status(long.id)).running

    await until(ended)
    with pytest.raises(SandboxApiException) as caught:
        await sandbox.commands.get_command_status("no-such-command")
    assert caught.value.status_code == 404


async def sessions(sandbox: Any) -> None:
    session = await sandbox.commands.create_session(working_directory="/tmp")
    await sandbox.commands.run_in_session(session, "export MOOD=good; cd /")
    assert (await sandbox.commands.run_in_session(session, "echo $MOOD $PWD")).text == "good /"
    assert (await sandbox.commands.run_in_session(session, "pwd", working_directory="/tmp")).text == "/tmp"
    assert (await sandbox.commands.run_in_session(session, "(exit 5)")).exit_code == 5
    await sandbox.commands.delete_session(session)
    with pytest.raises(SandboxApiException):
        await sandbox.commands.run_in_session(session, "true")


async def files(sandbox: Any) -> None:
    top = "/tmp/life"
    await sandbox.files.create_directories([WriteEntry(path=f"{top}/deep/er", mode=750)])
    await sandbox.files.write_file(f"{top}/a.txt", "one\ntwo\nthree\n", mode=640)
    await sandbox.files.write_files(
        [WriteEntry(path=f"{top}/b.bin", data=bytes(range(256))), WriteEntry(path=f"{top}/deep/c.txt", data="ü")]
    )
    assert await sandbox.files.read_file(f"{top}/a.txt") == "one\ntwo\nthree\n"
    assert await sandbox.files.read_file(f"{top}/a.txt", offset=2, limit=1) == "two"
    assert await sandbox.files.read_bytes(f"{top}/b.bin") == bytes(range(256))
    assert await sandbox.files.read_bytes(f"{top}/b.bin", range_header="bytes=10-12") == bytes([10, 11, 12])
    stream = await sandbox.files.read_bytes_stream(f"{top}/b.bin")
    pieces = [piece async for piece in stream] if hasattr(stream, "__aiter__") else list(stream)
    assert b"".join(pieces) == bytes(range(256))
    info = (await sandbox.files.get_file_info([f"{top}/a.txt", f"{top}/deep"]))[f"{top}/a.txt"]
    assert (info.size, info.mode, info.entry_type) == (14, 640, "file")
    found = await sandbox.files.search(SearchEntry(path=top, pattern="*.txt"))
    assert sorted(entry.path for entry in found) == [f"{top}/a.txt", f"{top}/deep/c.txt"]
    listed = await sandbox.files.list_directory(DirectoryListEntry(path=top))
    assert sorted(entry.path for entry in listed) == [f"{top}/a.txt", f"{top}/b.bin", f"{top}/deep"]
    listed = await sandbox.files.list_directory(DirectoryListEntry(path=top, depth=2))
    assert f"{top}/deep/er" in [entry.path for entry in listed]
    await sandbox.files.set_permissions([SetPermissionEntry(path=f"{top}/a.txt", mode=600)])
    assert (await sandbox.files.get_file_info([f"{top}/a.txt"]))[f"{top}/a.txt"].mode == 600
    await sandbox.files.move_files([MoveEntry(source=f"{top}/a.txt", destination=f"{top}/moved.txt")])
    edits = [ContentReplaceEntry(path=f"{top}/moved.txt", old_content="two", new_content="2")]
    (replaced,) = await sandbox.files.replace_contents_detailed(edits)
    assert replaced.replaced_count == 1
    assert await sandbox.files.read_file(f"{top}/moved.txt") == "one\n2\nthree\n"
    await sandbox.files.replace_contents(
        [ContentReplaceEntry(path=f"{top}/moved.txt", old_content="2", new_content="zwei")]
    )
    other = sandbox.files_with_identity(*OTHER)
    await sandbox.commands.run(f"mkdir -m 777 {top}/open")
    if IN_POD:
        with pytest.raises(SandboxApiException) as caught:
            await other.write_file(f"{top}/open/theirs.txt", "mine")
        assert (caught.value.status_code, caught.value.error.code) == (400, "USER_NOT_MAPPED")
    else:
        await other.write_file(f"{top}/open/theirs.txt", "mine")
        owners = await sandbox.commands.run(f"stat -c '%u %g' {top}/open/theirs.txt")
        assert owners.text == f"{OTHER[0]} {OTHER[1]}"
    with pytest.raises(SandboxApiException) as caught:
        await sandbox.files.read_file(f"{top}/nothing")
    assert caught.value.status_code == 404
    await sandbox.files.delete_files([f"{top}/moved.txt", f"{top}/b.bin"])
    await sandbox.files.delete_directories([f"{top}/deep", f"{top}/open"])
    assert await sandbox.files.list_directory(DirectoryListEntry(path=top)) == []


async def metrics(sandbox: Any) -> None:
    seen = await sandbox.get_metrics()
    assert seen.cpu_count == 1.0
    assert seen.memory_total_in_mib == 512.0
    assert 0 < seen.memory_used_in_mib < 512
    assert seen.cpu_used_percentage >= 0


async def lists(client: Client, sandbox: Any) -> None:
    changed = await sandbox.patch_metadata({"purpose": "listing", "extra": "1", "odd": None})
    assert changed.metadata == {"purpose": "listing", "extra": "1"}
    await sandbox.patch_metadata({"odd": "a=b&c %1"})
    manager = await client.manager()
    both = {"purpose": "listing", "odd": "a=b&c %1"}
    page = await manager.list_sandbox_infos(SandboxFilter(states=["RUNNING", "Paused"], metadata=both, page_size=1))
    assert [info.id for info in page.sandbox_infos] == [sandbox.id]
    assert (page.pagination.total_items, page.pagination.has_next_page) == (1, False)
    none = await manager.list_sandbox_infos(SandboxFilter(states=["Paused"], metadata=both))
    assert none.sandbox_infos == []
    none = await manager.list_sandbox_infos(SandboxFilter(metadata={**both, "extra": "2"}))
    assert none.sandbox_infos == []
    await manager.close()


async def renewal(sandbox: Any) -> None:
    before = (await sandbox.get_info()).expires_at
    renewed = await sandbox.renew(timedelta(hours=1))
    after = (await sandbox.get_info()).expires_at
    assert after > before + timedelta(minutes=40)
    assert abs(after - renewed.expires_at) < timedelta(milliseconds=2)


async def diagnostics(sandbox: Any) -> None:
    logs = await sandbox.get_diagnostic_logs("container")
    assert (logs.content, logs.truncated) == ("the entrypoint speaks\n", False)
    events = await sandbox.get_diagnostic_events("all")
    assert "sandbox.running" in events.content
    assert ("lease.bound" if IN_POD else "lease.reserved") in events.content
    assert "lease" not in (await sandbox.get_diagnostic_events("lifecycle")).content
    with pytest.raises(SandboxApiException) as caught:
        await sandbox.get_diagnostic_logs("cosmos")
    assert caught.value.error.code == "DIAGNOSTICS_SCOPE_UNSUPPORTED"


async def standing_still(client: Client, sandbox: Any) -> Any:
    if IN_POD:
        with pytest.raises(SandboxApiException) as caught:
            await sandbox.pause()
        assert caught.value.error.code == "PAUSE_UNSUPPORTED"
        assert (await sandbox.get_info()).status.state == "Running"
        return sandbox
    await sandbox.pause()
    assert (await sandbox.get_info()).status.state == "Paused"
    with pytest.raises(SandboxApiException) as caught:
        await sandbox.pause()
    assert (caught.value.status_code, caught.value.error.code) == (409, "WRONG_STATE")
    resumed = await client.resume(sandbox.id)
    assert (await resumed.get_info()).status.state == "Running"
    assert (await resumed.commands.run("echo awake")).text == "awake"
    await sandbox.close()
    return resumed


if __name__ == "__main__":
    asyncio.run(live({"async": asynchronous, "sync": sync}[sys.argv[1]]()))
    print("ok")
