"""Files of a sandbox, with the host's tools and with busybox. No path leads out, whatever its name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dibs.errors import DibsError, InvalidRequest, NotFound
from dibs.gateway.execd import transfer
from dibs.gateway.execd.answers import Streamed, Whole
from dibs.gateway.execd.files import Files, Permission, Rename, Replacement
from dibs.gateway.execd.script_runner import Inside
from dibs.gateway.threads import Pool
from dibs.workloads.identity import this_process

ODD = [
    "plain",
    "with space",
    "-rf",
    "a\nb",
    "quo'te\"s",
    "$(id)",
    "`id`",
    "\\back",
    "ümlaut",
    "*",
    "a|b|c",
    "~",
    "x\udcff",
]


async def put(inside: Inside, path: str, data: bytes, permission: Permission | None = None) -> None:
    upload = transfer.Upload(inside, path, permission or Permission())
    for start in range(0, len(data), 100_000):
        await upload.write(data[start : start + 100_000])
    await upload.finish()


async def get(inside: Inside, path: str, **options: str) -> tuple[int, bytes, dict[bytes, bytes]]:
    answer = await transfer.download(inside, path, **options)
    if isinstance(answer, Whole):
        return answer.status, answer.body, dict(answer.headers)
    assert isinstance(answer, Streamed)
    body = b""
    start: dict[str, object] = {}

    async def send(message: dict[str, object]) -> None:
        nonlocal body
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            assert isinstance(message["body"], bytes)
            body += message["body"]

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    await answer({}, receive, send)
    return int(str(start["status"])), body, dict(start["headers"])  # type: ignore[call-overload]


def test_any_name_can_be_written_read_listed_moved_and_removed(inside: Inside) -> None:
    async def main() -> None:
        files = Files(inside)
        for number, name in enumerate(ODD):
            path = f"/tmp/odd/{name}"
            await put(inside, path, f"{number}".encode(), Permission(mode=640))
            assert (await get(inside, path))[:2] == (200, f"{number}".encode()), name
        shown = sorted(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in ODD)
        listed = await files.listing("/tmp/odd", 1)
        assert sorted(one.path.removeprefix("/tmp/odd/") for one in listed) == shown
        assert {(one.mode, one.type) for one in listed} == {(640, "file")}
        assert len(await files.search("/tmp/odd", "**")) == len(ODD)
        info = await files.info([f"/tmp/odd/{name}" for name in ODD])
        assert [one.size for one in info.values()] == [len(str(number)) for number in range(len(ODD))]
        await files.move([Rename(src=f"/tmp/odd/{name}", dest=f"/tmp/moved/{name}") for name in ODD])
        await files.set_permissions({f"/tmp/moved/{name}": Permission(mode=600) for name in ODD})
        await files.remove([f"/tmp/moved/{name}" for name in ODD])
        assert await files.listing("/tmp/moved", 1) == []
        assert await files.listing("/tmp/odd", 1) == []

    asyncio.run(main())


def test_a_folder_that_cannot_be_read_hides_nothing_else_and_is_named(pool: Pool, sandbox_id: str) -> None:
    async def main() -> None:
        inside = Inside(pool, this_process(), sandbox_id)
        await inside.run(
            "mkdir -p /tmp/s/open /tmp/s/closed /tmp/s/names; touch /tmp/s/a.txt /tmp/s/open/b.txt /tmp/s/closed/c.txt"
            " /tmp/s/names/d.txt; chmod 755 /tmp/s /tmp/s/open; chmod 000 /tmp/s/closed; chmod 444 /tmp/s/names"
        )
        files = Files(inside.as_user("1000:1000") if os.getuid() == 0 else inside)
        found = await files.search("/tmp/s", "*.txt")
        assert [one.path for one in found] == ["/tmp/s/a.txt", "/tmp/s/open/b.txt"]
        assert "/tmp/s/closed" in " ".join(found.unreadable)
        listed = await files.listing("/tmp/s", 2)
        assert "/tmp/s/open/b.txt" in [one.path for one in listed]
        assert "/tmp/s/closed" in " ".join(listed.unreadable)
        assert (await files.search("/tmp/s/open", "*")).unreadable == []
        for work in (files.search("/tmp/s/closed", "*"), files.listing("/tmp/s/closed", 1)):
            with pytest.raises(InvalidRequest) as caught:
                await work
            assert (caught.value.code, caught.value.problems[0].value) == ("INVALID_FILE", "/tmp/s/closed")

    asyncio.run(main())


def test_a_home_and_a_relative_path_are_the_sandboxs(inside: Inside) -> None:
    async def main() -> None:
        await put(inside, "~/in-home", b"home")
        assert (await get(inside, "/tmp/in-home"))[1] == b"home"
        assert list(await Files(inside).info(["~/in-home"])) == ["~/in-home"]
        await Files(inside).remove(["~/in-home"])

    asyncio.run(main())


@pytest.mark.parametrize("root", ["busybox"], indirect=True)
def test_no_path_leads_out_of_the_sandbox(inside: Inside, busybox_root: Path, tmp_path: Path) -> None:
    """Links to where the host keeps things, and as many steps up as anybody likes."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    async def main() -> None:
        files = Files(inside)
        passwd = (busybox_root / "etc" / "passwd").read_bytes()
        for path in ("/../../../../etc/passwd", "/tmp/../../etc/passwd", "~/../../../etc/passwd"):
            assert (await get(inside, path))[1] == passwd, path
        await inside.run('ln -s "$1" /tmp/link; ln -s / /tmp/top; ln -s "$2" /tmp/dir', str(secret), str(tmp_path))
        for path in (str(secret), "/tmp/link", f"/tmp/top/{secret}", "/tmp/dir/secret"):
            with pytest.raises(NotFound):
                await get(inside, path)
            with pytest.raises(NotFound):
                await transfer.replace(inside, path, Replacement(old="host", new="guest"))
        with pytest.raises(DibsError):
            await put(inside, "/tmp/link", b"it leads nowhere")
        await put(inside, str(secret), b"of the sandbox")
        assert (await get(inside, "/tmp/dir/secret"))[1] == b"of the sandbox"
        await put(inside, "/tmp/../../../escaped", b"up")
        assert (await get(inside, "/escaped"))[1] == b"up"
        await files.remove(["/escaped"])
        with pytest.raises(InvalidRequest):
            await files.listing("/tmp/top", 1)
        await files.remove(["/tmp/dir"], folders=True)
        with pytest.raises(InvalidRequest):
            await files.remove(["/tmp/.."], folders=True)

    asyncio.run(main())
    assert secret.read_text() == "of the host"
    assert tmp_path.is_dir()


