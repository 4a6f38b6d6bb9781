"""Price lists: versions whose past never changes, the longest word of a model, and the default."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from marketplace.charges.replay import replay
from marketplace.prices.models import PriceList
from marketplace.prices.service import (
    PriceListRequest,
    PriceRow,
    create_price_list,
    delete_price_list,
    list_price_lists,
    price_of,
)
from tenants.models import User
from tests.cast import NOON, Cast, scope_of
from tests.unit.marketplace.ledger import A10, ALL, H100, HOUR, accrue_all, add_use, lines

NEXT = NOON + HOUR


def add(session: Session, user: User, *rows: tuple[str, str], **changes: Any) -> PriceList:  # noqa: ANN401 - of a request
    prices = [PriceRow(price, model) for model, price in rows]
    return create_price_list(
        session, scope_of(user), PriceListRequest(prices=prices, **changes), now=NOON
    )


def price(session: Session, cast: Cast, model: str = H100, at: Any = NEXT) -> Decimal | None:  # noqa: ANN401 - a time
    return price_of(session, cast.acme.id, model, at)


def test_the_longest_word_of_a_model_counts(session: Session, cast: Cast) -> None:
    add(session, cast.alice, ("h100", "2.45"), ("NVIDIA H100 80GB", "2.50"), ("", "0.40"))
    assert price(session, cast) == Decimal("2.50")
    assert price(session, cast, "H100 PCIe") == Decimal("2.45")
    assert price(session, cast, A10) == Decimal("0.40")
    assert price(session, cast, at=NOON) is None


def test_a_list_ends_when_the_next_one_begins_or_by_itself(session: Session, cast: Cast) -> None:
    add(session, cast.alice, ("", "1"), valid_until=NEXT + 9 * HOUR)
    add(session, cast.alice, ("", "2"), valid_from=NEXT + 3 * HOUR, valid_until=NEXT + 6 * HOUR)
    prices = [price(session, cast, at=NEXT + hour * HOUR) for hour in (0, 2, 3, 5, 6, 8)]
    assert prices == [*map(Decimal, "1122"), None, None]


def test_a_tenants_own_list_comes_before_the_operators(session: Session, cast: Cast) -> None:
    add(session, cast.olivia, ("", "3"))
    assert price(session, cast) == Decimal(3)
    add(session, cast.alice, ("H100", "2"), valid_from=NEXT + HOUR)
    assert price(session, cast) == Decimal(3)
    assert price(session, cast, at=NEXT + HOUR) == Decimal(2)
    # It has no price of this model, and the default one is not added to it.
    assert price(session, cast, A10, at=NEXT + HOUR) is None


class TestPast:
    def test_hours_that_had_no_price_are_charged_later(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        for hour in (-30, -3, 1):
            add_use(session, cast.acme.id, NOON + hour * HOUR)
        add_use(session, cast.globex.id, NOON - 3 * HOUR)
        session.commit()
        assert accrue_all(sessions) == 0
        add(session, cast.alice, ("", "2"), valid_from=NOON - 24 * HOUR)
        session.commit()
        assert accrue_all(sessions) == 1
        assert [line.at for line in lines(session)] == [NOON - 3 * HOUR]
        add_use(session, cast.acme.id, NOON + 2 * HOUR)
        session.commit()
        accrue_all(sessions)
        assert accrue_all(sessions) == 0

    def test_hours_that_had_one_keep_it(self, session: Session, cast: Cast) -> None:
        add(session, cast.alice, ("", "2"), valid_from=NOON - 24 * HOUR)
        with pytest.raises(InvalidInputError, match="keep their prices"):
            add(session, cast.alice, ("", "3"), valid_from=NOON - 12 * HOUR)
        # Before it, there was none.
        add(session, cast.alice, ("", "1"), valid_from=NOON - 48 * HOUR)
        assert price(session, cast, at=NOON - 25 * HOUR) == Decimal(1)
        assert price(session, cast, at=NOON - 24 * HOUR) == Decimal(2)

    def test_hours_of_the_operators_prices_keep_them(
        self, sessions: SessionFactory, session: Session, cast: Cast
    ) -> None:
        add(session, cast.olivia, ("", "2"), valid_from=NOON - 24 * HOUR)
        with pytest.raises(InvalidInputError, match="keep their prices"):
            add(session, cast.alice, ("", "3"), valid_from=NOON - 12 * HOUR)
        add_use(session, cast.acme.id, NOON - HOUR)
        add_use(session, cast.globex.id, NOON - HOUR)
        session.commit()
        assert accrue_all(sessions) == 2
        assert replay(sessions, ALL).is_equal

    def test_a_list_that_has_begun_is_not_deleted(self, session: Session, cast: Cast) -> None:
        begun = add(session, cast.alice, ("", "2"), valid_from=NOON)
        planned = add(session, cast.alice, ("", "3"))
        with pytest.raises(ConflictError, match="can't be deleted"):
            delete_price_list(session, scope_of(cast.alice), begun.id, now=NOON)
        delete_price_list(session, scope_of(cast.alice), planned.id, now=NOON)
        assert list_price_lists(session, scope_of(cast.alice)) == [begun]


@pytest.mark.parametrize(
    ("rows", "changes", "field"),
    [
        ((), {}, "prices"),
        ((("", "-1"),), {}, "prices.0.price"),
        ((("", "1.123456789"),), {}, "prices.0.price"),
        ((("", "NaN"),), {}, "prices.0.price"),
        # In less than a day, 4 GPUs would cost more than 64 bits hold: no month closed then.
        ((("", "1000000000"),), {}, "prices.0.price"),
        ((("", "1"), ("H100", "1"), ("h100", "2")), {}, "prices.2.gpu_model"),
        ((("x" * 101, "1"),), {}, "prices.0.gpu_model"),
        ((("", "1"),), {"valid_from": NOON + timedelta(minutes=30)}, "valid_from"),
        ((("", "1"),), {"valid_from": NOON + timedelta(days=4000)}, "valid_from"),
        ((("", "1"),), {"valid_until": NEXT}, "valid_until"),
        ((("", "1"),), {"note": "x" * 201}, "note"),
        ([("", "1")] * 101, {}, "prices"),
    ],
)
def test_what_is_wrong_is_named(
    session: Session,
    cast: Cast,
    rows: tuple[tuple[str, str], ...],
    changes: dict[str, Any],
    field: str,
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        add(session, cast.alice, *rows, **changes)
    assert field in caught.value.errors


def test_another_tenant_and_a_member_can_not_change_them(session: Session, cast: Cast) -> None:
    row, default = add(session, cast.alice, ("", "1")), add(session, cast.olivia, ("", "1"))
    with pytest.raises(ForbiddenError):
        add(session, cast.bob, ("", "2"))
    with pytest.raises(NotFoundError):
        delete_price_list(session, scope_of(cast.charlie), row.id, now=NOON)
    with pytest.raises(ForbiddenError, match="operator's"):
        delete_price_list(session, scope_of(cast.charlie), default.id, now=NOON)
    assert list_price_lists(session, scope_of(cast.charlie)) == [default]
