"""Months of billing: from the first of a month to the next, in UTC."""

from datetime import UTC, datetime

from core.errors import InvalidInputError

_MONTHS = 12


def month_of(at: datetime) -> datetime:
    """Return the first moment of a time's month, in UTC."""
    at = at.astimezone(UTC)
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(month_at: datetime) -> datetime:
    """Return the first moment of the next month."""
    year, month = divmod(month_at.year * _MONTHS + month_at.month, _MONTHS)
    return month_at.replace(year=year, month=month + 1)


def previous_month(month_at: datetime) -> datetime:
    """Return the first moment of the month before."""
    year, month = divmod(month_at.year * _MONTHS + month_at.month - 2, _MONTHS)
    return month_at.replace(year=year, month=month + 1)


def parse_month(text: str) -> datetime:
    """Return the month `2026-03`.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        message = f"{text[:20]!r} is no month; enter it as 2026-03."
        raise InvalidInputError(message, errors={"month": [message]}) from None