def test_a_big_file_passes_in_pieces_and_parts_of_it_can_be_had(inside: Inside) -> None:
    data = os.urandom(3 << 20)

    async def main() -> None:
        await put(inside, "/tmp/big", data)
        status, body, headers = await get(inside, "/tmp/big")
        assert (status, body == data, headers[b"content-length"]) == (200, True, str(len(data)).encode())
        status, body, headers = await get(inside, "/tmp/big", byte_range="bytes=1000000-1999999")
        assert (status, body == data[1000000:2000000]) == (206, True)
        assert headers[b"content-range"] == f"bytes 1000000-1999999/{len(data)}".encode()
        status, body, headers = await get(inside, "/tmp/big", byte_range=f"bytes={len(data)}-")
        assert (status, headers[b"content-range"]) == (416, f"bytes */{len(data)}".encode())
        assert b"INVALID_RANGE" in body
        names = [one.path for one in await Files(inside).listing("/tmp", 1)]
        assert not [name for name in names if name.endswith(".part")]

    asyncio.run(main())


def test_lines_of_a_file_come_without_the_last_end(inside: Inside) -> None:
    async def main() -> None:
        await put(inside, "/tmp/lines", b"1\n2\n3\n\n5")
        for (offset, limit), wanted in {
            ("1", "2"): b"1\n2",
            ("3", "1"): b"3",
            ("3", "2"): b"3\n",
            ("5", "9"): b"5",
            ("9", "1"): b"",
        }.items():
            assert (await get(inside, "/tmp/lines", offset=offset, limit=limit))[1] == wanted
        for wrong in ("0", "-1", "x"):
            with pytest.raises(InvalidRequest):
                await get(inside, "/tmp/lines", offset=wrong, limit="1")

    asyncio.run(main())


def test_an_upload_that_breaks_off_changes_nothing(inside: Inside) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n\r\n{"path":"/tmp/up/x"}'
        yield b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(40):
            yield b"new" * 20_000
        raise ConnectionResetError

    async def main() -> None:
        await put(inside, "/tmp/up/x", b"old")
        with pytest.raises(ConnectionResetError):
            await transfer.upload(inside, "multipart/form-data; boundary=b", broken())
        assert (await get(inside, "/tmp/up/x"))[1] == b"old"
        assert [one.path for one in await Files(inside).listing("/tmp/up", 1)] == ["/tmp/up/x"]

    asyncio.run(main())


