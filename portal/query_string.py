"""Query parameters of list pages."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from flask import request

E = TypeVar("E", bound=StrEnum)

PAGE_SIZE = 25


def page_number(name: str = "page") -> int:
    """Return a page parameter, or 1 if it is missing or invalid."""
    return max(1, request.args.get(name, 1, type=int))


def search_text() -> str:
    """Return `?search=`."""
    return request.args.get("search", "").strip()


def sort_order() -> str:
    """Return `?sort=`: a column, after `-` in descending order."""
    return request.args.get("sort", "")


def day(name: str, *, days: int = 0) -> datetime | None:
    """Return the beginning of a day in the address, in UTC; None if it is not a date.

    Args:
        name: the parameter.
        days: how many days later, 1 for the end of the day.
    """
    try:
        start = datetime.fromisoformat(request.args.get(name, ""))
        return start.replace(tzinfo=UTC) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None


def chosen(kind: type[E], name: str = "state") -> E | None:
    """Return the enum member in a parameter, or None if it is missing or unknown."""
    try:
        return kind(request.args.get(name, ""))
    except ValueError:
        return None
