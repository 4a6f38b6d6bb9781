"""The query string of list pages: page number, search text and a choice of states."""

from enum import StrEnum
from typing import TypeVar

from flask import request

E = TypeVar("E", bound=StrEnum)

PAGE_SIZE = 25


def page_number(name: str = "page") -> int:
    """Return `?page=`, or 1 where it is missing or nonsense.

    Args:
        name: what it is called where the page has another list too.
    """
    return max(1, request.args.get(name, 1, type=int))


def search_text() -> str:
    """Return `?search=`."""
    return request.args.get("search", "").strip()


def chosen(kind: type[E], name: str = "state") -> E | None:
    """Return the member that the query string names, or None for all."""
    try:
        return kind(request.args.get(name, ""))
    except ValueError:
        return None
