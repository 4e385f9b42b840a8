"""What a shim that was killed while it set a sandbox up may leave behind."""

from __future__ import annotations

import subprocess

from dibs.backends.local.kernel import kill_strays


def test_only_the_processes_of_that_sandbox_are_ended() -> None:
    stray = subprocess.Popen(["sleep", "1000"], env={"PATH": "/usr/bin:/bin", "DIBS_SANDBOX": "sb-stray"})
    other = subprocess.Popen(["sleep", "1000"], env={"PATH": "/usr/bin:/bin", "DIBS_SANDBOX": "sb-stray-2"})
    try:
        kill_strays("sb-stray")
        assert stray.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
