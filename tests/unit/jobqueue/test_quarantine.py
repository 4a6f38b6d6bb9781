"""Appliances on which jobs fail to start: quarantine, probes, trials and release."""

# ruff: noqa: ANN401 - helpers pass any field on

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.jobs.quarantine import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    WINDOW,
    order_probes,
    release_appliance,
)
from jobqueue.jobs.retries import FREE_STARTS
from jobqueue.models import Attempt, Job
from jobqueue.queue.pending import explain_job
from jobqueue.states import JobState, Reason
from protocol.attempts import AttemptObservation, ObservedState, ProbeOrder, ProbeResult
from protocol.job_spec import JobKind
from tenants.fleet.events import list_events
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, Tenant
from tests.cast import BOX, NOON, Cast, make_appliance, scope_of
from tests.unit.jobqueue.builders import dispatch, gpu_uuid, inventory, submit

SECOND = timedelta(seconds=1)


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    """An appliance whose agent runs probes."""
    return add(session, cast.acme, "dgx-01")


def add(session: Session, tenant: Tenant, name: str, *, can_probe: bool = True) -> Appliance:
    return make_appliance(
        session, tenant, name, inventory=inventory(name) | {"can_probe": can_probe}
    )


def attempt_of(session: Session, job: Job) -> Attempt:
    session.refresh(job)
    assert job.attempt is not None
    return job.attempt


def see(
    session: Session, job: Job, state: ObservedState, *, now: datetime = NOON, **values: Any
) -> None:
    """Let the appliance of a job's attempt report it."""
    attempt = attempt_of(session, job)
    seen = AttemptObservation(attempt_id=attempt.id, state=state, **values)
    apply_report(session, attempt.appliance_id, [seen], now=now)
    session.refresh(job)


def fail(
    session: Session, job: Job, reason: Reason = Reason.START_FAILED, *, now: datetime = NOON
) -> None:
    message = "Can't start the container: network bridge not found."
    see(session, job, ObservedState.FAILED, reason=reason.value, message=message, now=now)


def place(session: Session, cast: Cast, count: int, **changes: Any) -> list[Job]:
    """Submit jobs with one GPU each, and place them."""
    jobs = [submit(session, cast.bob, f"job-{n}", gpus=1, **changes) for n in range(count)]
    dispatch(session, now=NOON)
    for job in jobs:
        session.refresh(job)
    return jobs


def quarantine(session: Session, cast: Cast) -> list[Job]:
    """Let two jobs fail to start on the only appliance."""
    jobs = place(session, cast, 2)
    for job in jobs:
        fail(session, job)
    return jobs


def order_for(session: Session, appliance: Appliance) -> ProbeOrder | None:
    return desired_state(session, appliance.id, box=BOX).probe


def answer(
    session: Session, appliance: Appliance, problem: str = "", *, now: datetime = NOON
) -> None:
    """Let the agent answer the probe that is ordered."""
    order = order_for(session, appliance)
    assert order is not None
    result = ProbeResult(number=order.number, problem=problem)
    apply_report(session, appliance.id, [], probe=result, now=now)


