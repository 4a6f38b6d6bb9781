"""Paging: every list is answered one page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list: `number` counts from 1, `total` counts all rows of the list."""

    items: Sequence[T]
    total: int
    number: int
    size: int

    @property
    def count(self) -> int:
        """How many pages there are; an empty list has one, empty, page."""
        return max(1, -(-self.total // self.size))


def paginate(
    session: Session, statement: Select[Any], *, number: int = 1, size: int = DEFAULT_PAGE_SIZE
) -> Page[Any]:
    """Return one page of a statement that selects one entity and is already ordered."""
    size = max(1, min(size, MAX_PAGE_SIZE))
    number = max(1, number)
    counted = select(func.count()).select_from(statement.order_by(None).subquery())
    total = session.scalar(counted) or 0
    rows = session.scalars(statement.limit(size).offset((number - 1) * size)).unique().all()
    return Page(items=rows, total=total, number=number, size=size)
