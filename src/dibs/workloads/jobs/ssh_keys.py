"""The key pair by which the launcher of an MPI job reaches its nodes: made for each job, gone with it.

`service` calls it when an MPI job is submitted without a key of its user. On a cluster Kubeflow Trainer does the same.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from dibs.errors import BackendUnavailable
from dibs.train.facts import SshKey


def made() -> SshKey:
    """A new pair. Raises BackendUnavailable where there is no ssh-keygen."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise BackendUnavailable(
            "an MPI job needs a key pair, and there is no ssh-keygen to make one", field="spec.runtimeRef",
            code="PROGRAM_MISSING", remedy="install OpenSSH's client, or give a pair with --ssh-key",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="dibs-key-") as folder:
        file = Path(folder) / "key"
        words = [program, "-q", "-t", "ed25519", "-N", "", "-C", "dibs", "-f", str(file)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BackendUnavailable(
                f"ssh-keygen failed: {done.stderr.strip()}", field="spec.runtimeRef", code="PROGRAM_MISSING",
                remedy="give a pair with --ssh-key",
            )  # fmt: skip
        return SshKey(file.read_text(), file.with_suffix(".pub").read_text())
