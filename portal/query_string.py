"""Query parameters of list pages."""

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


def chosen(kind: type[E], name: str = "state") -> E | None:
    """Return the enum member in a parameter, or None if it is missing or unknown."""
    try:
        return kind(request.args.get(name, ""))
    except ValueError:
        return None
