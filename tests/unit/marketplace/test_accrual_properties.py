"""However the ledger is charged, in parts, killed, corrected late: the sum is that of a replay."""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, select

from core.db import Base, SessionFactory, create_database_engine, create_session_factory
from jobqueue.usage.models import UsageEntry, UsageHour
from marketplace.charges import service
from marketplace.charges.models import BillingLine, ChargedHour
from marketplace.charges.pricing import charge
from marketplace.charges.replay import replay
from marketplace.charges.service import accrue
from marketplace.models import Contract, ContractVersion
from marketplace.prices.models import PriceList
from marketplace.terms import HourlyPrice
from tests.cast import Cast, make_cast
from tests.fixtures.statements import KilledError, killed_at
from tests.unit.marketplace.ledger import (
    A10,
    ALL,
    APRIL,
    H100,
    HOUR,
    MARCH,
    accrue_all,
    add_contract,
    add_use,
    add_version,
    lines,
    terms,
    total,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("accrual") / "vedette.db"
    engine = create_database_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def sessions(engine: Engine) -> SessionFactory:
    return create_session_factory(engine)


@pytest.fixture(scope="module")
def cast(sessions: SessionFactory) -> Cast:
    with sessions.begin() as session:
        return make_cast(session)


USE = st.tuples(
    st.integers(0, 3),  # hour
    st.booleans(),  # rented
    st.sampled_from([H100, A10]),
    st.integers(-3_600_000, 8 * 3_600_000),
)


@pytest.mark.timeout(600)
@settings(suppress_health_check=list(HealthCheck))
@given(
    parts=st.lists(st.lists(USE, max_size=6), min_size=1, max_size=4),
    kills=st.lists(st.integers(1, 30), max_size=4),
    batch=st.integers(1, 4),
    limit=st.integers(1, 5),
    price=st.decimals("0", "99", places=8),
    discount=st.sampled_from(["0", "12.5", "33.33333333"]),
)
def test_any_way_of_charging_comes_to_the_sum_of_the_replay(
    engine: Engine,
    sessions: SessionFactory,
    cast: Cast,
    *,
    parts: list[list[tuple[int, bool, str, int]]],
    kills: list[int],
    batch: int,
    limit: int,
    price: Decimal,
    discount: str,
) -> None:
    with sessions.begin() as session:
        for table in (BillingLine, ChargedHour, UsageEntry, UsageHour, PriceList):
            session.execute(delete(table))
        session.execute(delete(ContractVersion))
        session.execute(delete(Contract))
        night = HourlyPrice(days=(6,), from_hour=2, until_hour=3, price=Decimal("0.12345678"))
        first = terms(str(price), discount_percent=Decimal(discount), hourly_prices=(night,))
        contract = add_contract(session, cast, first)
        add_version(session, contract, terms("7"), applies_from=MARCH + timedelta(minutes=90))
        session.add(
            PriceList(
                tenant_id=cast.acme.id,
                owner=cast.acme.id,
                number=1,
                valid_from=MARCH,
                prices=[{"gpu_model": "", "price": str(price)}, {"gpu_model": "A10", "price": "1"}],
                charged_at=MARCH,
                created_by="",
                created_at=MARCH,
            )
        )
    kill_numbers = iter(kills)
    before, service.BATCH = service.BATCH, batch
    try:
        for part in parts:
            with sessions.begin() as session:
                rented = session.get_one(Contract, contract.id)
                for hour, is_rented, model, milliseconds in part:
                    add_use(
                        session,
                        cast.acme.id,
                        MARCH + hour * HOUR,
                        milliseconds,
                        contract=rented if is_rented else None,
                        gpu_model=model,
                    )
            number = next(kill_numbers, None)
            if number is not None:
                try:
                    with killed_at(engine, number):
                        accrue(sessions, now=APRIL, limit=limit)
                except KilledError:
                    engine.dispose()
            accrue(sessions, now=APRIL, limit=limit)
    finally:
        service.BATCH = before
    accrue_all(sessions)
    result = replay(sessions, ALL)
    assert result.is_equal, result.differences
    assert result.waiting_hours == 0
    with sessions() as session:
        rows = session.scalars(select(UsageEntry)).all()
        assert result.rows == len(rows)
        assert total(session) == result.charged == result.expected
        charged = [line.usage_entry_id for line in lines(session) if line.usage_entry_id]
        assert sorted(charged) == sorted(row.id for row in rows)


@given(
    st.decimals("0", "1000000000", places=8),
    st.lists(st.integers(0, 3_600_000 * 64), min_size=2, max_size=6),
)
def test_an_amount_is_within_half_a_place_and_grows_with_the_time(
    price: Decimal, times: list[int]
) -> None:
    half = Decimal("0.000000005")
    for milliseconds in times:
        exact = price * milliseconds / Decimal(3_600_000)
        assert abs(charge(price, milliseconds) - exact) <= half
        assert charge(price, -milliseconds) == -charge(price, milliseconds)
    for shorter, longer in pairwise(sorted(times)):
        assert charge(price, shorter) <= charge(price, longer)
