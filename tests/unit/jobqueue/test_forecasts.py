"""Forecasts of starts are stored, compared with what happened, and shown by their errors."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobqueue.fairshare.models import StartForecast
from jobqueue.models import Job
from jobqueue.queue import pending
from jobqueue.queue.pending import (
    explain_job,
    forecast_errors,
    make_forecasts,
    settle_forecasts,
    tenants_with_forecasts,
)
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def waiting(session: Session, cast: Cast) -> Job:
    """A job that waits for the only GPU, which is busy until two o'clock at the latest."""
    add_appliance(session, cast.acme, "mini", gpus=1)
    submit(session, cast.alice, "busy", gpus=1, time_limit_seconds=7200)
    dispatch(session, now=NOON)
    job = submit(session, cast.alice, "next", gpus=1, time_limit_seconds=60)
    dispatch(session, now=NOON)
    return job


def make(session: Session, cast: Cast, *, now: datetime) -> int:
    made = make_forecasts(session, cast.acme.id, now=now)
    session.add_all(made)
    session.flush()
    return len(made)


def end_busy(session: Session, *, now: datetime) -> None:
    busy = session.scalars(select(Job).where(Job.name == "busy")).one()
    busy.state = JobState.SUCCEEDED
    busy.attempts[-1].state = AttemptState.SUCCEEDED
    busy.attempts[-1].finished_at = now
    session.flush()


def test_a_forecast_is_settled_when_the_job_starts(
    session: Session, cast: Cast, waiting: Job
) -> None:
    acme = cast.acme.id
    assert tenants_with_forecasts(session) == [acme]
    assert [make(session, cast, now=NOON + minutes * MINUTE) for minutes in (0, 5, 90)] == [1, 0, 1]
    assert settle_forecasts(session, acme, now=NOON + 91 * MINUTE) == 0
    assert forecast_errors(session, acme, now=NOON) is None
    # Its GPU is free half an hour early.
    start = NOON + 90 * MINUTE
    end_busy(session, now=start)
    dispatch(session, now=start)
    assert settle_forecasts(session, acme, now=start) == 2
    errors = forecast_errors(session, acme, now=start)
    assert errors is not None
    assert (errors.count, errors.median_seconds, errors.p90_seconds) == (2, 1800, 1800)
    late = session.scalars(select(StartForecast.late_seconds)).all()
    assert late == [-1800, -1800]
    assert waiting.id


def test_the_errors_are_shown_beside_the_next_forecast(
    session: Session, cast: Cast, waiting: Job
) -> None:
    for late in (-60, 60, 120, 600):
        row = {"made_at": NOON, "expected_start_at": NOON, "late_seconds": float(late)}
        session.add(StartForecast(tenant_id=cast.acme.id, job_id="gone", **row))
    explanation = explain_job(session, scope_of(cast.alice), waiting.id, now=NOON)
    assert explanation is not None
    assert explanation.past_errors is not None
    # Of 60, 60, 120 and 600 seconds.
    assert explanation.past_errors.median_seconds == 90
    assert explanation.past_errors.p90_seconds == pytest.approx(456)
    assert forecast_errors(session, cast.globex.id, now=NOON) is None
    assert forecast_errors(session, cast.acme.id, now=NOON + timedelta(days=30)) is None


def test_a_job_that_never_starts_leaves_no_forecast(
    session: Session, cast: Cast, waiting: Job
) -> None:
    make(session, cast, now=NOON)
    stop_job(session, scope_of(cast.alice), waiting.id, now=NOON)
    settle_forecasts(session, cast.acme.id, now=NOON + HOUR)
    assert session.scalar(select(func.count()).select_from(StartForecast)) == 0


def test_a_tenant_has_a_bounded_number(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MAX_STORED", 3)
    for hours in range(8):
        at = NOON + hours * HOUR
        row = {"made_at": at, "expected_start_at": at, "late_seconds": 0.0}
        session.add(StartForecast(tenant_id=cast.acme.id, job_id="gone", **row))
    settle_forecasts(session, cast.acme.id, now=NOON + 8 * HOUR)
    left = session.scalars(select(StartForecast.made_at).order_by(StartForecast.made_at)).all()
    assert left == [NOON + hours * HOUR for hours in (5, 6, 7)]
