"""Small changes of one tenant succeed beside the bulk work of another, on a real SQLite file."""

from collections.abc import Callable

from core.db import SessionFactory, transaction
from jobqueue.jobs.relations import MAX_TASKS, array_states
from jobqueue.queue.stopping import stop_array
from tenants.users.time_zones import choose_time_zone
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.racing import race
from tests.unit.jobqueue.builders import add_appliance, submit

CHANGES = 20


def test_nobody_is_refused_while_arrays_are_submitted_and_stopped(
    sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        add_appliance(session, cast.globex, "dgx-01")
    charlie = scope_of(cast.charlie)

    def work_in_bulk() -> dict[str, int]:
        with transaction(sessions) as session:
            array_id = submit(session, cast.charlie, array=f"1-{MAX_TASKS}").id
        is_done = False
        while not is_done:
            with transaction(sessions) as session:
                _, is_done = stop_array(session, charlie, array_id, now=NOON)
        with transaction(sessions) as session:
            return array_states(session, charlie, [array_id])[array_id]

    def change() -> dict[str, int]:
        for number in range(CHANGES):
            with transaction(sessions) as session:
                alice = session.merge(cast.alice, load=True)
                choose_time_zone(alice, ("Europe/Oslo", "Asia/Kolkata")[number % 2])
        return {"changed": CHANGES}

    racers: list[Callable[[], dict[str, int]]] = [work_in_bulk] * 3 + [change]
    assert race(racers) == [{"stopped": MAX_TASKS}] * 3 + [{"changed": CHANGES}]
