"""`python -m mutants`: puts faults into the code that decides, one at a time, and says which no test notices.

A tool of our own, for what those that exist do not give together: a bounded and seeded sample, only the tests that
concern a module, whole processes (a planner's fault may show in a sandbox that another interpreter runs), copies of the
tree instead of the tree itself, and survivors that are known to change nothing listed with the reason.

MUTANT_SEED and MUTANT_MINUTES choose the sample and when to stop, MUTANT_WORKERS (2) how many are tried at a time;
words name modules (`python -m mutants quick`). A fault that makes a test run for ever is killed by the time limit, if
the same tests end in time without it; the report names these.
The exit status is 1 where a fault survives that equivalent.toml does not explain.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mutants.running import Bench, Outcome, RedTests
from mutants.sampling import Identity, Mutant, equivalents, sample, targets

SEED = 1
MINUTES = 45
WORKERS = int(os.environ.get("MUTANT_WORKERS", "2"))


class Work:
    """The faults that are still to be tried, a module at a time: a bench that knows its tests goes on with them."""

    def __init__(self, by_module: list[list[Mutant]], until: float) -> None:
        self._modules = [list(reversed(mutants)) for mutants in by_module]
        self._until = until
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []
        self.red: dict[tuple[str, ...], str] = {}  # tests that fail without any fault, and what they say
        self.failure: Exception | None = None

    def mutants(self, worker: int) -> Iterator[Mutant]:
        while time.monotonic() < self._until and self.failure is None:
            with self._lock:
                waiting = [mutants for mutants in self._modules if mutants]
                if not waiting:
                    return
                mutant = waiting[worker * len(waiting) // WORKERS].pop()
            yield mutant

    def done(self, outcome: Outcome, known: str | None) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            fate: str = outcome.fate
            if fate == "survived":
                fate = "equivalent" if known is not None else "SURVIVED"
            print(f"{fate:10} {outcome.seconds:5.1f} s  {outcome.mutant}  {outcome.by}", flush=True)

    def give_up(self, tests: tuple[str, ...], said: str) -> None:
        """Tests that fail without a fault say nothing about one: their modules are left out, and told at the end."""
        with self._lock:
            self.red[tests] = said
            self._modules = [mutants for mutants in self._modules if not (mutants and mutants[0].target.tests == tests)]
            print(f"RED        {said.splitlines()[0]}", flush=True)

    @property
    def left(self) -> int:
        return sum(map(len, self._modules))


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    seed = int(os.environ.get("MUTANT_SEED", SEED))
    minutes = float(os.environ.get("MUTANT_MINUTES", MINUTES))
    words = sys.argv[1:]
    chosen = [one for one in targets() if not words or any(word in one.module for word in words)]
    if not chosen:
        sys.exit(f"mutants: no module is named by {' '.join(words)}; see mutants/targets.toml")
    known = equivalents()
    work = Work([sample(root, target, seed) for target in chosen], time.monotonic() + 60 * minutes)
    print(f"mutants: {work.left} of {len(chosen)} modules, MUTANT_SEED={seed}, for at most MUTANT_MINUTES={minutes:g}")
    folder = Path(tempfile.mkdtemp(prefix="dm-"))  # short: paths of sockets have a limit
    folder.chmod(0o755)

    def go_through(number: int) -> None:
        try:
            bench = Bench(root, folder / str(number), [target.module for target in chosen])
            try:
                for mutant in work.mutants(number):
                    try:
                        work.done(bench.try_out(mutant), known.get(mutant.identity))
                    except RedTests as error:
                        work.give_up(mutant.target.tests, str(error))
            finally:
                bench.close()
        except Exception as error:  # noqa: BLE001 - reported below: a thread has no caller to raise it to
            work.failure = error

    threads = [threading.Thread(target=go_through, args=(number,)) for number in range(WORKERS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if work.failure is not None:
        print(f"mutants: {work.failure}")
        return 2
    return report(work, known)


def report(work: Work, known: dict[Identity, str]) -> int:
    survived = [one.mutant for one in work.outcomes if one.fate == "survived"]
    explained = [mutant for mutant in survived if mutant.identity in known]
    unexplained = [mutant for mutant in survived if mutant.identity not in known]
    for mutant in explained:
        print(f"\nequivalent: {mutant}\n  {known[mutant.identity]}")
    for mutant in unexplained:
        print(f"\nSURVIVED: {mutant}\n  in {mutant.mutation.where}")
    tried = len(work.outcomes)
    hung = [one.mutant for one in work.outcomes if one.fate == "hung"]
    for mutant in hung:
        print(f"\nkilled by the time limit: {mutant}\n  in {mutant.mutation.where}")
    for said in work.red.values():
        print(f"\nred without any fault, nothing tried: {said}")
    killed = tried - len(survived)
    print()
    for module in dict.fromkeys(one.mutant.target.module for one in work.outcomes):
        of_it = [one for one in work.outcomes if one.mutant.target.module == module]
        fates = Counter("equivalent" if one.mutant in explained else one.fate for one in of_it)
        others = ", ".join(
            f"{number} {fate}" for fate, number in sorted(fates.items()) if fate not in ("killed", "hung")
        )
        print(f"{fates['killed'] + fates['hung']:4} of {len(of_it):2} killed  {module}{others and f'  ({others})'}")
    if work.left:
        print(f"\nthe time was over with {work.left} not tried: set MUTANT_MINUTES")
    can_be_noticed = tried - len(explained)
    share = 100 * killed / can_be_noticed if can_be_noticed else 0.0
    print(
        f"\nmutants: {killed} of {tried} killed ({share:.1f} % of those that are not equivalent), {len(hung)} of them "
        f"by the time limit, {len(explained)} equivalent, {len(unexplained)} survived"
    )
    return 1 if unexplained or work.red else 0


if __name__ == "__main__":
    sys.exit(main())
