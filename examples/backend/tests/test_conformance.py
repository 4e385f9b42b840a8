"""The suite that every backend of dibs passes, for this one."""

from dibs_backend_process.backend import ProcessBackend
from dibs_backend_process.declaration import PROCESS

from dibs.testing import Factory
from dibs.testing.conformance import *  # noqa: F403

FACTORIES = (
    Factory(
        name="process",
        make=lambda _: ProcessBackend("process"),
        declaration=PROCESS,
        differences={
            "granted": "it takes no devices",
            "held": "a process that does not run cannot be looked at",
        },
    ),
)
