"""The same tests once more, as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.installation import private

NOBODY = 65534
TESTS = Path(__file__).parent.parent


@pytest.mark.root
@pytest.mark.stress
def test_everything_works_for_an_ordinary_user_too() -> None:
    """Run as root this drops to another user; run as that user, all tests are that already."""
    python = [sys.executable, "-B", "-m"]
    options = ["-q", "-rs", "--tb=short", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(prefix="dibs-rootless-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": TESTS.parent}
        if reason := private():
            pytest.skip(reason)
        done = subprocess.run(  # type: ignore[call-overload]
            [*python, "pytest", *options, f"--basetemp={folder}/t", str(TESTS / "local"), str(TESTS / "conformance")],
            env={
                "PATH": os.environ["PATH"],
                "HOME": folder,
                "TMPDIR": folder,
                "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/h",
            },
            capture_output=True,
            text=True,
            check=False,
            **who,
        )
    print(done.stdout[-3000:])
    said = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("SKIPPED"))
    assert done.returncode == 0, said[-6000:] + done.stderr[-2000:]
