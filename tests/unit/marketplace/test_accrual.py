"""Each row of the ledger is charged once: prices by hour, discounts, minimum times, corrections."""

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.models import Attempt
from marketplace.charges import service
from marketplace.charges.models import LineKind
from marketplace.charges.replay import replay
from marketplace.charges.service import accrue
from marketplace.models import Contract
from marketplace.terms import HourlyPrice
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import start
from tests.unit.marketplace.ledger import (
    A10,
    ALL,
    GPU_HOUR,
    H100,
    HOUR,
    MARCH,
    accrue_all,
    add_contract,
    add_use,
    add_version,
    lines,
    record_hour,
    shorten,
    terms,
    total,
)


@pytest.fixture
def contract(session: Session, cast: Cast) -> Contract:
    return add_contract(session, cast, terms("2.00"))


def test_a_row_costs_its_time_at_the_price_of_the_contract(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    # 2 GPUs for 20 minutes: 2/3 GPU-hour at 2.00.
    add_use(session, cast.acme.id, MARCH, 2_400_000, contract=contract)
    session.commit()
    assert accrue_all(sessions) == 1
    [line] = lines(session)
    assert line.amount == Decimal("1.33333333")
    assert (line.tenant_id, line.provider_id) == (cast.acme.id, cast.globex.id)
    assert (line.kind, line.unit_price, line.version_number) == (LineKind.USAGE, Decimal(2), 1)
    assert (line.at, line.gpu_milliseconds, line.gpu_model) == (MARCH, 2_400_000, H100)


def test_a_row_is_charged_once_and_its_correction_on_top(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    entry = add_use(session, cast.acme.id, MARCH, contract=contract)
    session.commit()
    assert accrue_all(sessions) == 1
    assert accrue_all(sessions) == 0
    add_use(
        session,
        cast.acme.id,
        MARCH,
        -GPU_HOUR // 4,
        contract=contract,
        attempt_id=entry.attempt_id,
    )
    session.commit()
    assert accrue_all(sessions) == 1
    assert [line.amount for line in lines(session)] == [Decimal("2.00"), Decimal("-0.50")]


def test_prices_by_hour_are_of_the_contracts_time_zone(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    # 2026-03-01 is a Sunday; 23:00 UTC is Monday 00:00 in Oslo.
    night = HourlyPrice(days=(0,), from_hour=0, until_hour=6, price=Decimal("0.75"))
    contract = add_contract(
        session, cast, terms("2.00", hourly_prices=(night,), time_zone="Europe/Oslo")
    )
    add_use(session, cast.acme.id, MARCH + 22 * HOUR, contract=contract)
    add_use(session, cast.acme.id, MARCH + 23 * HOUR, contract=contract)
    session.commit()
    accrue_all(sessions)
    assert [line.amount for line in lines(session)] == [Decimal("2.00"), Decimal("0.75")]


def test_a_new_version_applies_from_the_next_full_hour_and_the_first_one_at_once(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    begun_at = MARCH + timedelta(minutes=20)
    contract = add_contract(session, cast, terms("2.00"), starts_at=begun_at)
    add_version(session, contract, terms("3.00"), applies_from=begun_at + HOUR)
    for hour in range(3):
        add_use(session, cast.acme.id, MARCH + hour * HOUR, contract=contract)
    session.commit()
    accrue_all(sessions)
    charged = [(line.unit_price, line.version_number) for line in lines(session)]
    assert charged == [(Decimal(2), 1), (Decimal(2), 1), (Decimal(3), 2)]


def test_a_discount_is_a_line_of_its_own(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    contract = add_contract(session, cast, terms("0.99", discount_percent=Decimal("12.5")))
    add_use(session, cast.acme.id, MARCH, 1_000_000, contract=contract)
    session.commit()
    assert accrue_all(sessions) == 2
    usage, discount = sorted(lines(session), key=lambda line: -line.amount)
    assert usage.amount == Decimal("0.275")
    assert discount.amount == Decimal("-0.034375")
    assert (discount.kind, discount.note) == (LineKind.DISCOUNT, "12.5 %")


def test_a_row_without_a_price_has_no_line_and_its_hour_is_done(
    sessions: SessionFactory, session: Session, cast: Cast
) -> None:
    add_use(session, cast.acme.id, MARCH)
    session.commit()
    assert accrue_all(sessions) == 0
    assert replay(sessions, ALL).waiting_hours == 0
    assert replay(sessions, ALL).is_equal


def test_a_limit_ends_a_call_and_the_next_one_continues(
    sessions: SessionFactory,
    session: Session,
    cast: Cast,
    contract: Contract,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "BATCH", 2)
    for hour in range(4):
        add_use(session, cast.acme.id, MARCH + hour * HOUR, contract=contract)
    session.commit()
    assert accrue(sessions, now=NOON, limit=2) == 2
    assert replay(sessions, ALL).waiting_hours == 4
    assert accrue(sessions, now=NOON, limit=2) == 2
    assert accrue(sessions, now=NOON, limit=2) == 0
    assert replay(sessions, ALL).waiting_hours == 0
    assert total(session) == Decimal("8.00")


def test_a_row_that_commits_late_is_not_missed(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    """Its id and time are those of its creation, long before its transaction ends."""
    early = add_use(session, cast.acme.id, MARCH, contract=contract, now=MARCH)
    session.expunge(early)
    session.rollback()
    contract = add_contract(session, cast, terms("2.00"))
    add_use(session, cast.acme.id, MARCH, contract=contract)
    session.commit()
    assert accrue_all(sessions) == 1
    with sessions.begin() as late:
        values = {column: getattr(early, column) for column in early.__table__.c.keys()}  # noqa: SIM118
        late.add(type(early)(**values | {"contract_id": contract.id}))
        record_hour(late, MARCH)
    assert accrue_all(sessions) == 1
    assert total(session) == Decimal("4.00")


class TestMinimum:
    @pytest.fixture
    def attempt(self, session: Session, cast: Cast) -> Attempt:
        contract = add_contract(
            session, cast, terms("3.60", min_seconds=600, discount_percent=Decimal(10))
        )
        attempt = start(session, cast, gpus=2)
        attempt.contract_id = contract.id
        return attempt

    def use(
        self, session: Session, attempt: Attempt, milliseconds: int, *, at: datetime = MARCH
    ) -> None:
        contract = session.get_one(Contract, attempt.contract_id)
        add_use(
            session,
            attempt.tenant_id,
            at,
            milliseconds,
            contract=contract,
            attempt_id=attempt.id,
        )

    def test_a_short_attempt_is_charged_for_the_minimum(
        self, sessions: SessionFactory, session: Session, attempt: Attempt
    ) -> None:
        shorten(attempt, begun_at=MARCH, seconds=60)
        self.use(session, attempt, 120_000)
        session.commit()
        accrue_all(sessions)
        [minimum] = [line for line in lines(session) if line.kind is LineKind.MINIMUM]
        # 2 GPUs for 540 seconds more, at 3.60 less 10 %.
        assert (minimum.gpu_milliseconds, minimum.unit_price) == (1_080_000, Decimal("3.24"))
        assert minimum.amount == Decimal("0.972")
        assert total(session) == Decimal("1.08")  # 2 GPUs * 600 s * 3.24 / 3600
        assert replay(sessions, ALL).is_equal

    def test_a_long_one_and_one_that_runs_are_not(
        self, sessions: SessionFactory, session: Session, attempt: Attempt
    ) -> None:
        self.use(session, attempt, 2 * GPU_HOUR)
        attempt.assigned_at = MARCH
        session.commit()
        accrue_all(sessions)
        shorten(attempt, begun_at=MARCH, seconds=600)
        self.use(session, attempt, 1_200_000 - 2 * GPU_HOUR)
        session.commit()
        accrue_all(sessions)
        assert [line for line in lines(session) if line.kind is LineKind.MINIMUM] == []
        assert total(session) == Decimal("1.08")

    def test_an_end_that_is_corrected_corrects_the_minimum(
        self, sessions: SessionFactory, session: Session, attempt: Attempt
    ) -> None:
        shorten(attempt, begun_at=MARCH, seconds=60)
        self.use(session, attempt, 120_000)
        session.commit()
        accrue_all(sessions)
        shorten(attempt, begun_at=MARCH, seconds=1200)
        self.use(session, attempt, 2_280_000)
        session.commit()
        accrue_all(sessions)
        minimums = [line.amount for line in lines(session) if line.kind is LineKind.MINIMUM]
        assert minimums == [Decimal("0.972"), Decimal("-0.972")]
        assert total(session) == Decimal("2.16")
        assert replay(sessions, ALL).is_equal

    def test_a_begin_that_is_corrected_in_an_earlier_hour_than_the_end_does(
        self, sessions: SessionFactory, session: Session, attempt: Attempt
    ) -> None:
        shorten(attempt, begun_at=MARCH + timedelta(minutes=59), seconds=120)
        self.use(session, attempt, 120_000)
        self.use(session, attempt, 120_000, at=MARCH + HOUR)
        session.commit()
        accrue_all(sessions)
        shorten(attempt, begun_at=MARCH + timedelta(minutes=51), seconds=600)
        self.use(session, attempt, 960_000)
        session.commit()
        accrue_all(sessions)
        minimums = [line.amount for line in lines(session) if line.kind is LineKind.MINIMUM]
        assert minimums == [Decimal("0.864"), Decimal("-0.864")]
        assert replay(sessions, ALL).is_equal


def test_a_replay_finds_a_line_that_was_changed(
    sessions: SessionFactory, session: Session, cast: Cast, contract: Contract
) -> None:
    add_use(session, cast.acme.id, MARCH, contract=contract)
    add_use(session, cast.acme.id, MARCH, contract=contract, gpu_model=A10)
    session.commit()
    accrue_all(sessions)
    lines(session)[0].amount += Decimal("0.00000001")
    session.commit()
    result = replay(sessions, ALL)
    assert (result.rows, result.difference_count) == (2, 1)
    [difference] = result.differences
    assert "EUR 2.00 expected, EUR 2.00000001 charged" in difference.text("EUR")
