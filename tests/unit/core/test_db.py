"""The database: instants, transactions, leases and pages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from core.leases import Lease, acquire_lease, release_lease
from core.paging import MAX_PAGE_SIZE, paginate
from tenants.models import LoginSession, Tenant, TenantState
from tests.cast import NOON, Cast

MINUTE = timedelta(minutes=1)


def _lease(session: Session, holder: str, now: datetime = NOON) -> bool:
    return acquire_lease(session, "scheduler", holder=holder, now=now, duration=MINUTE)


def test_instants_come_back_aware_in_utc_with_microseconds(session: Session) -> None:
    local = timezone(timedelta(hours=2))
    at = datetime(2026, 3, 2, 14, 0, 0, 1, tzinfo=local)
    session.add(Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=at))
    session.flush()
    session.expire_all()
    stored = session.scalars(select(Tenant)).one().created_at
    assert (stored, stored.utcoffset()) == (at, timedelta(0))


def test_a_naive_instant_is_refused(session: Session) -> None:
    naive = NOON.replace(tzinfo=None)
    session.add(Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=naive))
    with pytest.raises(StatementError, match="has no time zone"):
        session.flush()


def test_a_failed_transaction_leaves_nothing(sessions: SessionFactory) -> None:
    def fail() -> Iterator[None]:
        with transaction(sessions) as session:
            session.add(Lease(name="x", holder="me", expires_at=NOON))
            session.flush()
            yield
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(fail())
    with transaction(sessions) as session:
        assert session.get(Lease, "x") is None


def test_sqlite_enforces_foreign_keys_and_uses_wal(engine: Engine, session: Session) -> None:
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
    session.add(LoginSession(user_id="nobody", secret_hash="x", created_at=NOON, expires_at=NOON))
    with pytest.raises(IntegrityError):
        session.flush()


def test_one_holder_has_a_lease_until_it_stops_renewing(session: Session) -> None:
    assert _lease(session, "one")
    assert not _lease(session, "two", NOON + MINUTE - timedelta(seconds=1))
    assert _lease(session, "one", NOON + timedelta(seconds=30))
    assert not _lease(session, "two", NOON + MINUTE)
    assert _lease(session, "two", NOON + timedelta(seconds=90))
    assert not _lease(session, "one", NOON + timedelta(seconds=90))


def test_a_released_lease_is_free_immediately(session: Session) -> None:
    _lease(session, "one")
    release_lease(session, "scheduler", holder="two", now=NOON)
    assert not _lease(session, "two")
    release_lease(session, "scheduler", holder="one", now=NOON)
    assert _lease(session, "two")


def _tenants(session: Session, count: int) -> None:
    for number in range(count):
        slug = f"t{number}"
        session.add(Tenant(slug=slug, name=slug, state=TenantState.ACTIVE, created_at=NOON))
    session.flush()


def test_a_list_is_cut_into_pages(session: Session) -> None:
    _tenants(session, 5)
    page = paginate(session, select(Tenant).order_by(Tenant.slug), number=2, size=2)
    assert [t.slug for t in page.items] == ["t2", "t3"]
    assert (page.total, page.count, page.number) == (5, 3, 2)


def test_a_page_beyond_the_end_is_empty_and_odd_numbers_are_mended(session: Session) -> None:
    _tenants(session, 1)
    statement = select(Tenant).order_by(Tenant.slug)
    assert paginate(session, statement, number=9).items == []
    mended = paginate(session, statement, number=-1, size=10_000)
    assert (mended.number, mended.size) == (1, MAX_PAGE_SIZE)


def test_an_empty_list_has_one_empty_page(session: Session) -> None:
    page = paginate(session, select(Tenant).order_by(Tenant.slug))
    assert (page.items, page.total, page.count) == ([], 0, 1)


def test_the_cast_is_there_for_every_session(sessions: SessionFactory, cast: Cast) -> None:
    with transaction(sessions) as session:
        assert session.get_one(Tenant, cast.acme.id).name == "Acme"
    assert [membership.tenant.slug for membership in cast.bob.memberships] == ["acme"]


def test_what_was_done_in_a_savepoint_goes_with_its_transaction(sessions: SessionFactory) -> None:
    def begin_and_fail() -> None:
        with transaction(sessions) as session:
            with session.begin_nested():
                session.add(
                    Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=NOON)
                )
            raise LookupError

    with pytest.raises(LookupError):
        begin_and_fail()
    with sessions() as session:
        assert session.scalars(select(Tenant)).all() == []


def test_a_savepoint_can_be_written_in_whatever_others_write_meanwhile(
    sessions: SessionFactory, cast: Cast
) -> None:
    def rename(name: str) -> None:
        with sessions.begin() as other:
            other.get_one(Tenant, cast.globex.id).name = name

    with ThreadPoolExecutor(1) as pool, sessions.begin() as session:
        with session.begin_nested():
            tenant = session.scalars(select(Tenant).where(Tenant.id == cast.acme.id)).one()
            writing = pool.submit(rename, "Globex 2")
            # It waits for this transaction; without waiting it would have ended by then.
            wait([writing], timeout=0.2)
            tenant.name = "Acme 2"
        session.commit()
        writing.result()
    with sessions() as session:
        names = select(Tenant.name).order_by(Tenant.name)
        assert session.scalars(names).all() == ["Acme 2", "Globex 2"]
