"""Files into and out of a container, and a container kept as an image."""

from __future__ import annotations

from collections.abc import Iterator

from dibs.backends import tars
from dibs.backends.engines import images, looking
from dibs.backends.engines.engine import container, container_name
from dibs.backends.engines.lives import Lives
from dibs.backends.port import Handle
from dibs.http import query

LONG = 600.0  # seconds for a large archive, or a large image


class Files(Lives):
    """Copying and keeping."""

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        uid, gid = self._owner(handle)
        init = self._visible(handle)
        if init is not None:
            looking.check_folder(init.pid, path)
        with tars.checked(archive, path, uid, gid) as file:
            self.ask(
                handle, "PUT", container(handle) + "/archive" + query(path=path, noOverwriteDirNonDir=True),
                body=tars.pieces(file), headers={"Content-Type": "application/x-tar"}, field="path", value=path,
                timeout=LONG,
            )  # fmt: skip

    def _owner(self, handle: Handle) -> tuple[int, int]:
        """Who the workload's command is; root where that cannot be seen."""
        init = self._visible(handle)
        if init is None:
            return 0, 0
        uid = gid = 0
        try:
            with open(f"/proc/{init.pid}/status") as file:
                for line in file:
                    if line.startswith("Uid:"):
                        uid = int(line.split()[1])
                    elif line.startswith("Gid:"):
                        gid = int(line.split()[1])
        except OSError:
            return 0, 0
        return (0, 0) if self.facts().rootless else (uid, gid)

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        with self.asking(path, "path") as client:
            connection, response = client.stream("GET", container(handle) + "/archive" + query(path=path))

        def pieces() -> Iterator[bytes]:
            try:
                yield from response.iter()
            finally:
                connection.close()

        return pieces()

    def snapshot(self, handle: Handle, name: str) -> str:
        repository, tag = images.tagged(name)
        path = "/commit" + query(
            container=container_name(handle.sandbox_id), repo=repository, tag=tag or None, pause=True
        )
        self.ask(handle, "POST", path, json={} if self.name == "docker" else None, timeout=LONG)
        return f"{repository}:{tag}" if tag else repository
