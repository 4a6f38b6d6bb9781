"""Changes are told once they are committed, and only then."""

from collections.abc import Collection
from functools import partial

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from core.changes import ANY, ChangeBus, Topic, note_change
from core.db import SessionFactory, changes_of, create_session_factory, transaction


class Told:
    """What listeners were told, in its order."""

    def __init__(self, bus: ChangeBus) -> None:
        self.changes: list[tuple[Topic, set[str]]] = []
        for topic in Topic:
            bus.listen(topic, partial(self.note, topic))

    def note(self, topic: Topic, idents: Collection[str]) -> None:
        self.changes.append((topic, set(idents)))


@pytest.fixture
def memory() -> SessionFactory:
    return create_session_factory(create_engine("sqlite://"))


@pytest.fixture
def told(memory: SessionFactory) -> Told:
    return Told(changes_of(memory))


def begin(session: Session) -> None:
    session.execute(text("SELECT 1"))


def test_changes_are_told_after_the_commit(memory: SessionFactory, told: Told) -> None:
    with transaction(memory) as session:
        note_change(session, Topic.DESIRED, "a")
        note_change(session, Topic.DESIRED, "b", "a")
        note_change(session, Topic.JOB, "j")
        assert told.changes == []
    assert told.changes == [(Topic.DESIRED, {"a", "b"}), (Topic.JOB, {"j"})]


def test_a_second_transaction_of_the_session_tells_its_own_only(
    memory: SessionFactory, told: Told
) -> None:
    with memory() as session:
        note_change(session, Topic.JOB, "first")
        begin(session)
        session.commit()
        begin(session)
        note_change(session, Topic.JOB, "second")
        session.commit()
    assert told.changes == [(Topic.JOB, {"first"}), (Topic.JOB, {"second"})]


def test_a_rolled_back_transaction_tells_nothing_later_either(
    memory: SessionFactory, told: Told
) -> None:
    with memory() as session:
        begin(session)
        note_change(session, Topic.JOB, "a")
        session.rollback()
        begin(session)
        session.commit()
    assert told.changes == []


def test_a_closed_session_forgets_what_it_did_not_commit(
    memory: SessionFactory, told: Told
) -> None:
    session = memory()
    begin(session)
    note_change(session, Topic.JOB, "a")
    session.close()
    begin(session)
    session.commit()
    session.close()
    assert told.changes == []


def test_a_released_savepoint_is_told_with_its_transaction(
    memory: SessionFactory, told: Told
) -> None:
    with transaction(memory) as session:
        note_change(session, Topic.JOB, "outer")
        with session.begin_nested():
            note_change(session, Topic.JOB, "inner")
            with session.begin_nested():
                note_change(session, Topic.JOB, "innermost")
        assert told.changes == []
    assert told.changes == [(Topic.JOB, {"outer", "inner", "innermost"})]


def test_a_rolled_back_savepoint_hides_no_change_of_its_transaction(
    memory: SessionFactory, told: Told
) -> None:
    with transaction(memory) as session:
        note_change(session, Topic.JOB, "outer")
        savepoint = session.begin_nested()
        savepoint.rollback()
        note_change(session, Topic.JOB, "later")
    assert told.changes == [(Topic.JOB, {"outer", "later"})]


def test_what_a_rolled_back_savepoint_noted_waits_for_the_commit(
    memory: SessionFactory, told: Told
) -> None:
    with memory() as session:
        begin(session)
        savepoint = session.begin_nested()
        note_change(session, Topic.JOB, "inner")
        savepoint.rollback()
        assert told.changes == []
        session.rollback()
    assert told.changes == []


def test_each_factory_has_a_bus_of_its_own(told: Told) -> None:
    with transaction(create_session_factory(create_engine("sqlite://"))) as session:
        note_change(session, Topic.JOB, "a")
    assert told.changes == []


def test_a_session_without_a_bus_tells_nobody() -> None:
    with Session(create_engine("sqlite://")) as session:
        begin(session)
        note_change(session, Topic.JOB, "a")
        session.commit()


def test_listeners_check_everything_when_it_changes_whether_all_changes_arrive(
    memory: SessionFactory, told: Told
) -> None:
    bus = changes_of(memory)
    everything = [(topic, {ANY}) for topic in Topic]
    bus.set_complete(False)
    assert told.changes == []
    bus.set_complete(True)
    assert (bus.is_complete, told.changes) == (True, everything)
    bus.set_complete(True)
    bus.set_complete(False)
    assert (bus.is_complete, told.changes) == (False, 2 * everything)
