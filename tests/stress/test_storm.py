"""A storm of everything that can go wrong, judged by an oracle that knows nothing of the ledger.

Ten minutes for each engine, with `DIBS_SOAK=1` (`make soak`); DIBS_STORM_SECONDS makes it shorter. The one collision
that is excused (`oracle`) is counted and printed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine
from tests.stress.storm import HOME_SIZE, Storm

pytestmark = [pytest.mark.stress, pytest.mark.root]

SOAK = bool(os.environ.get("DIBS_SOAK"))  # read now: a test has no DIBS_ variables of ours
SECONDS = float(os.environ.get("DIBS_STORM_SECONDS") or 600)
SEED = os.environ.get("DIBS_STORM_SEED")
CLIENTS = 12


@pytest.mark.skipif(not SOAK, reason="a storm takes ten minutes for each engine: DIBS_SOAK=1 (make soak) runs it")
@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_a_storm_gives_no_card_twice_and_leaves_nothing_behind(kind: str) -> None:
    try:
        engine = Engine(kind)
    except CannotInstall as error:
        pytest.skip(f"{kind} is not here: {error}")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={HOME_SIZE},mode=700", "tmpfs", str(engine.home)], check=True)
    folder = Path(tempfile.mkdtemp(prefix="dibs-storm-"))
    storm = None
    try:
        engine.cdi.mkdir()
        try:
            engine.start()
            engine.load()
        except CannotInstall as error:
            pytest.skip(f"{kind} is not here: {error}")
        seed = int(SEED) if SEED else random.SystemRandom().randrange(1 << 32)
        print(f"DIBS_STORM_SEED={seed}")
        storm = Storm(engine, folder, seed)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            storm.reap()
            while len(storm.clients) < CLIENTS:
                storm.start()
            storm.disturb()
            assert storm.oracle.violations() == [], "\n".join(storm.journal[-20:])
            time.sleep(storm.dice.uniform(0.1, 1.2))
        left = storm.settle()
        print("\n".join(left))
        served, excused = storm.oracle.served(), storm.oracle.excused()
        print(f"{kind}: {SECONDS:.0f} s, {len(served)} served, {dict(storm.did)}, ends {dict(storm.ends)}")
        print(f"violations {len(storm.oracle.violations())}, left {len(left)}, excused {len(excused)}")
        for one in excused:
            print(f"  {one}")
        for line, number in storm.words.most_common(12):
            print(f"  {number} × {line}")
        assert storm.oracle.violations() == []
        assert storm.broken == []
        assert left == []
        assert served, "some must have been served"
    finally:
        if storm is not None:
            print("\n".join(storm.journal))
            for client in storm.clients:
                client.kill()
                client.wait()
                if client.stderr is not None:
                    client.stderr.close()
        engine.stop()
        subprocess.run(["umount", "-l", str(engine.home)], check=False)
        shutil.rmtree(engine.folder, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
