"""The judge of a storm: who holds which card, decided by the kernel's locks alone.

There is a lock file for each device node. The command in a sandbox locks the files of its cards on descriptors that all
its processes inherit, and writes its name into them. The kernel releases a lock when its last holder is gone, so a lock
that cannot be taken proves that two live sandboxes hold one card. `storm` reads what was written; nothing here knows
the ledger.

One collision is excused: with the very container that a person has started by hand. It takes its card at that moment.
Either it finds it taken, or its card had just been given to a sandbox that was being made at that moment.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

MOMENT = 5.0  # seconds between the plan of a sandbox and its first process, on a busy machine
_TICKS = os.sysconf("SC_CLK_TCK")

# A run is named by its sandbox and by when its first process began: a container that is started again is another run.
SCRIPT = """
read -r stat </proc/1/stat; set -- ${{stat##*) }}; me="$DIBS_SANDBOX ${{20}}"
n=3
for node in /dev/simgpu*; do
  [ -e "$node" ] || {{ echo "$me no-card nothing 0" >>/locks/violations; exit 78; }}
  name=${{node##*/}}
  eval "exec $n>>/locks/$name.lock"
  /tools/ld.so --library-path /tools /tools/flock -n $n || {{
    read -r holder </locks/$name.holder
    echo "$me $name ${{holder:-nothing 0}}" >>/locks/violations
    exit 77
  }}
  echo "$me" >/locks/$name.holder
  n=$((n+1))
  names="$names $name"
done
echo "$DIBS_SANDBOX$names" >>/locks/served
exec sleep {seconds}
"""


def now() -> float:
    """Seconds since the machine's start, as the kernel counts the beginnings of processes."""
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])


class Run(msgspec.Struct, frozen=True):
    """One life of a sandbox's first process."""

    sandbox: str
    began: float  # seconds since the machine's start


class Collision(msgspec.Struct, frozen=True):
    loser: Run
    card: str
    holder: Run

    def __str__(self) -> str:
        return (
            f"{self.card}: {self.loser.sandbox} (began at {self.loser.began:.2f}) found it locked by "
            f"{self.holder.sandbox} (began at {self.holder.began:.2f})"
        )


class ByHand(msgspec.Struct, frozen=True):
    """A container that was started behind dibs' back."""

    container: str
    sandbox: str
    asked: float  # when the engine was asked, and when it had answered; seconds since the machine's start
    answered: float

    def is_run(self, run: Run) -> bool:
        return run.sandbox == self.sandbox and run.began >= self.asked - 1 / _TICKS


class Oracle:
    def __init__(self, locks: Path) -> None:
        self.locks = locks
        self.by_hand: list[ByHand] = []

    def collisions(self) -> list[Collision]:
        return [_collision(line) for line in self._lines("violations")]

    def violations(self) -> list[Collision]:
        return [one for one in self.collisions() if not self._excused(one)]

    def excused(self) -> list[Collision]:
        return [one for one in self.collisions() if self._excused(one)]

    def _excused(self, collision: Collision) -> bool:
        for one in self.by_hand:
            if one.is_run(collision.loser):
                return True  # a person started it on a card that is another's by now
            if one.is_run(collision.holder) and collision.loser.began <= one.answered + MOMENT:
                return True  # it was planned before that container ran
        return False

    def served(self) -> list[list[str]]:
        """The sandboxes that got what they wanted, each with its cards."""
        return [line.split() for line in self._lines("served")]

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.locks / name).read_text().splitlines()
        except FileNotFoundError:
            return []


def _collision(line: str) -> Collision:
    loser, began, card, holder, since = line.split(" ")
    return Collision(Run(loser, int(began) / _TICKS), card, Run(holder, int(since) / _TICKS))
