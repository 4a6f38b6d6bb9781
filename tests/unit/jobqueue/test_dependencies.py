"""Jobs that wait until others have ended."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.models import Job
from jobqueue.queue.pending import explain_job
from jobqueue.queue.retention import delete_ended
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState, Reason
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit

LATER = NOON + timedelta(minutes=2)


def end(session: Session, job: Job, state: ObservedState) -> None:
    session.refresh(job)
    assert job.attempt is not None
    report(session, job.attempt, ObservedState.RUNNING)
    report(session, job.attempt, state, exit_code=0 if state is ObservedState.SUCCEEDED else 3)


def cycle(session: Session, *jobs: Job) -> list[JobState]:
    dispatch(session, now=LATER)
    for job in jobs:
        session.refresh(job)
    return [job.state for job in jobs]


def test_a_job_starts_after_the_success_of_others(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    first, second = submit(session, cast.alice, "prepare"), submit(session, cast.alice, "fetch")
    train = submit(session, cast.bob, after_ok=["prepare", second.id])

    assert cycle(session, first, second, train) == ["starting", "starting", "submitted"]
    assert train.reason is Reason.WAITING_FOR_DEPENDENCY
    assert "'prepare' succeeds and 'fetch' succeeds" in train.message
    assert [dependency["name"] for dependency in train.dependencies] == ["prepare", "fetch"]
    assert explain_job(session, scope_of(cast.bob), train.id, now=LATER) is None
    end(session, first, ObservedState.SUCCEEDED)
    assert cycle(session, train) == ["submitted"]
    end(session, second, ObservedState.SUCCEEDED)
    assert cycle(session, train) == ["starting"]


def test_jobs_whose_dependency_failed_are_stopped_with_the_reason(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    first = submit(session, cast.alice, "prepare")
    train = submit(session, cast.alice, after_ok=["prepare"])
    evaluate = submit(session, cast.alice, "eval", after_ok=["train"])
    clean = submit(session, cast.alice, "clean", after_any=["prepare", "eval"])
    cycle(session)
    end(session, first, ObservedState.FAILED)

    assert cycle(session, train) == ["stopped"]
    assert train.reason is Reason.DEPENDENCY_FAILED
    assert "'prepare' did not succeed (failed)" in train.message
    assert cycle(session, evaluate) == ["stopped"]
    assert "'train' did not succeed (stopped)" in evaluate.message
    assert cycle(session, clean) == ["starting"]


def test_a_dependency_that_can_never_be_met_or_is_unknown_is_refused(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    stopped = submit(session, cast.alice, "stopped")
    stop_job(session, scope_of(cast.alice), stopped.id, now=NOON)
    foreign = submit(session, cast.charlie, "foreign")
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, after_ok=["stopped"], after_any=["nothing", foreign.id])
    assert "already ended" in caught.value.errors["after_ok"][0]
    assert len(caught.value.errors["after_any"]) == 2
    assert submit(session, cast.alice, after_any=["stopped"]).state is JobState.SUBMITTED
    with pytest.raises(InvalidInputError, match="after_any has 21 entries"):
        submit(session, cast.alice, after_any=["stopped"] * 21)


def test_a_job_that_others_wait_for_is_not_deleted(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    first = submit(session, cast.alice, "prepare")
    submit(session, cast.alice, after_any=["prepare"])
    stop_job(session, scope_of(cast.alice), first.id, now=NOON)
    olivia = scope_of(cast.olivia)
    assert delete_ended(session, olivia, before=LATER, now=LATER) == 0
    cycle(session)
    assert delete_ended(session, olivia, before=LATER, now=LATER) == 1
