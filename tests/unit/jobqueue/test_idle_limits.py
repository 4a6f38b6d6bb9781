"""Jobs that stop when their GPUs stay idle."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory
from core.errors import InvalidInputError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.idle_limits import stop_idle_jobs
from jobqueue.models import Attempt
from jobqueue.states import JobState, Reason
from protocol.attempts import ObservedState
from tests.cast import BOX, NOON, Cast
from tests.unit.jobqueue.builders import report, start, submit
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, write

STARTED = NOON.replace(minute=1)
NOW = STARTED + timedelta(minutes=31)

Utilize = Callable[[int, float, int], None]


@pytest.fixture
def attempt(sessions: SessionFactory, cast: Cast) -> Attempt:
    with sessions.begin() as session:
        started = start(
            session, cast, gpus=2, idle_gpu_percent=5, idle_gpu_seconds=1800, max_retries=3
        )
        report(session, started, ObservedState.RUNNING)
        return started


@pytest.fixture
def utilize(attempt: Attempt, store: Store) -> Utilize:
    """Write samples of a GPU: utilization, and from how many minutes ago on."""

    def utilize(gpu: int, percent: float, minutes: int) -> None:
        tags = {"gpu": str(gpu), "uuid": attempt.gpu_uuids[gpu], "job": attempt.job_id}
        points = [
            Point("gpu", tags, {"utilization_percent": percent}, to_ns(NOW) - seconds * 10**9)
            for seconds in range(5, minutes * 60, 10)
        ]
        identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
        write(store, points, identity=identity)

    return utilize


def test_a_job_with_idle_gpus_stops_with_the_reason(
    *, attempt: Attempt, utilize: Utilize, sessions: SessionFactory, store: Store
) -> None:
    utilize(0, 1.0, 31)
    utilize(1, 4.9, 31)
    assert stop_idle_jobs(sessions, store, now=NOW) == 1
    assert stop_idle_jobs(sessions, store, now=NOW) == 0
    with sessions.begin() as session:
        wanted = desired_state(session, attempt.appliance_id, box=BOX)
        assert (wanted.attempts, wanted.stopping) == ([], [attempt.id])
        stopping = session.get_one(Attempt, attempt.id)
        report(session, stopping, ObservedState.STOPPED, exit_code=137)
        assert (stopping.job.state, stopping.job.reason) == (JobState.STOPPED, Reason.IDLE_GPU)
        assert "5 %" in stopping.job.message
        assert "30m" in stopping.job.message


def test_an_idle_job_that_stops_for_another_reason_keeps_it(
    *,
    attempt: Attempt,
    utilize: Utilize,
    sessions: SessionFactory,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utilize(0, 1.0, 31)
    utilize(1, 1.0, 31)
    query = store.query_range

    def preempted_meanwhile(wanted: RangeQuery) -> list[Series]:
        with sessions.begin() as session:
            session.get_one(Attempt, attempt.id).stop_reason = Reason.PREEMPTED
        return query(wanted)

    monkeypatch.setattr(store, "query_range", preempted_meanwhile)
    assert stop_idle_jobs(sessions, store, now=NOW) == 0
    with sessions() as session:
        assert session.get_one(Attempt, attempt.id).stop_reason is Reason.PREEMPTED


@pytest.mark.parametrize(
    ("second", "minutes"),
    [(5.0, 31), (1.0, 20)],
    ids=["one GPU at the limit", "samples of a part of the time"],
)
def test_a_job_goes_on_with_a_busy_gpu_and_without_samples(
    *,
    utilize: Utilize,
    sessions: SessionFactory,
    store: Store,
    second: float,
    minutes: int,
) -> None:
    assert stop_idle_jobs(sessions, store, now=NOW) == 0
    utilize(0, 1.0, 31)
    utilize(1, second, minutes)
    assert stop_idle_jobs(sessions, store, now=NOW) == 0
    assert stop_idle_jobs(sessions, store, now=STARTED + timedelta(minutes=29)) == 0


def test_a_limit_needs_gpus_a_utilization_and_a_time(session: Session, cast: Cast) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"gpus": 0, "idle_gpu_percent": 5, "idle_gpu_seconds": 600}, "idle_gpu_percent"),
        ({"gpus": 1, "idle_gpu_percent": 101, "idle_gpu_seconds": 600}, "idle_gpu_percent"),
        ({"gpus": 1, "idle_gpu_percent": 5}, "idle_gpu_seconds"),
        ({"gpus": 1, "idle_gpu_percent": 5, "idle_gpu_seconds": 59}, "idle_gpu_seconds"),
    )
    for wrong, field in cases:
        with pytest.raises(InvalidInputError) as caught:
            submit(session, cast.alice, **wrong)
        assert caught.value.errors.keys() == {field}