def test_replacing_keeps_the_file_and_counts(inside: Inside) -> None:
    async def main() -> None:
        await put(inside, "/tmp/text", b"one two one", Permission(mode=604))
        await inside.run("ln /tmp/text /tmp/same")
        assert await transfer.replace(inside, "/tmp/text", Replacement(old="one", new="1")) == 2
        assert await transfer.replace(inside, "/tmp/text", Replacement(old="none", new="1")) == 0
        assert (await get(inside, "/tmp/same"))[1] == b"1 two 1"
        assert (await Files(inside).info(["/tmp/text"]))["/tmp/text"].mode == 604
        with pytest.raises(InvalidRequest):
            await transfer.replace(inside, "/tmp/text", Replacement(old="", new="1"))
        big = b"x" * (2 << 20) + b"needle" + b"y" * (1 << 20)
        await put(inside, "/tmp/big", big)
        assert await transfer.replace(inside, "/tmp/big", Replacement(old="needle", new="thread")) == 1
        assert (await get(inside, "/tmp/big"))[1] == big.replace(b"needle", b"thread")

    asyncio.run(main())


def test_a_file_is_given_to_its_owner_where_the_root_is_the_sandboxs_own(inside: Inside, root: str) -> None:
    async def main() -> None:
        work = put(inside, "/tmp/file", b"data", Permission(mode=640, owner="1000", group="1000"))
        if root == "host" or os.getuid():
            # There root inside has no power over files: it would read what the host's other users keep to themselves.
            with pytest.raises(DibsError) as caught:
                await work
            # An ordinary user's sandbox has no such owner at all.
            assert ("Invalid argument" if os.getuid() else "not permitted") in str(caught.value)
            return
        await work
        (found,) = (await Files(inside).info(["/tmp/file"])).values()
        assert (found.owner, found.group, found.mode) == ("guest", "guest", 640)
        await Files(inside).set_permissions({"/tmp/file": Permission(mode=600, owner="root", group="guest")})
        assert (await get(inside, "/tmp/file"))[1] == b"data"

    asyncio.run(main())


def test_what_cannot_be_done_is_said_with_the_path(inside: Inside) -> None:
    async def main() -> None:
        files = Files(inside)
        await put(inside, "/tmp/file", b"")
        await files.make_folders({"/tmp/folder": Permission(mode=700)})
        cases = [
            (files.info(["/tmp", "/nope"]), "FILE_NOT_FOUND", "/nope"),
            (files.listing("/tmp/file", 1), "INVALID_FILE", "/tmp/file"),
            (files.listing("/nope", 1), "FILE_NOT_FOUND", "/nope"),
            (files.search("/nope", "*"), "FILE_NOT_FOUND", "/nope"),
            (files.remove(["/tmp/folder"]), "INVALID_FILE", "/tmp/folder"),
            (files.remove(["/"], folders=True), "INVALID_FILE", "/"),
            (files.move([Rename(src="/nope", dest="/tmp/x")]), "FILE_NOT_FOUND", "/nope"),
            (files.move([Rename(src="/tmp/file", dest="/tmp/folder")]), "INVALID_FILE", "/tmp/folder"),
            (files.set_permissions({"/nope": Permission(mode=644)}), "FILE_NOT_FOUND", "/nope"),
            (files.set_permissions({"/tmp/file": Permission(mode=888)}), "INVALID_FILE_METADATA", "888"),
            (files.set_permissions({"/tmp/file": Permission(owner="-R")}), "INVALID_FILE_METADATA", "-R"),
            (get(inside, "/tmp/folder"), "INVALID_FILE", "/tmp/folder"),
            (get(inside, "/dev/null"), "INVALID_FILE", "/dev/null"),
            (put(inside, "/tmp/folder", b""), "INVALID_FILE", "/tmp/folder"),
            (files.info([""]), "INVALID_FILE", ""),
        ]
        for work, code, value in cases:
            with pytest.raises(DibsError) as caught:
                await work
            assert (caught.value.code, caught.value.problems[0].value) == (code, value)

    asyncio.run(main())


def test_a_client_that_goes_while_it_downloads_leaves_nothing(inside: Inside) -> None:
    async def main() -> None:
        await inside.run("head -c 50000000 /dev/zero >/tmp/zeros")
        answer = await transfer.download(inside, "/tmp/zeros")
        assert isinstance(answer, Streamed)
        gone = asyncio.Event()
        came = 0

        async def send(message: dict[str, object]) -> None:
            nonlocal came
            data = message.get("body", b"")
            assert isinstance(data, bytes)
            came += len(data)
            if came > 1_000_000:
                gone.set()
            await asyncio.sleep(0)

        async def receive() -> dict[str, object]:
            await gone.wait()
            return {"type": "http.disconnect"}

        await answer({}, receive, send)
        assert came < 40_000_000

    asyncio.run(main())
