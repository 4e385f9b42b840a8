"""Files into and out of a container, and a container kept as an image."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dibs.backends import tar_check
from dibs.backends.engines import errors, images, process_view
from dibs.backends.engines.engine import container, identity
from dibs.backends.engines.status import Lives
from dibs.backends.port import Handle
from dibs.errors import Conflict
from dibs.http import query, segment

LONG = 600.0  # seconds for a large archive, or a large image
DEVICE_VARIABLES = frozenset(
    ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
)


class Files(Lives):
    """Copying and keeping."""

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        uid, gid = self._owner(handle)
        init = self._visible(handle)
        if init is not None:
            process_view.check_folder(init.pid, path)
        with tar_check.checked(archive, uid, gid) as file:
            self.ask(
                handle, "PUT", container(handle) + "/archive" + query(path=path, noOverwriteDirNonDir=True),
                body=tar_check.pieces(file), headers={"Content-Type": "application/x-tar"}, field="path", value=path,
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
        init = self._visible(handle)
        process_view.check_copied(init.pid if init is not None else 0, path)
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
        path = "/commit" + query(container=identity(handle), repo=repository, tag=tag or None, pause=True)
        for change in (
            f"LABEL {images.SNAPSHOT}={name}",
            *(f"ENV {variable}=" for variable in self._told_of_devices(handle)),
        ):
            path += "&" + query(changes=change)[1:]
        self.ask(handle, "POST", path, json={} if self.name == "docker" else None, timeout=LONG)
        return f"{repository}:{tag}" if tag else repository

    def _told_of_devices(self, handle: Handle) -> list[str]:
        """The variables that speak of its devices: an image must not pass them on to its containers."""
        config = self.ask(handle, "GET", container(handle) + "/json").get("Config") or {}
        names = {line.partition("=")[0] for line in config.get("Env") or ()}
        return sorted(name for name in names if name.startswith("DIBS_") or name in DEVICE_VARIABLES)

    def remove_snapshot(self, image: str) -> None:
        # Never by force: Podman would take the containers along that are made of it.
        path = f"/images/{segment(image)}"
        status, answer = self.answer(None, "DELETE", path, accept=(404, 409), value=image, field="snapshot")
        if status == 409:
            said = errors.one_line(str(answer.get("message", ""))) if isinstance(answer, dict) else ""
            raise Conflict(
                f"a container is made of it ({self.name} says: {said})", field="snapshot", value=image,
                code="SNAPSHOT_IN_USE", remedy="remove what was made of it first",
            )  # fmt: skip
        # An engine finishes an image even if its client was killed: made twice, one has no name.
        filters = msgspec.json.encode({"label": [f"{images.SNAPSHOT}={image}"], "dangling": ["true"]}).decode()
        for other in (
            self.ask(None, "GET", "/images/json" + query(filters=filters), value=image, field="snapshot") or ()
        ):
            path = f"/images/{segment(other['Id'])}"
            self.answer(None, "DELETE", path, accept=(404, 409), value=image, field="snapshot")
