"""Arrays of many tasks are stored by the database itself, and stopped in parts."""

import pytest
from sqlalchemy import func, select

from core.db import SessionFactory
from jobqueue.jobs.relations import array_states
from jobqueue.models import JobEvent
from jobqueue.queue.retention import delete_job
from jobqueue.queue.stopping import TASKS_PER_TRANSACTION, stop_array
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.racing import race_numbered
from tests.unit.jobqueue.builders import add_appliance, submit

pytestmark = pytest.mark.needs_mariadb
TASKS = TASKS_PER_TRANSACTION + 50


def test_two_who_stop_an_array_at_once_stop_each_task_once(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        array_id = submit(session, cast.alice, array=f"1-{TASKS}").id

    def stop(_number: int) -> None:
        with sessions.begin() as session:
            stop_array(session, scope_of(cast.alice), array_id, now=NOON)

    race_numbered(stop, racers=2)
    with sessions.begin() as session:
        alice = scope_of(cast.alice)
        assert array_states(session, alice, [array_id])[array_id] == {"stopped": TASKS}
        stopped = select(func.count()).where(JobEvent.message == "Stopped before it started.")
        assert session.scalar(stopped) == TASKS
    is_done = False
    while not is_done:
        with sessions.begin() as session:
            _, is_done = delete_job(session, scope_of(cast.alice), array_id, now=NOON)
