"""Creates a container from a workload, with its image. It does not run yet: see `start`.

`docker` and `podman` fill in the form of a new container. A failed creation leaves nothing: if its progress is unknown,
the container is looked up by name and removed.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dibs.backends.engines import errors, images, networks, rendering, volumes
from dibs.backends.engines.client import Client, EngineError, Unreachable
from dibs.backends.engines.engine import container_name
from dibs.backends.engines.states import PHASES
from dibs.backends.engines.stop import Endings
from dibs.backends.engines.volumes import PlacedVolume
from dibs.backends.port import Handle, Phase, Realisation, Volume, Workload
from dibs.errors import DibsError, NotFound, Problem, StateError
from dibs.home import Home

FRESH = 2.0  # seconds that an image is taken to be as it was; a container is made from its id or refused
MOST_IMAGES = 256  # that are remembered


class Creations(Endings):
    """Making containers."""

    finds_names = False  # whether containers of a network find each other by name

    def __init__(self, home: Home, address: str = "") -> None:
        super().__init__(home, address)
        self._finding = threading.Lock()
        self._images: dict[str, tuple[float, images.Image]] = {}
        self.on_progress: images.Progress | None = None  # told while an image is pulled

    # --- filled in by each engine

    def _body(self, form: rendering.Form) -> dict[str, Any]:
        raise NotImplementedError

    def _make(self, client: Client, name: str, body: dict[str, Any]) -> str:
        raise NotImplementedError

    # --- making

    def inspect_image(self, image: str) -> None:
        if image and not images.is_file(image):
            with self.asking(image, "image") as client:
                self._image(client)(image)

    def check_volumes(self, wanted: Sequence[Volume]) -> list[Problem]:
        with self.asking(", ".join(one.name for one in wanted), "volumes") as client:
            return volumes.problems(self.name, client, self.facts(), wanted)

    def image(self, reference: str) -> images.Image | None:
        """What the engine knows of an image; None if it is not here. Raises BackendUnavailable."""
        if images.is_file(reference):
            return None
        with self.asking(reference, "image") as client:
            return self._image(client)(reference)

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # nothing is in it yet
        client = self.client()
        form = self._form(workload, client, None)
        return rendering.realisation(self.name, form, self._body(form))

    def _form(
        self, workload: Workload, client: Client, image_id: str | None, subnet: str = "",
        placed: tuple[PlacedVolume, ...] = (),
    ) -> rendering.Form:  # fmt: skip
        with self.asking(workload.image, "image"):
            return rendering.form(
                self.name, workload, self.facts(), self._image(client), self._home, image_id, self.can_limit, subnet,
                placed,
            )  # fmt: skip

    def _have_volumes(self, client: Client, workload: Workload) -> tuple[PlacedVolume, ...]:
        if not workload.volumes:
            return ()
        with self.asking(", ".join(one.name for one in workload.volumes), "volumes"):
            return volumes.ready(self.name, client, self.facts(), self._home, workload.volumes)

    def _image(self, client: Client) -> rendering.FindImage:
        """What is known of an image; one that was looked at a moment ago is not looked at again."""

        def find(reference: str) -> images.Image | None:
            with self._finding:  # who comes at the same time need not ask too
                return self._found_lately(reference) or look(reference)

        def look(reference: str) -> images.Image | None:
            found = images.find(client, reference)
            with self._lock:
                if found is None:
                    self._images.pop(reference, None)
                else:
                    self._images[reference] = self._images[found.id] = (time.monotonic(), found)
                    if len(self._images) > MOST_IMAGES:
                        self._images.clear()
            return found

        return find

    def _found_lately(self, reference: str) -> images.Image | None:
        with self._lock:
            at, image = self._images.get(reference, (0.0, None))
        return image if time.monotonic() - at < FRESH else None

    def outdated(self, realisation: Realisation) -> bool:  # noqa: ARG002
        return False  # an image and its devices are named by what does not change

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:
        settled = realisation.order.get("subnet") or not self._wants_addresses(workload)
        if realisation.order.get("final") and settled:
            return realisation
        client = self.client()
        try:
            image, placed = self._have_image(client, workload), self._have_volumes(client, workload)
            form = self._form(workload, client, image, self._subnet(client, workload), placed)
        except EngineError as error:
            raise errors.translate(self.name, error, field="image", value=workload.image) from error
        except Unreachable as error:
            self.lost(error)
        except TimeoutError as error:
            self.waited(error, "image", workload.image)
        return rendering.realisation(self.name, form, self._body(form))

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        client = self.client()
        made = not folder.exists()
        try:
            order = self.finalise(workload, realisation).order
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if workload.network == "private":
                with networks.lock(self._home, alone=False):
                    self._ensure_network(client, workload, order.get("subnet", ""))
                    container = self._make_only(client, workload, folder, order["body"])
            else:
                container = self._make_only(client, workload, folder, order["body"])
        except (DibsError, OSError, EngineError, Unreachable, TimeoutError) as error:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, EngineError):
                with self._lock:
                    self._images.clear()  # it may be the image that is gone
                raise errors.translate(self.name, error, field="sandbox", value=workload.id) from error
            if isinstance(error, Unreachable):
                self._undo(workload.id, folder)
                self.lost(error)
            if isinstance(error, TimeoutError):
                try:
                    self.waited(error, "sandbox", workload.id)
                finally:
                    self._undo(workload.id, folder)  # last: by now it is known whether the engine answers
            if isinstance(error, OSError):
                reason = f"the sandbox's folder cannot be used: {error.strerror}"
                raise StateError(reason, field="folder", value=str(folder)) from error
            raise
        except BaseException:
            self._undo(workload.id, folder)
            raise
        data = {**order["data"], "container": container, "engine": client.target}
        return Handle(self.name, workload.id, str(folder), data=data)

    def _ensure_network(self, client: Client, workload: Workload, subnet: str) -> None:
        group = workload.peers.group if workload.peers is not None else ""
        networks.ensure(self.name, client, self._home, workload.tenant, group, subnet)

    def _wants_addresses(self, workload: Workload) -> bool:
        return workload.network == "private" and workload.peers is not None and not self.finds_names

    def _subnet(self, client: Client, workload: Workload) -> str:
        """The addresses of the network of its job, where the engine does not look names up; empty where it does."""
        if not self._wants_addresses(workload):
            return ""
        with networks.lock(self._home, alone=False):
            self._ensure_network(client, workload, "")
            return networks.subnet(client, networks.name_for(self._home, workload))

    def _make_only(self, client: Client, workload: Workload, folder: Path, body: dict[str, Any]) -> str:
        """Make the container. One of that name which never ran is what an engine made too late, for a gateway that was
        killed while it created the same sandbox: it goes, and makes room."""
        name = container_name(workload.id)
        try:
            return self._make(client, name, body)
        except EngineError as error:
            if errors.translate(self.name, error, field="sandbox", value=workload.id).code != "CONTAINER_EXISTS":
                raise
            late = Handle(self.name, workload.id, str(folder))
            document = self._document(late) or {}
            labels = (document.get("Config") or {}).get("Labels") or {}
            mine = (labels.get("dibs.home"), labels.get("dibs.sandbox")) == (str(self._home.state), workload.id)
            if not mine or PHASES.get(str(document["State"].get("Status", "")).lower()) is not Phase.HELD:
                raise
            self._discard(late)
        return self._make(client, name, body)

    def _undo(self, sandbox_id: str, folder: Path) -> None:
        """After a creation of which we do not know how far it went. If that fails too, reconciliation does it."""
        try:
            self.discard(Handle(self.name, sandbox_id, str(folder)))
        except DibsError:
            return

    def _have_image(self, client: Client, workload: Workload) -> str:
        """The image's id, pulled or loaded if it is not there."""
        reference = workload.image
        if images.is_file(reference):
            trouble = images.unusable(reference)
            if trouble is not None:
                raise trouble
            with self.asking(reference, "image"):
                return images.load(client, self.name, reference, self._home.state / "images")
        with self.asking(reference, "image"):
            found = self._image(client)(reference)
            if found is not None and not (workload.platform and found.platform != workload.platform):
                return found.id
            images.pull(client, self.name, reference, workload.platform, self.on_progress)
            found = images.find(client, reference)
        if found is None:
            raise NotFound("it was pulled, and is not there", field="image", value=reference, code="IMAGE_NOT_FOUND")
        return found.id
