"""Retries by failure class, preemption and caps, through the database."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from jobqueue.dispatch.appliance_lifecycle import sweep_attempts
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Job
from jobqueue.queue.service import job_events
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from tenants.models import ApplianceState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, start, submit


def numbers(session: Session, job: Job) -> list[tuple[int, AttemptState]]:
    session.refresh(job)
    return [(attempt.number, attempt.state) for attempt in job.attempts]


def test_a_failure_of_a_listed_class_is_tried_again_after_longer_and_longer_pauses(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, max_retries=2, retry_on=["exit"])
    job, failed_at = attempt.job, NOON.replace(minute=1)
    for number, pause in [(1, 10), (2, 20)]:
        report(session, attempt, ObservedState.FAILED, exit_code=3, reason="exit_code")
        assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RETRY)
        assert job.message.startswith(f"Attempt {number} failed; retry {number} of 2.")
        dispatch(session, now=failed_at + timedelta(seconds=pause - 1))
        assert len(numbers(session, job)) == number
        dispatch(session, now=failed_at + timedelta(seconds=pause))
        assert numbers(session, job)[-1] == (number + 1, AttemptState.STARTING)
        attempt = job.attempts[-1]
    report(session, attempt, ObservedState.FAILED, exit_code=3, reason="exit_code")
    assert (job.state, job.reason) == (JobState.FAILED, Reason.EXIT_CODE)


@pytest.mark.parametrize(
    ("reason", "retry_on"),
    [("exit_code", ["start"]), ("time_limit", ["exit", "start"]), ("out_of_memory", ["exit"])],
)
def test_another_failure_ends_the_job(
    session: Session, cast: Cast, reason: str, retry_on: list[str]
) -> None:
    attempt = start(session, cast, max_retries=2, retry_on=retry_on)
    report(session, attempt, ObservedState.FAILED, exit_code=3, reason=reason)
    assert (attempt.job.state, attempt.job.reason.value) == (JobState.FAILED, reason)


def test_a_job_of_a_lost_appliance_is_tried_on_another_one(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, max_retries=1, retry_on=["appliance"])
    other = add_appliance(session, cast.acme, "dgx-02")
    attempt.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=NOON)
    dispatch(session, now=NOON + timedelta(minutes=1))
    job = attempt.job
    assert numbers(session, job) == [(1, AttemptState.LOST), (2, AttemptState.STARTING)]
    assert job.attempts[-1].appliance_id == other.id


def test_a_stop_of_the_user_ends_a_job_that_waits_for_a_retry(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, max_retries=1)
    report(session, attempt, ObservedState.FAILED, exit_code=1)
    stopped = stop_job(session, scope_of(cast.alice), attempt.job_id, now=NOON)
    assert stopped.state is JobState.STOPPED
    assert numbers(session, stopped) == [(1, AttemptState.FAILED)]


@pytest.mark.parametrize(
    "ordering",
    [
        OrderSettings(),
        # By points the larger job comes first again, but for a pause.
        OrderSettings(policy=OrderPolicy.FAIR_TREE, size_weight=1000),
    ],
    ids=["by submission", "by points"],
)
def test_a_preempted_job_makes_room_and_is_queued_behind(
    session: Session, cast: Cast, ordering: OrderSettings
) -> None:
    scope = scope_of(cast.alice)
    attempt = start(session, cast, gpus=8, is_preemptible=True)
    urgent = submit(session, cast.alice, "urgent", gpus=7)
    dispatch(session, now=NOON)
    assert desired_state(session, attempt.appliance_id, box=BOX).stopping == []

    settings = QueueSettings(allows_preemption=True, ordering=ordering)
    set_settings(session, scope, cast.acme.id, settings)
    for _ in range(2):
        dispatch(session, now=NOON)
    session.refresh(attempt)
    assert desired_state(session, attempt.appliance_id, box=BOX).stopping == [attempt.id]
    assert attempt.stop_reason is Reason.PREEMPTED

    report(session, attempt, ObservedState.STOPPED)
    victim = attempt.job
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPED, Reason.PREEMPTED)
    assert (victim.state, victim.reason) == (JobState.QUEUED, Reason.PREEMPTED)
    dispatch(session, now=NOON + timedelta(minutes=1))
    session.refresh(urgent)
    session.refresh(victim)
    assert (urgent.state, victim.state) == (JobState.STARTING, JobState.QUEUED)
    messages = [event.message for event in job_events(session, scope, victim.id)]
    assert "Stopping for job 'urgent', as it is preemptible and of no higher priority." in messages
    [end] = [message for message in messages if "Lost since its start" in message]
    assert "1m of run time, 0.1 GPU-hours" in end
    assert "position 2" in end


def test_a_cap_of_the_tenant_holds_jobs_back_and_says_so(session: Session, cast: Cast) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(max_gpus_per_user=2))
    start(session, cast, gpus=2)
    job = submit(session, cast.alice, "second", gpus=1)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_CAP)
    assert "2 of at most 2 GPUs" in job.message