def test_start_failures_of_two_jobs_quarantine_their_appliance(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    first, second = place(session, cast, 2)
    fail(session, first)
    assert effective_status_of(dgx) is EffectiveStatus.ONLINE
    fail(session, second)
    assert effective_status_of(dgx) is EffectiveStatus.QUARANTINED
    (event,) = list_events(session, scope_of(cast.alice), dgx.id).items
    assert event.kind == "quarantined"
    assert event.message.startswith("Quarantined: 2 jobs failed to start. Can't start the cont")


@pytest.mark.usefixtures("dgx")
def test_no_job_fails_for_its_appliance_and_the_others_are_not_sent_there(
    session: Session, cast: Cast
) -> None:
    failed = quarantine(session, cast)
    waiting = submit(session, cast.bob, "later", gpus=1)
    dispatch(session, now=NOON + timedelta(minutes=1))
    for job in [*failed, waiting]:
        session.refresh(job)
        assert job.state is JobState.QUEUED
        assert "dgx-01: quarantined, jobs can't start: Can't start the" in job.message
    explained = explain_job(
        session, scope_of(cast.bob), waiting.id, now=NOON + timedelta(minutes=1)
    )
    assert explained is not None
    assert [rejection.code for rejection in explained.rejections] == ["quarantined"]


@pytest.mark.parametrize(
    "reason",
    [Reason.INVALID_JOB, Reason.IMAGE_NOT_FOUND, Reason.EXIT_CODE, Reason.EXECUTOR_ERROR],
)
def test_failures_that_are_the_jobs_own_do_not_quarantine(
    session: Session, cast: Cast, dgx: Appliance, reason: Reason
) -> None:
    for job in place(session, cast, 3):
        fail(session, job, reason)
        assert (job.state, job.reason) == (JobState.FAILED, reason)
    assert dgx.quarantined_at is None


def test_failures_of_tasks_of_one_array_are_those_of_one_job(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    first = submit(session, cast.bob, gpus=1, array="1-3")
    dispatch(session, now=NOON)
    for job in session.query(Job).filter_by(array_id=first.id):
        fail(session, job)
    assert dgx.quarantined_at is None


def test_failures_far_apart_do_not_add_up(session: Session, cast: Cast, dgx: Appliance) -> None:
    first, second = place(session, cast, 2)
    fail(session, first)
    fail(session, second, now=NOON + WINDOW + SECOND)
    assert dgx.quarantined_at is None


def test_an_outage_of_the_registry_quarantines_nothing(session: Session, cast: Cast) -> None:
    appliances = [add(session, cast.acme, name) for name in ("dgx-01", "dgx-02")]
    jobs = place(session, cast, 16)
    on_both = [job for job in jobs if attempt_of(session, job).appliance_id == appliances[1].id][:3]
    on_both += [job for job in jobs if attempt_of(session, job).appliance_id == appliances[0].id][
        :3
    ]
    fail(session, on_both[0], Reason.IMAGE_PULL_FAILED)
    fail(session, on_both[3], Reason.IMAGE_PULL_FAILED)
    for job in (on_both[1], on_both[2], on_both[4], on_both[5]):
        fail(session, job, Reason.IMAGE_PULL_FAILED)
    assert [appliance.quarantined_at for appliance in appliances] == [None, None]


def test_only_one_appliance_without_its_registry_is_quarantined_until_it_answers(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    add(session, cast.acme, "dgx-02")
    jobs = [job for job in place(session, cast, 2) if attempt_of(session, job).appliance is dgx]
    for job in jobs:
        fail(session, job, Reason.IMAGE_PULL_FAILED)
    assert dgx.quarantined_at is not None
    order = order_for(session, dgx)
    assert order is not None
    assert order.image == "python:3.13"


def test_the_agent_is_ordered_a_probe_with_the_gpus_of_a_failed_job(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    before = dgx.desired_generation
    assert order_for(session, dgx) is None
    quarantine(session, cast)
    session.refresh(dgx)
    order = order_for(session, dgx)
    assert order is not None
    assert dgx.desired_generation > before
    assert set(order.gpu_uuids) <= {gpu_uuid("dgx-01", index) for index in range(8)}
    assert (len(order.gpu_uuids), order.image) == (1, "")


def test_a_probe_that_runs_releases_the_appliance_and_its_jobs_start(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    jobs = quarantine(session, cast)
    answer(session, dgx)
    assert effective_status_of(dgx) is EffectiveStatus.ONLINE
    assert order_for(session, dgx) is None
    dispatch(session, now=NOON + timedelta(minutes=1))
    for job in jobs:
        see(session, job, ObservedState.RUNNING, now=NOON + timedelta(minutes=1))
        assert job.state is JobState.RUNNING


def test_a_probe_that_fails_is_run_again_after_longer_and_longer_pauses(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    quarantine(session, cast)
    now, pauses = NOON, []
    for _ in range(8):
        answer(session, dgx, "network bridge not found", now=now)
        assert dgx.quarantine_reason == "The last probe failed: network bridge not found"
        due_at = dgx.probe_at
        assert due_at is not None
        assert order_probes(session, now=due_at - SECOND) == 0
        assert order_for(session, dgx) is None
        assert order_probes(session, now=due_at) == 1
        pauses.append(due_at - now)
        now = due_at
    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE, FIRST_PAUSE * 2]
    assert pauses[-1] == LONGEST_PAUSE
    answer(session, dgx, now=now)
    assert dgx.quarantined_at is None


def test_results_of_earlier_probes_are_ignored(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    quarantine(session, cast)
    order = order_for(session, dgx)
    assert order is not None
    old = ProbeResult(number=order.number - 1)
    apply_report(session, dgx.id, [], probe=old, now=NOON)
    assert dgx.quarantined_at is not None
    result = ProbeResult(number=order.number, problem="no")
    for seconds in (0, 5):
        apply_report(session, dgx.id, [], probe=result, now=NOON + seconds * SECOND)
    assert dgx.probe_at == NOON + FIRST_PAUSE
    # The same answer arrives once more, when the next probe is ordered.
    order_probes(session, now=NOON + FIRST_PAUSE)
    apply_report(session, dgx.id, [], probe=result, now=NOON + FIRST_PAUSE)
    assert dgx.probe_at is None


def test_failures_before_the_release_do_not_count_after_it(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    first, second, *_ = place(session, cast, 4)
    third = submit(session, cast.bob, "third", gpus=1)
    fail(session, first)
    fail(session, second)
    answer(session, dgx, now=NOON + SECOND)
    dispatch(session, now=NOON + SECOND)
    fail(session, third, now=NOON + 2 * SECOND)
    assert dgx.quarantined_at is None


def test_without_probes_one_job_at_a_time_tries_the_appliance(session: Session, cast: Cast) -> None:
    old = add(session, cast.acme, "dgx-01", can_probe=False)
    jobs = [*quarantine(session, cast), *(submit(session, cast.bob, f"m{n}") for n in range(3))]
    assert order_for(session, old) is None or old.probe_at is not None

    def starting() -> list[Job]:
        for job in jobs:
            session.refresh(job)
        return [job for job in jobs if job.state is JobState.STARTING]

    now = NOON + timedelta(minutes=1)
    dispatch(session, now=now)
    (trial,) = starting()
    assert attempt_of(session, trial).placement["policy"] == "trial"
    dispatch(session, now=now + SECOND)
    assert starting() == [trial]
    fail(session, trial, now=now + SECOND)
    assert trial.state is JobState.QUEUED
    dispatch(session, now=now + 2 * SECOND)
    assert starting() == []
    later = now + timedelta(minutes=2)
    dispatch(session, now=later)
    (trial,) = starting()
    see(session, trial, ObservedState.RUNNING, now=later)
    assert old.quarantined_at is None
    dispatch(session, now=later + timedelta(minutes=1))
    assert len(starting()) == 4


def test_a_trial_is_the_last_resort(session: Session, cast: Cast) -> None:
    old = add(session, cast.acme, "dgx-01", can_probe=False)
    quarantine(session, cast)
    other = add(session, cast.acme, "dgx-02")
    jobs = [submit(session, cast.bob, f"m{n}", gpus=8) for n in range(2)]
    dispatch(session, now=NOON + SECOND)
    assert {attempt_of(session, job).appliance_id for job in jobs} == {old.id, other.id}
    assert attempt_of(session, jobs[0]).appliance_id == other.id


def test_trials_that_fail_do_not_use_up_the_free_starts_of_a_job(
    session: Session, cast: Cast
) -> None:
    add(session, cast.acme, "dgx-01", can_probe=False)
    job = quarantine(session, cast)[0]
    now = NOON
    for _ in range(FREE_STARTS + 2):
        now += timedelta(hours=1)
        dispatch(session, now=now)
        if attempt_of(session, job).state.is_final:
            continue
        fail(session, job, now=now)
        assert job.state is JobState.QUEUED


def test_an_admin_releases_an_appliance_by_hand(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    with pytest.raises(ConflictError, match="dgx-01 is not quarantined"):
        release_appliance(session, scope_of(cast.alice), dgx.id, now=NOON)
    quarantine(session, cast)
    with pytest.raises(ForbiddenError):
        release_appliance(session, scope_of(cast.bob), dgx.id, now=NOON)
    release_appliance(session, scope_of(cast.alice), dgx.id, now=NOON)
    assert (dgx.quarantined_at, dgx.probe_at) == (None, None)
    assert "by hand" in list_events(session, scope_of(cast.alice), dgx.id).items[0].message


def test_a_job_that_failed_to_start_goes_to_another_appliance_first(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    (job,) = place(session, cast, 1)
    assert attempt_of(session, job).appliance is dgx
    other = add(session, cast.acme, "dgx-02")
    fail(session, job)
    dispatch(session, now=NOON + timedelta(minutes=1))
    assert attempt_of(session, job).appliance_id == other.id


def test_a_retry_goes_to_another_appliance_first_and_back_where_there_is_none(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    (job,) = place(session, cast, 1, max_retries=2, retry_on=["exit"])
    fail(session, job, Reason.EXIT_CODE)
    dispatch(session, now=NOON + timedelta(minutes=1))
    assert attempt_of(session, job).appliance_id == dgx.id
    other = add(session, cast.acme, "dgx-02")
    fail(session, job, Reason.EXIT_CODE)
    dispatch(session, now=NOON + timedelta(minutes=2))
    assert attempt_of(session, job).appliance_id == other.id


@pytest.mark.usefixtures("dgx")
def test_a_batch_job_fails_after_its_free_starts_and_its_retries(
    session: Session, cast: Cast
) -> None:
    (job,) = place(session, cast, 1, max_retries=1, retry_on=["start"])
    now, starts = NOON, 0
    while job.state is not JobState.FAILED:
        fail(session, job, now=now)
        starts += 1
        now += timedelta(minutes=11)
        dispatch(session, now=now)
        session.refresh(job)
    assert (starts, job.reason) == (FREE_STARTS + 2, Reason.START_FAILED)


@pytest.mark.usefixtures("dgx")
@pytest.mark.parametrize(
    "reason",
    [Reason.START_FAILED, pytest.param(Reason.IMAGE_PULL_FAILED, marks=pytest.mark.nightly)],
)
def test_a_service_starts_again_however_often_it_fails_to(
    session: Session, cast: Cast, reason: Reason
) -> None:
    (job,) = place(session, cast, 1, kind=JobKind.SERVICE)
    now = NOON
    for number in range(1, 7):
        fail(session, job, reason, now=now)
        assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RETRY)
        assert job.message.startswith(f"Attempt {number} could not start on dgx-01; queued again.")
        assert job.retry_at is not None
        assert job.retry_at - now <= timedelta(minutes=10)
        now += timedelta(minutes=11)
        dispatch(session, now=now)
    see(session, job, ObservedState.RUNNING, now=now)
    assert job.state is JobState.RUNNING
