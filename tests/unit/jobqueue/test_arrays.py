"""Arrays: many tasks of one request."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.relations import MAX_TASKS, array_states, parse_array
from jobqueue.models import Job
from jobqueue.queue.retention import delete_ended
from jobqueue.queue.service import list_jobs
from jobqueue.queue.stopping import stop_array
from jobqueue.states import JobState, Reason
from protocol.attempts import ObservedState
from tenants.quotas import Limits, set_limits
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit

LATER = NOON + timedelta(minutes=2)


@pytest.mark.parametrize(
    ("text", "indexes", "limit"),
    [("0-3", [0, 1, 2, 3], 0), ("7,1-2, 2", [1, 2, 7], 0), ("0-99%10", list(range(100)), 10)],
)
def test_indexes_are_parsed(text: str, indexes: list[int], limit: int) -> None:
    spec = parse_array(text)
    assert (list(spec.indexes), spec.limit) == (indexes, limit)


@pytest.mark.parametrize("text", ["a", "3-1", "0-", "0-9%0", "0-9%", "1,,2", f"0-{MAX_TASKS}", ","])
def test_other_texts_and_too_many_tasks_are_refused(
    session: Session, cast: Cast, text: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, array=text)
    assert caught.value.errors.keys() == {"array"}


def test_an_array_runs_at_once_no_more_tasks_than_it_allows(session: Session, cast: Cast) -> None:
    appliance = add_appliance(session, cast.acme, "dgx-01")
    first = submit(session, cast.alice, array="10-14%2")
    assert dispatch(session, now=LATER).total() == 5
    alice = scope_of(cast.alice)
    assert array_states(session, alice, [first.id]) == {first.id: {"queued": 3, "starting": 2}}
    waiting = list_jobs(session, alice, state=JobState.QUEUED).items
    assert {job.reason for job in waiting} == {Reason.WAITING_FOR_CAP}
    wanted = desired_state(session, appliance.id, box=BOX)
    assert [attempt.env["VEDETTE_ARRAY_INDEX"] for attempt in wanted.attempts] == ["10", "11"]

    session.refresh(first)
    assert first.attempt is not None
    assert first.title == "train[10]"
    report(session, first.attempt, ObservedState.FAILED, exit_code=1)
    dispatch(session, now=LATER)
    assert array_states(session, alice, [first.id]) == {
        first.id: {"queued": 2, "starting": 2, "failed": 1}
    }


def test_a_list_shows_an_array_once_or_its_tasks(session: Session, cast: Cast) -> None:
    submit(session, cast.alice, "single")
    array = submit(session, cast.alice, array="0-9")
    alice = scope_of(cast.alice)
    assert list_jobs(session, alice).total == 11
    assert [
        listed_job.name for listed_job in list_jobs(session, alice, is_collapsed=True).items
    ] == [
        "train",
        "single",
    ]
    assert list_jobs(session, alice, array_id=array.id).total == 10
    assert list_jobs(session, scope_of(cast.charlie), array_id=array.id).total == 0


def test_all_tasks_of_an_array_stop(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    array = submit(session, cast.alice, array="0-4%1")
    dispatch(session, now=LATER)
    tasks = session.scalars(select(Job).where(Job.array_id == array.id)).unique().all()
    stop_array(session, scope_of(cast.alice), tasks[3].id, now=LATER)
    states = array_states(session, scope_of(cast.alice), [array.id])[array.id]
    assert states == {"starting": 1, "stopped": 4}
    session.refresh(array)
    assert array.stop_requested_at == LATER
    single = submit(session, cast.alice, "single")
    with pytest.raises(ConflictError):
        stop_array(session, scope_of(cast.alice), single.id, now=LATER)
    # The first task stands for the array in lists.
    olivia, tomorrow = scope_of(cast.olivia), LATER + timedelta(days=1)
    assert array.attempt is not None
    report(session, array.attempt, ObservedState.STOPPED)
    deleted = [delete_ended(session, olivia, before=tomorrow, now=LATER) for _ in range(3)]
    assert deleted == [4, 1, 0]


def test_others_wait_for_all_tasks(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    array = submit(session, cast.alice, array="0-1")
    after = submit(session, cast.alice, "merge", array="0-2", after_ok=["train"])
    dispatch(session, now=LATER)
    tasks = session.scalars(select(Job).where(Job.array_id == array.id)).unique().all()
    states = []
    for task in tasks:
        assert task.attempt is not None
        report(session, task.attempt, ObservedState.SUCCEEDED, exit_code=0)
        dispatch(session, now=LATER)
        states.append(array_states(session, scope_of(cast.alice), [after.id])[after.id])
    assert states == [{"submitted": 3}, {"starting": 3}]


def test_every_task_counts_towards_the_quota(session: Session, cast: Cast) -> None:
    olivia = scope_of(cast.olivia)
    set_limits(session, olivia, cast.acme.id, Limits(max_active_jobs=5))
    with pytest.raises(ConflictError, match="active jobs"):
        submit(session, cast.alice, array="0-5")
    submit(session, cast.alice, array="0-4")
