"""Arrays of many tasks: stored by few statements, stopped and deleted in short transactions."""

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import InvalidInputError
from jobqueue.jobs.relations import MAX_ARRAY_BYTES, array_states
from jobqueue.models import Job, JobEvent
from jobqueue.queue.retention import BATCH, delete_job
from jobqueue.queue.stopping import TASKS_PER_TRANSACTION, stop_array
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.models import AuditEntry
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.statements import counted_statements
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

TASKS = 2 * TASKS_PER_TRANSACTION + 1


def as_alice(session: Session, cast: Cast) -> Session:
    actor = Actor(name="alice", via="test", user_id=cast.alice.id)
    set_actor(session, actor, clock=lambda: NOON)
    return session


@pytest.fixture
def array_id(sessions: SessionFactory, cast: Cast) -> str:
    """Alice's array, of which one task is starting."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        array = submit(session, cast.alice, array=f"1-{TASKS}%1")
        dispatch(session, now=NOON)
        return array.id


def states(sessions: SessionFactory, cast: Cast, array_id: str) -> dict[str, int]:
    with sessions() as session:
        return array_states(session, scope_of(cast.alice), [array_id])[array_id]


@pytest.mark.parametrize("tasks", [2, 1000])
def test_tasks_are_stored_by_as_many_statements_whatever_their_number(
    engine: Engine, sessions: SessionFactory, cast: Cast, tasks: int
) -> None:
    with counted_statements(engine) as texts, sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        array = submit(session, cast.alice, array=f"0-{tasks - 1}", env={"A": "ä"}, gpus=1)
    assert len(texts) < 40
    with sessions() as session:
        stored = session.scalars(select(Job).where(Job.array_id == array.id)).unique().all()
        assert sorted(job.array_index or 0 for job in stored) == list(range(tasks))
        assert {job.env["A"] for job in stored} == {"ä"}
        events = select(func.count()).select_from(JobEvent)
        assert session.scalar(events.where(JobEvent.tenant_id == cast.acme.id)) == tasks


def test_an_array_stops_in_parts_each_of_which_is_complete(
    sessions: SessionFactory, cast: Cast, array_id: str
) -> None:
    left = []
    is_done = False
    while not is_done:
        with sessions.begin() as session:
            _, is_done = stop_array(
                as_alice(session, cast), scope_of(cast.alice), array_id, now=NOON
            )
        # As after a crash: what was stopped stays so, and the rest can be stopped by another call.
        left.append(states(sessions, cast, array_id).get("stopped", 0))
    assert left == [TASKS_PER_TRANSACTION, 2 * TASKS_PER_TRANSACTION, TASKS - 1]
    assert states(sessions, cast, array_id) == {"starting": 1, "stopped": TASKS - 1}
    with sessions() as session:
        assert session.get_one(Job, array_id).stop_requested_at == NOON
        events = select(func.count()).where(JobEvent.message == "Stopped before it started.")
        assert session.scalar(events) == TASKS - 1
        recorded = select(AuditEntry.after).where(AuditEntry.action == "job.stop_requested")
        counts = [after["jobs"] for after in session.scalars(recorded)]
    assert sum(counts) == TASKS
    assert max(counts) == TASKS_PER_TRANSACTION


def test_a_part_costs_as_many_statements_whatever_its_size(
    engine: Engine, sessions: SessionFactory, cast: Cast, array_id: str
) -> None:
    with counted_statements(engine) as texts, sessions.begin() as session:
        stop_array(session, scope_of(cast.alice), array_id, now=NOON)
    assert len(texts) < 30


def test_an_array_is_deleted_in_parts_the_first_task_last(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        array_id = submit(session, cast.alice, array=f"1-{BATCH + 1}").id
        while not stop_array(session, scope_of(cast.alice), array_id, now=NOON)[1]:
            pass
    left = []
    is_done = False
    while not is_done:
        with sessions.begin() as session:
            _, is_done = delete_job(session, scope_of(cast.alice), array_id, now=NOON)
        with sessions() as session:
            left.append(list(session.scalars(select(Job.id))))
    assert left == [[array_id], []]


def test_an_array_of_too_many_bytes_is_refused_with_what_to_do(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    large = {"LARGE": "x" * (MAX_ARRAY_BYTES // 500)}
    with pytest.raises(InvalidInputError, match="Use fewer tasks") as refused:
        submit(session, cast.alice, array="0-999", env=large)
    assert list(refused.value.errors) == ["array"]
    submit(session, cast.alice, env=large)
