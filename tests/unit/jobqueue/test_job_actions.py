"""Jobs in lists and counts, who may stop them, and what stopping does."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, NotFoundError
from jobqueue.partitions.allocations import read_gpu_allocations
from jobqueue.queue.service import get_job, job_counts, job_events, list_jobs
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import dispatch, report, start, submit


def test_jobs_are_listed_newest_first_a_page_at_a_time(session: Session, cast: Cast) -> None:
    for name in ("a", "b", "c"):
        submit(session, cast.alice, name)
    page = list_jobs(session, scope_of(cast.alice), page_size=2)
    assert [job.name for job in page.items] == ["c", "b"]
    assert (page.total, page.previous) == (3, None)


def test_jobs_are_found_by_name_image_and_state(session: Session, cast: Cast) -> None:
    submit(session, cast.alice, "train", image="pytorch")
    submit(session, cast.alice, "clean_100%", image="python")
    alice = scope_of(cast.alice)
    assert [job.name for job in list_jobs(session, alice, search="TORCH").items] == ["train"]
    assert [job.name for job in list_jobs(session, alice, search="%").items] == ["clean_100%"]
    assert list_jobs(session, alice, state=JobState.RUNNING).total == 0


def test_charlie_sees_nothing_of_acmes_jobs(session: Session, cast: Cast) -> None:
    start(session, cast, gpus=1)
    charlie = scope_of(cast.charlie)
    assert list_jobs(session, charlie).total == 0
    assert job_counts(session, charlie)[JobState.STARTING] == 0
    assert read_gpu_allocations(session, charlie).by_gpu == {}


@pytest.mark.parametrize("call", [get_job, job_events, stop_job])
def test_a_foreign_job_is_the_same_404_as_a_missing_one(
    session: Session, cast: Cast, call: object
) -> None:
    job = submit(session, cast.alice)
    extra = {"now": NOON} if call is stop_job else {}
    messages = []
    for ident in (job.id, "no-such-id"):
        with pytest.raises(NotFoundError) as caught:
            call(session, scope_of(cast.charlie), ident, **extra)  # type: ignore[operator]
        messages.append(caught.value.message.replace(ident, "ID"))
    assert messages[0] == messages[1]


def test_the_operator_sees_every_tenants_jobs(session: Session, cast: Cast) -> None:
    submit(session, cast.alice)
    submit(session, cast.charlie)
    assert list_jobs(session, scope_of(cast.olivia)).total == 2
    assert job_counts(session, scope_of(cast.olivia))[JobState.SUBMITTED] == 2


def test_a_gpu_names_the_job_that_holds_it(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=1)
    allocations = read_gpu_allocations(session, scope_of(cast.bob))
    assert list(allocations.by_gpu) == ["GPU-dgx-01-0"]
    assert allocations.job_of("GPU-dgx-01-0") == attempt.job
    report(session, attempt, ObservedState.SUCCEEDED)
    assert read_gpu_allocations(session, scope_of(cast.bob)).by_gpu == {}


def test_a_waiting_job_is_stopped_at_once(session: Session, cast: Cast) -> None:
    running = start(session, cast, gpus=8)
    job = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    stopped = stop_job(session, scope_of(cast.alice), job.id, now=NOON)
    assert (stopped.state, stopped.reason) == (JobState.STOPPED, Reason.STOPPED_BY_USER)
    assert stopped.finished_at == NOON
    assert stopped.attempt is not None
    assert stopped.attempt.state is AttemptState.STOPPED
    assert running.state is AttemptState.STARTING


def test_a_running_job_stops_through_its_appliance(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.RUNNING)
    before = attempt.appliance.desired_generation
    job = stop_job(session, scope_of(cast.alice), attempt.job_id, now=NOON)
    session.refresh(attempt.appliance)
    assert (job.state, job.stop_requested_at) == (JobState.RUNNING, NOON)
    assert attempt.appliance.desired_generation == before + 1
    assert (
        job_events(session, scope_of(cast.alice), job.id)[-1].message == "Alice requested a stop."
    )


def test_asking_twice_to_stop_changes_nothing(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    alice = scope_of(cast.alice)
    stop_job(session, alice, attempt.job_id, now=NOON)
    events = len(job_events(session, alice, attempt.job_id))
    job = stop_job(session, alice, attempt.job_id, now=NOON.replace(hour=13))
    assert job.stop_requested_at == NOON
    assert len(job_events(session, alice, attempt.job_id)) == events


def test_an_ended_job_can_not_be_stopped(session: Session, cast: Cast) -> None:
    job = submit(session, cast.alice)
    stop_job(session, scope_of(cast.alice), job.id, now=NOON)
    with pytest.raises(ConflictError, match="already ended \\(stopped\\)"):
        stop_job(session, scope_of(cast.alice), job.id, now=NOON)


def test_bob_may_stop_his_own_job_but_not_alices(session: Session, cast: Cast) -> None:
    own, hers = submit(session, cast.bob), submit(session, cast.alice)
    assert stop_job(session, scope_of(cast.bob), own.id, now=NOON).state is JobState.STOPPED
    with pytest.raises(ForbiddenError):
        stop_job(session, scope_of(cast.bob), hers.id, now=NOON)


def test_alice_may_stop_bobs_job(session: Session, cast: Cast) -> None:
    job = submit(session, cast.bob)
    assert stop_job(session, scope_of(cast.alice), job.id, now=NOON).state is JobState.STOPPED
