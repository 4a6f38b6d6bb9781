"""Exact amounts of money: decimals with eight places, stored as integers on every database.

Amounts are never floats. What is computed from prices keeps eight places; only totals that somebody
pays are rounded to cents, half up.
"""

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation

from sqlalchemy import BigInteger, Dialect, TypeDecorator

PLACES = 8
CENT = Decimal("0.01")
ZERO = Decimal(0)
MAX_AMOUNT = Decimal(10**9)
"""Larger ones would not fit into 64 bits when they are added up."""
_UNIT = Decimal(1).scaleb(-PLACES)


class Amount(TypeDecorator[Decimal]):
    """A column of money in the currency of the portal, or of a price, as 10^-8 of it."""

    impl = BigInteger
    cache_ok = True
    python_type = Decimal

    def process_bind_param(self, value: Decimal | None, _dialect: Dialect) -> int | None:
        """Return the stored integer; reject floats and digits that would be lost."""
        if value is None:
            return None
        if not isinstance(value, Decimal) or value != exact(value):
            raise ValueError(f"{value!r} is no decimal with at most {PLACES} places")
        return int(value.scaleb(PLACES))

    def process_result_value(self, value: int | None, _dialect: Dialect) -> Decimal | None:
        """Return the decimal."""
        return None if value is None else Decimal(value).scaleb(-PLACES)


def exact(value: Decimal) -> Decimal:
    """Return a value rounded to the places that are stored, half to even."""
    return value.quantize(_UNIT, rounding=ROUND_HALF_EVEN)


def cents(value: Decimal) -> Decimal:
    """Return a value rounded to cents, half up: what somebody pays."""
    return value.quantize(CENT, rounding=ROUND_HALF_UP)


def parse_amount(text: str) -> Decimal:
    """Return an amount such as `2.45`, as users enter prices.

    Raises:
        ValueError: it is no plain decimal, is negative or too large, or has too many places; the
            text says which.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text[:50]!r} is no amount; enter digits such as 2.45.") from error
    if not value.is_finite() or not 0 <= value <= MAX_AMOUNT:
        raise ValueError(f"{text[:50]!r} is out of range; enter 0 to {MAX_AMOUNT:,}.")
    if value != exact(value):
        raise ValueError(f"{text[:50]!r} has more than {PLACES} decimal places.")
    return exact(value)


def plain(value: Decimal) -> str:
    """Return a decimal as documents have it: all digits, without trailing zeros, such as `2.5`."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_amount(value: Decimal, currency: str) -> str:
    """Return an amount as pages show it, in cents or as exact as it is: `EUR 1,240.00`."""
    rounded = cents(value)
    text = f"{rounded:,}" if rounded == value else f"{value.normalize():,f}"
    return f"{currency} {text}"


def amount_text(value: Decimal) -> str:
    """Return an amount as programs read it, in cents or as exact as it is: `1240.00`."""
    rounded = cents(value)
    return f"{rounded if rounded == value else value.normalize():f}"
