"""Attempts on appliances that stopped reporting or left service."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobqueue.dispatch.appliance_lifecycle import sweep_attempts
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.models import Attempt, JobEvent
from jobqueue.queue.service import job_events
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from tenants.models import ApplianceState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import report, start


def sweep(session: Session, attempt: Attempt) -> int:
    """Sweep; return the number of new events of the attempt's job."""
    session.flush()
    events = select(func.count()).where(JobEvent.job_id == attempt.job_id)
    count_before = session.scalars(events).one()
    sweep_attempts(session, now=NOON)
    session.refresh(attempt)
    session.refresh(attempt.job)
    return session.scalars(events).one() - count_before


def test_attempts_on_a_lost_appliance_are_lost(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=1)
    attempt.appliance.state = ApplianceState.LOST
    assert sweep(session, attempt) == 1
    assert (attempt.state, attempt.job.state) == (AttemptState.LOST, JobState.LOST)
    assert attempt.job.reason is Reason.APPLIANCE_LOST
    assert attempt.job.finished_at == NOON
    assert attempt.job.message.startswith("dgx-01 is lost")


def test_a_lost_attempt_is_ended_when_its_appliance_returns(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    attempt.appliance.state = ApplianceState.LOST
    sweep(session, attempt)
    assert desired_state(session, attempt.appliance_id, box=BOX).attempts == []
    assert report(session, attempt, ObservedState.RUNNING) == 0
    assert attempt.state is AttemptState.LOST


def test_attempts_on_a_revoked_appliance_are_lost(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    attempt.appliance.revoked_at = NOON
    sweep(session, attempt)
    assert attempt.state is AttemptState.LOST
    assert "dgx-01 was revoked" in attempt.message


def test_attempts_on_an_unreachable_appliance_go_on_with_a_mark(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.RUNNING)
    attempt.appliance.state = ApplianceState.UNREACHABLE
    assert [sweep(session, attempt) for _ in range(2)] == [1, 0]
    assert (attempt.job.state, attempt.job.reason) == (
        JobState.RUNNING,
        Reason.APPLIANCE_UNREACHABLE,
    )


def test_the_flag_is_cleared_when_the_appliance_reports_again(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    attempt.appliance.state = ApplianceState.UNREACHABLE
    sweep(session, attempt)
    attempt.appliance.state = ApplianceState.ONLINE
    assert [sweep(session, attempt) for _ in range(2)] == [1, 0]
    assert (attempt.job.reason, attempt.job.message) == (Reason.NONE, "")
    history = job_events(session, scope_of(cast.alice), attempt.job_id)
    assert history[-1].message == "dgx-01 is reporting again."


@pytest.mark.parametrize("state", [ApplianceState.ONLINE, ApplianceState.STALE])
def test_attempts_on_a_reporting_appliance_are_left_alone(
    session: Session, cast: Cast, state: ApplianceState
) -> None:
    attempt = start(session, cast)
    attempt.appliance.state = state
    assert sweep(session, attempt) == 0
