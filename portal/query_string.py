"""Query parameters of list pages.

A page ignores a value that it doesn't know, and says so; see `portal.middleware.parameters`.
"""

from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import TypedDict, TypeVar

from flask import g, request

from core.errors import InvalidInputError
from portal.time_zone import current_zone, in_reader_zone

E = TypeVar("E", bound=StrEnum)

PAGE_SIZE = 25
_MOST_DIGITS = 9


def page_number(name: str = "page") -> int:
    """Return a page parameter, or 1 if it is missing or invalid."""
    text = request.args.get(name, "1")
    if text.isdecimal() and len(text) <= _MOST_DIGITS:
        return max(1, int(text))
    ignore_value(name, text, "Use a number from 1.")
    return 1


class AskedPage(TypedDict):
    """The arguments of a list that choose its page."""

    page: int
    page_size: int


def asked_page(name: str = "page") -> AskedPage:
    """Return the page of a list that the address asks for."""
    return {"page": page_number(name), "page_size": PAGE_SIZE}


def value_errors() -> list[str]:
    """Return the errors of values that the current request has ignored."""
    errors: list[str] = g.get("value_errors", [])
    return errors


def ignore_value(name: str, text: str, advice: str) -> None:
    """Note that a value in the address is ignored, so that the page says so."""
    if text:
        error = f"Invalid {name} {text[:100]!r}. {advice}"
        g.value_errors = [*dict.fromkeys([*value_errors(), error])]


def search_text() -> str:
    """Return `?search=`."""
    return request.args.get("search", "").strip()


def sort_order() -> str:
    """Return `?sort=`: a column, after `-` in descending order."""
    return request.args.get("sort", "")


def day(name: str, *, days: int = 0) -> datetime | None:
    """Return the beginning of a day in the address, in the reader's time zone; None without one.

    Args:
        name: the parameter.
        days: how many days later, 1 for the end of the day.

    Raises:
        InvalidInputError: it is not a day.
    """
    text = request.args.get(name, "")
    try:
        start = datetime.combine(date.fromisoformat(text), time(), current_zone()) if text else None
        return start and (start + timedelta(days=days)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        message = f"{text[:50]!r} is not a day. Write it as 2026-03-02."
        raise InvalidInputError(message, errors={name: [message]}) from error


def instant(name: str) -> datetime | None:
    """Return an instant in the address; without an offset, it is in the reader's time zone.

    Raises:
        InvalidInputError: it is not an instant in ISO 8601.
    """
    text = request.args.get(name, "").strip()
    try:
        return in_reader_zone(datetime.fromisoformat(text)) if text else None
    except (ValueError, OverflowError) as error:
        message = f"{text[:50]!r} is not a valid time. Use ISO 8601, such as 2026-03-02T12:00."
        raise InvalidInputError(message, errors={name: [message]}) from error


def chosen(kind: type[E], name: str = "state") -> E | None:
    """Return the enum member in a parameter, or None if it is missing or unknown."""
    text = request.args.get(name, "")
    try:
        return kind(text)
    except ValueError:
        ignore_value(name, text, f"Use {', '.join(kind)}.")
        return None
