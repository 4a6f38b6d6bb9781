"""Paging of lists, and sorting by the query parameter `sort`, such as `name,-created_at`.

A sort is a comma-separated list of field names; a leading hyphen sorts in descending order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from sqlalchemy import ColumnElement, Select, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import InvalidInputError

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S", bound=Select[*tuple[Any, ...]])
Column = ColumnElement[Any] | InstrumentedAttribute[Any]
Columns = Mapping[str, Column]

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 500
# Databases count rows with 63 bits.
MAX_PAGE_NUMBER = 1_000_000_000


class Paging(TypedDict, total=False):
    """The arguments that all lists accept: the sort, the page's number from 1, and its size."""

    sort: str
    page: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list: `number` counts from 1, `total` counts all rows of the list."""

    items: Sequence[T]
    total: int
    number: int
    size: int

    @property
    def count(self) -> int:
        """The number of pages; an empty list has one empty page."""
        return max(1, -(-self.total // self.size))

    def of(self, items: Sequence[U]) -> "Page[U]":
        """Return the page with other items."""
        return Page(items, self.total, self.number, self.size)


def list_page(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    columns: Columns,
    *,
    last: Column,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Any]:
    """Return a page of a sorted statement; see `sorted_by` and `paginate`."""
    ordered = sorted_by(statement, sort, columns, last=last)
    return paginate(session, ordered, number=page, size=page_size)


def paginate(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    *,
    number: int = 1,
    size: int = DEFAULT_PAGE_SIZE,
) -> Page[Any]:
    """Return a page of an ordered statement: entities, or rows if it selects several."""
    size = max(1, min(size, MAX_PAGE_SIZE))
    number = max(1, min(number, MAX_PAGE_NUMBER))
    plain = statement.order_by(None).with_only_columns(literal(1), maintain_column_froms=True)
    total = session.scalar(select(func.count()).select_from(plain.subquery())) or 0
    rows = session.execute(statement.limit(size).offset((number - 1) * size)).unique().all()
    items = [row[0] if len(row) == 1 else row for row in rows]
    return Page(items=items, total=total, number=number, size=size)


def sorted_by(statement: S, sort: str, columns: Columns, *, last: Column) -> S:
    """Return a statement with its ORDER BY replaced.

    Args:
        statement: the statement to sort.
        sort: the sort; empty leaves the order of the statement.
        columns: the columns by field name.
        last: a unique column as tie-breaker, so that pages never overlap. It has the direction
            of the last field.

    Raises:
        InvalidInputError: a field is unknown or named twice.
    """
    if not sort:
        return statement
    terms = sort_terms(sort, columns)
    orders = [_order(columns[name], is_descending=descending) for name, descending in terms]
    return statement.order_by(None).order_by(*orders, _order(last, is_descending=terms[-1][1]))


def sort_terms(sort: str, columns: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the field names of a sort, each with whether it is descending."""
    terms = [(part.removeprefix("-"), part.startswith("-")) for part in sort.split(",")]
    names = [name for name, _ in terms]
    unknown = [name for name in names if name not in columns]
    if unknown or len(set(names)) < len(names):
        problem = (
            f"Unknown sort field {unknown[0]!r}" if unknown else f"Duplicate field in {sort!r}"
        )
        message = (
            f"{problem}. Use {', '.join(columns)}; a leading hyphen sorts in descending order."
        )
        raise InvalidInputError(message, errors={"sort": [message]})
    return terms


def _order(column: Column, *, is_descending: bool) -> ColumnElement[Any]:
    return column.desc() if is_descending else column.asc()
