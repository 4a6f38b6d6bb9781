"""Dependencies and arrays on MariaDB, which plans their subqueries otherwise than SQLite."""

from datetime import timedelta
from typing import Any

import pytest

from core.db import SessionFactory
from jobqueue.jobs.relations import array_states
from jobqueue.queue.stopping import stop_array
from jobqueue.states import JobState, Reason
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit

pytestmark = pytest.mark.needs_mariadb
LATER = NOON + timedelta(minutes=2)


@pytest.mark.parametrize("condition", ["after_ok", "after_any"])
def test_jobs_wait_for_an_array(sessions: SessionFactory, cast: Cast, condition: str) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        array = submit(session, cast.alice, array="0-4%2")
        waits: dict[str, Any] = {condition: ["train"]}
        after = submit(session, cast.alice, "merge", **waits)
        assert dispatch(session, now=LATER).total() == 5
        stop_array(session, scope_of(cast.alice), array.id, now=LATER)
        dispatch(session, now=LATER)
        session.refresh(after)
        states = array_states(session, scope_of(cast.alice), [array.id])[array.id]
        assert states == {"starting": 2, "stopped": 3}
        if condition == "after_ok":
            assert (after.state, after.reason) == (JobState.STOPPED, Reason.DEPENDENCY_FAILED)
        else:
            assert after.reason is Reason.WAITING_FOR_DEPENDENCY
