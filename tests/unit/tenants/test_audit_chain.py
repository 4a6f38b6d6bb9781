"""The chains of the audit log: whatever is changed, taken out, put in or cut off shows."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import InvalidInputError
from core.ids import new_id
from tenants.auditing.chain import GENESIS_HASH, Head, entry_hash, verify, verify_all
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting, record
from tenants.models import PLATFORM_CHAIN, AuditEntry, AuditHead, Tenant, TenantState
from tests.cast import NOON, Cast, FrozenClock

OLIVIA = Actor(name="olivia@vedette.example", via="browser")
ENTRIES = 6

Tamper = Callable[[Session], object]


@pytest.fixture
def log(sessions: SessionFactory, clock: FrozenClock) -> SessionFactory:
    """Six entries of the platform."""
    audited = acting(sessions, OLIVIA, clock=clock)
    for number in range(ENTRIES):
        with audited.begin() as session:
            tell(session, f"thing {number}")
    return audited


def tell(session: Session, name: str, *, chain: str | None = None) -> None:
    record(
        session,
        action="thing.made",
        target_kind="thing",
        target_id=None,
        target_name=name,
        tenant_id=chain,
        after={"name": name, "größe": 1.5, "tags": ["ä", "\N{ROCKET}"]},
        now=NOON,
    )


def entry(number: int) -> tuple[ColumnElement[bool], ...]:
    return (AuditEntry.chain == PLATFORM_CHAIN, AuditEntry.number == number)


def fault(sessions: SessionFactory) -> str:
    with sessions() as session:
        return verify(session, PLATFORM_CHAIN).problem


def test_entries_are_numbered_and_contain_the_previous_hash(log: SessionFactory) -> None:
    with log() as session:
        rows = session.scalars(select(AuditEntry).order_by(AuditEntry.number)).all()
        head = session.get_one(AuditHead, PLATFORM_CHAIN)
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0].previous_hash == GENESIS_HASH
    assert all(later.previous_hash == earlier.hash for earlier, later in pairwise(rows))
    assert (head.number, head.hash) == (6, rows[-1].hash)


def test_a_whole_chain_is_found_whole(log: SessionFactory) -> None:
    with log() as session:
        verdict = verify(session, PLATFORM_CHAIN)
    assert (verdict.problem, verdict.head.number) == ("", ENTRIES)


@pytest.mark.parametrize(
    "column",
    [
        "actor_name",
        "via",
        "action",
        "target_kind",
        "target_id",
        "target_name",
        "reason",
        "address",
        "user_agent",
        "actor_id",
        "id",
    ],
)
def test_a_changed_text_shows(log: SessionFactory, column: str) -> None:
    with log.begin() as session:
        session.execute(update(AuditEntry).where(*entry(3)).values({column: "forged"}))
    assert fault(log) == "Entry 3 was changed."


def test_a_changed_value_and_a_changed_instant_show(log: SessionFactory) -> None:
    with log.begin() as session:
        session.execute(update(AuditEntry).where(*entry(5)).values(at=NOON.replace(hour=3)))
    assert fault(log) == "Entry 5 was changed."
    with log.begin() as session:
        session.execute(update(AuditEntry).where(*entry(2)).values(after={"name": "forged"}))
    assert fault(log) == "Entry 2 was changed."


def test_an_entry_with_a_forged_hash_breaks_the_chain(log: SessionFactory) -> None:
    with log.begin() as session:
        row = session.scalars(select(AuditEntry).where(*entry(3))).one()
        row.target_name = "forged"
        values = {column.name: getattr(row, column.name) for column in AuditEntry.__table__.columns}
        row.hash = entry_hash(values)
    assert fault(log) == "Entry 4 does not follow entry 3."


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ((1,), "Entry 1 is missing."),
        ((3,), "Entry 3 is missing."),
        ((3, 4), "Entries 3 to 4 are missing."),
        ((5, 6), "Entries 5 to 6 are missing."),
        ((1, 2, 3, 4, 5, 6), "Entries 1 to 6 are missing."),
    ],
)
def test_what_was_removed_shows_at_the_end_too(
    log: SessionFactory, removed: tuple[int, ...], said: str
) -> None:
    with log.begin() as session:
        session.execute(delete(AuditEntry).where(AuditEntry.number.in_(removed)))
    assert fault(log) == said


def test_a_head_that_was_removed_or_set_back_shows(log: SessionFactory) -> None:
    with log.begin() as session:
        session.get_one(AuditHead, PLATFORM_CHAIN).number = 4
    assert fault(log) == "Entries 5 to 6 are after the chain's head."
    with log.begin() as session:
        session.get_one(AuditHead, PLATFORM_CHAIN).number = ENTRIES
        session.get_one(AuditHead, PLATFORM_CHAIN).hash = "0" * 64
    assert re.search("head.*last entry", fault(log) or "")
    with log.begin() as session:
        session.execute(delete(AuditHead))
    assert re.search("head.*missing", fault(log) or "")


def test_a_truncated_chain_with_a_forged_head_is_detected_by_a_stored_head(
    log: SessionFactory,
) -> None:
    with log() as session:
        stored_head = verify(session, PLATFORM_CHAIN).head
    with log.begin() as session:
        session.execute(delete(AuditEntry).where(AuditEntry.number > 4))
        last = session.scalars(select(AuditEntry).where(*entry(4))).one()
        head = session.get_one(AuditHead, PLATFORM_CHAIN)
        head.number, head.hash = last.number, last.hash
    assert fault(log) == ""
    with log() as session:
        assert (
            verify(session, PLATFORM_CHAIN, known_heads=[stored_head]).problem
            == "Entries 5 to 6 are missing."
        )
    with log.begin() as session:
        tell(session, "another history")
        tell(session, "and more of it")
    with log() as session:
        assert "rewritten" in verify(session, PLATFORM_CHAIN, known_heads=[stored_head]).problem


def test_a_stored_head_still_fits_after_more_was_written(log: SessionFactory) -> None:
    with log() as session:
        stored_head = Head.parse(str(verify(session, PLATFORM_CHAIN).head))
    with log.begin() as session:
        tell(session, "later")
    with log() as session:
        assert verify(session, PLATFORM_CHAIN, known_heads=[stored_head]).problem == ""


def test_a_tenants_log_that_is_gone_as_a_whole_shows(log: SessionFactory, cast: Cast) -> None:
    del cast
    with log.begin() as session:
        tenant = Tenant(
            id=new_id(), slug="initech", name="Initech", state=TenantState.ACTIVE, created_at=NOON
        )
        session.add(tenant)
    with log.begin() as session:
        session.execute(delete(AuditEntry).where(AuditEntry.chain == tenant.id))
        session.execute(delete(AuditHead).where(AuditHead.chain == tenant.id))
    with log() as session:
        faults = {result.head.chain: result.problem for result in verify_all(session)}
    assert faults == {PLATFORM_CHAIN: "", tenant.id: "The chain is missing."}


def test_a_forged_line_of_a_head_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not a head of a chain"):
        Head.parse("platform six abc")
