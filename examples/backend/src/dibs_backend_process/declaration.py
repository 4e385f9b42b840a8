"""What the backend says of itself. dibs reads this before it makes one, and refuses by it."""

from __future__ import annotations

from dibs.backends.declaration import BY_DIBS, Cell, Declaration, Place, delivered, refused
from dibs.backends.port import Backend

# A field that is not here is refused: nothing is ever dropped because a backend is older than dibs.
COLUMN: dict[str, Cell] = {
    **BY_DIBS,
    "command": delivered("started as a child process, in a process group of its own"),
    "backend": delivered("this one"),
    "env": delivered("read back from the process"),
    "workdir": delivered("the folder itself; it is shared with the host"),
    "grace": delivered("SIGTERM to the process group, then SIGKILL"),
    "interactive": delivered("a pipe"),
    "network": delivered("host; no other one can be had"),
    "gpu.count": refused("a plain process sees every device of the host, so none can be given to it alone"),
}


def make(place: Place) -> Backend:
    from dibs_backend_process.backend import ProcessBackend

    return ProcessBackend(place.name)


PROCESS = Declaration(name="process", make=make, column=COLUMN, root="none")
