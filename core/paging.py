"""Paging: every list is answered one page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, literal, select
from sqlalchemy.orm import Session

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 500
# Databases count rows in 63 bits.
MAX_PAGE_NUMBER = 1_000_000_000


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

    def of(self, items: Sequence[U]) -> "Page[U]":
        """Return the page with other items in place of its own."""
        return Page(items, self.total, self.number, self.size)


def paginate(
    session: Session, statement: Select[Any], *, number: int = 1, size: int = DEFAULT_PAGE_SIZE
) -> Page[Any]:
    """Return one page of a statement that selects one entity and is already ordered."""
    page = paginate_rows(session, statement, number=number, size=size)
    return page.of([row[0] for row in page.items])


def paginate_rows(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    *,
    number: int = 1,
    size: int = DEFAULT_PAGE_SIZE,
) -> Page[Any]:
    """Return one page of a statement's rows; it is already ordered."""
    size = max(1, min(size, MAX_PAGE_SIZE))
    number = max(1, min(number, MAX_PAGE_NUMBER))
    plain = statement.order_by(None).with_only_columns(literal(1), maintain_column_froms=True)
    total = session.scalar(select(func.count()).select_from(plain.subquery())) or 0
    rows = session.execute(statement.limit(size).offset((number - 1) * size)).unique().all()
    return Page(items=rows, total=total, number=number, size=size)
