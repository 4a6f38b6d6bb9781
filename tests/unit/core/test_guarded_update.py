"""Guarded updates change a row only while it is in the expected state."""

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.db import changed_one, changed_rows
from core.leases import Lease
from tests.cast import NOON


@pytest.fixture
def lease(session: Session) -> Lease:
    lease = Lease(name="scheduler", holder="first", expires_at=NOON)
    session.add(lease)
    session.flush()
    return lease


def test_the_first_writer_changes_the_row(session: Session, lease: Lease) -> None:
    claim = update(Lease).where(Lease.name == "scheduler", Lease.holder == "first")
    assert changed_one(session, claim.values(holder="second"))
    assert lease.holder == "second"


def test_a_later_writer_is_refused(session: Session, lease: Lease) -> None:
    claim = update(Lease).where(Lease.name == "scheduler", Lease.holder == "first")
    assert changed_one(session, claim.values(holder="second"))
    assert not changed_one(session, claim.values(holder="third"))
    assert lease.holder == "second"


def test_a_change_to_the_same_values_counts(session: Session, lease: Lease) -> None:
    same = update(Lease).where(Lease.name == lease.name).values(holder=lease.holder)
    assert changed_one(session, same)


def test_loaded_objects_stay_as_they_are_on_request(session: Session, lease: Lease) -> None:
    claim = update(Lease).where(Lease.name == "scheduler").values(holder="second")
    assert changed_one(session, claim, synchronize_session=False)
    assert lease.holder == "first"
    session.refresh(lease)
    assert lease.holder == "second"


def test_deleted_rows_are_counted(session: Session, lease: Lease) -> None:
    session.add(Lease(name="other", holder="first", expires_at=NOON))
    session.flush()
    assert changed_rows(session, delete(Lease).where(Lease.holder == lease.holder)) == 2
