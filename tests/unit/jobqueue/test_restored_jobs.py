"""Jobs after a backup was restored: none runs twice, and users see what is unclear."""

from datetime import timedelta

from sqlalchemy.orm import Session

from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.jobs.restored import awaits_report, settle_restored
from jobqueue.models import Job
from jobqueue.queue.schedules import ScheduleRequest, create_schedule
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from protocol.job_spec import FailureClass, JobKind, JobRequest
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, observed, start, submit

LATER = NOON + timedelta(hours=1)


def settle(session: Session) -> int:
    stopped = settle_restored(session, data_at=NOON, now=LATER)
    session.flush()
    session.expire_all()
    return stopped


def test_a_job_that_waited_stops_since_it_may_have_run(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    job = submit(session, cast.bob)
    assert settle(session) == 1
    assert (job.state, job.reason) == (JobState.STOPPED, Reason.RESTORED)
    assert "12:00 UTC" in job.message
    dispatch(session, now=LATER)
    session.refresh(job)
    assert job.attempts == []


def test_a_service_that_waited_starts(session: Session, cast: Cast) -> None:
    service = submit(session, cast.bob, kind=JobKind.SERVICE)
    assert settle(session) == 0
    assert service.state in {JobState.SUBMITTED, JobState.QUEUED}


def test_an_agent_gets_nothing_to_run_before_it_has_reported(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    assert not awaits_report(session, attempt.appliance_id)
    settle(session)
    assert awaits_report(session, attempt.appliance_id)
    apply_report(
        session, attempt.appliance_id, [observed(attempt, ObservedState.RUNNING)], now=LATER
    )
    assert not awaits_report(session, attempt.appliance_id)
    session.refresh(attempt)
    assert attempt.state is AttemptState.RUNNING


def test_an_attempt_that_the_agent_has_forgotten_is_lost_and_not_tried_again(
    session: Session, cast: Cast
) -> None:
    retry_on = [FailureClass.APPLIANCE, FailureClass.EXIT]
    attempt = start(session, cast, max_retries=3, retry_on=retry_on)
    settle(session)
    apply_report(session, attempt.appliance_id, [], now=LATER)
    session.refresh(attempt)
    session.refresh(attempt.job)
    assert (attempt.state, attempt.job.state) == (AttemptState.LOST, JobState.LOST)
    assert attempt.job.reason is Reason.RESTORED
    assert desired_state(session, attempt.appliance_id, box=BOX).attempts == []


def test_an_end_that_the_agent_still_knows_counts(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    settle(session)
    seen = observed(attempt, ObservedState.SUCCEEDED, exit_code=0)
    apply_report(session, attempt.appliance_id, [seen], now=LATER)
    session.refresh(attempt.job)
    assert attempt.job.state is JobState.SUCCEEDED


def test_an_agent_with_the_generation_of_the_lost_portal_gets_the_restored_one(
    session: Session, cast: Cast
) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    generation_of_lost_portal = appliance.desired_generation + 7
    settle(session)
    assert appliance.desired_generation > generation_of_lost_portal


def test_a_schedule_does_not_repeat_the_runs_of_the_lost_portal(
    session: Session, cast: Cast
) -> None:
    request = ScheduleRequest(
        name="nightly",
        schedule="*/10 * * * *",
        job=JobRequest(name="train", image="busybox"),
    )
    schedule = create_schedule(session, scope_of(cast.alice), request, box=BOX, now=NOON)
    settle(session)
    assert schedule.next_run_at == LATER + timedelta(minutes=10)
    assert session.query(Job).count() == 0
