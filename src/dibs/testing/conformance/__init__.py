"""What every backend does, in the terms of the port: one suite, run for each of a module's `FACTORIES`.

port        life, talking, pausing, files, devices
gateway     what a gateway needs beside that: expiry, usage, connections, surveys, users
"""

from dibs.testing.conformance.gateway import *  # noqa: F403
from dibs.testing.conformance.port import *  # noqa: F403
