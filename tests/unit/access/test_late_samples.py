"""Late samples are noted for the rules before their sender has its response."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from core.clock import to_ns
from core.db import SessionFactory
from tenants.models import Appliance, LateSamples
from tests.cast import FrozenClock
from tests.unit.access.conftest import AgentAPI


def notes(sessions: SessionFactory) -> list[tuple[str, list[str], float, float]]:
    """Return the notes, with the ages of the oldest and the newest sample in seconds."""
    with sessions() as session:
        return [
            (
                note.appliance_id,
                note.measurements,
                (note.arrived_at - note.first_at).total_seconds(),
                (note.arrived_at - note.last_at).total_seconds(),
            )
            for note in session.scalars(select(LateSamples).order_by(LateSamples.id))
        ]


def line(clock: FrozenClock, age_seconds: float, measurement: str = "cpu") -> str:
    return f"{measurement} used=1 {to_ns(clock() - timedelta(seconds=age_seconds))}\n"


def test_only_late_samples_are_noted_by_appliance_and_time(
    api: AgentAPI, sessions: SessionFactory, clock: FrozenClock, dgx: Appliance
) -> None:
    assert api.write(line(clock, 5) + line(clock, 29)).status_code == 204
    assert notes(sessions) == []
    ages = (line(clock, 1), line(clock, 90), line(clock, 600), line(clock, 31, "gpu"))
    assert api.write("".join(ages)).status_code == 204
    assert notes(sessions) == [(dgx.id, ["cpu", "gpu"], 600.0, 31.0)]


def test_posts_of_one_moment_are_noted_in_one_transaction(
    api: AgentAPI, sessions: SessionFactory, clock: FrozenClock, dgx: Appliance
) -> None:
    inserts: list[str] = []
    engine = sessions.kw["bind"]

    @event.listens_for(engine, "before_cursor_execute")
    def count(*arguments: object) -> None:
        if "INSERT INTO late_samples" in str(arguments[2]):
            inserts.append(str(arguments[2]))

    with ThreadPoolExecutor(8) as pool:
        posts = [line(clock, 60.0 + number) for number in range(8)]
        assert {done.status_code for done in pool.map(api.write, posts)} == {204}
    event.remove(engine, "before_cursor_execute", count)
    assert len(inserts) < len(posts)
    assert max(first for _, _, first, _ in notes(sessions)) == 67.0
    assert {appliance for appliance, *_ in notes(sessions)} == {dgx.id}


def test_a_sender_sends_again_what_could_not_be_noted(
    api: AgentAPI, sessions: SessionFactory, clock: FrozenClock
) -> None:
    assert api.write(line(clock, 1)).status_code == 204
    engine = sessions.kw["bind"]

    @event.listens_for(engine, "before_cursor_execute")
    def refuse(*arguments: object) -> None:
        if "INSERT INTO late_samples" in str(arguments[2]):
            raise OperationalError(str(arguments[2]), {}, Exception("database is locked"))

    response = api.write(line(clock, 90))
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)
    event.remove(engine, "before_cursor_execute", refuse)
    assert api.write(line(clock, 90)).status_code == 204
    assert len(notes(sessions)) == 1
