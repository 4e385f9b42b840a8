"""Training jobs while their engine goes away and comes back."""

from __future__ import annotations

import pytest
from tests.engines.images import REFERENCE
from tests.engines.whole.house import House
from tests.jobs.submitting import driven, objects, removed

from dibs.errors import BackendUnavailable
from dibs.workloads.jobs.model import Options
from dibs.workloads.jobs.service import Jobs


def test_following_logs_reports_that_the_engine_went_away(house: House) -> None:
    trainer = {"image": REFERENCE}
    what = objects(["sh", "-c", "echo here; sleep 1000"], nodes=2, trainer=trainer)
    job = Jobs(house.service).submit(what, Options(backend=house.kind))
    job = driven(house.service, job, "running")
    logs = Jobs(house.service).logs(job.id, follow=True)
    assert sorted(next(logs).record.data for _ in range(2)) == [b"here\n"] * 2
    house.engine.kill()
    try:
        with pytest.raises(BackendUnavailable) as caught:
            next(logs)
        assert caught.value.problems[0].remedy
    finally:
        house.engine.start()
    removed(house.again(), job)
    assert house.free()
