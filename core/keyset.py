"""Keyset paging: pages that begin after a row instead of at an offset.

They stay as they are while rows are added before them; a late page costs as much as the first.
A cursor holds the sort's values of a row, so that the row itself may be gone.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Select, and_, false, func, literal, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.errors import InvalidInputError
from core.paging import MAX_PAGE_SIZE, Columns, sort_terms

T = TypeVar("T")
U = TypeVar("U")
Key = tuple[InstrumentedAttribute[Any], bool]
# The values of each type that a cursor may hold.
_KINDS: dict[type, Any] = {
    int: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    datetime: Annotated[datetime, msgspec.Meta(tz=True)],
}


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[T]):
    """A page of a list with the cursors of its neighbors; `total` counts all rows of the list."""

    items: Sequence[T]
    total: int
    next: str | None
    previous: str | None

    def of(self, items: Sequence[U]) -> "KeysetPage[U]":
        """Return the page with other items."""
        return KeysetPage(items, self.total, self.next, self.previous)


def keyset_page(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    columns: Columns,
    *,
    last: InstrumentedAttribute[Any],
    sort: str = "",
    size: int,
    after: str = "",
    before: str = "",
) -> KeysetPage[Any]:
    """Return the first page of entities, or the one after or before a cursor.

    Args:
        session: the session.
        statement: selects the entities.
        columns: attributes of the entity by field name.
        last: a unique attribute as tie-breaker, with the direction of the last field.
        sort: field names of `columns`; empty sorts by `last`, descending.
        size: rows of a page.
        after: the cursor `next` of the previous page.
        before: the cursor `previous` of the following page.

    Raises:
        InvalidInputError: the sort or the cursor is invalid, or the cursor is of another sort.
    """
    terms = sort_terms(sort, columns) if sort else []
    keys: list[Key] = [(columns[name], descends) for name, descends in terms]  # type: ignore[misc] # attributes
    keys.append((last, terms[-1][1] if terms else True))
    size = max(1, min(size, MAX_PAGE_SIZE))
    plain = statement.order_by(None).with_only_columns(literal(1), maintain_column_froms=True)
    total = session.scalar(select(func.count()).select_from(plain.subquery())) or 0
    is_backward = bool(before) and not after
    if after or before:
        name = "before" if is_backward else "after"
        values = _values(before if is_backward else after, sort, keys, name)
        statement = statement.where(_is_beyond(keys, values, is_backward=is_backward))
    orders = [key.desc() if descends != is_backward else key.asc() for key, descends in keys]
    statement = statement.order_by(None).order_by(*orders).limit(size + 1)
    rows = list(session.scalars(statement).unique())
    has_more, rows = len(rows) > size, rows[:size]
    if is_backward:
        rows.reverse()
    follows, precedes = (True, has_more) if is_backward else (has_more, bool(after))
    return KeysetPage(
        items=rows,
        total=total,
        next=_cursor(rows[-1], sort, keys) if rows and follows else None,
        previous=_cursor(rows[0], sort, keys) if rows and precedes else None,
    )


def _is_beyond(
    keys: Sequence[Key], values: Sequence[Any], *, is_backward: bool
) -> ColumnElement[bool]:
    """Return the condition of rows after a row in the order, or before it."""
    choices = []
    for index, ((key, descends), value) in enumerate(zip(keys, values, strict=True)):
        equal = [
            column.is_(None) if bound is None else column == bound
            for (column, _), bound in zip(keys[:index], values[:index], strict=True)
        ]
        choices.append(and_(*equal, _is_past(key, value, descends=descends != is_backward)))
    return or_(*choices)


def _is_past(
    key: InstrumentedAttribute[Any], value: object, *, descends: bool
) -> ColumnElement[bool]:
    """Compare with a value; NULL is the least, as in SQLite and MySQL."""
    if value is None:
        return false() if descends else key.is_not(None)
    return or_(key < value, key.is_(None)) if descends else key > value


def _cursor(row: object, sort: str, keys: Sequence[Key]) -> str:
    values = [sort, *(getattr(row, key.key) for key, _ in keys)]
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def _values(cursor: str, sort: str, keys: Sequence[Key], name: str) -> list[Any]:
    kinds = [_KINDS.get(key.type.python_type, key.type.python_type) for key, _ in keys]
    shape: Any = tuple[(str, *(kind | None for kind in kinds))]  # type: ignore[misc] # dynamic
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        data = base64.b64decode(padded, altchars="-_", validate=True)
        of_sort, *values = msgspec.json.decode(data, type=shape)
    except (ValueError, binascii.Error):
        of_sort, values = "", []
    if of_sort == sort and values:
        return list(values)
    message = f"{name} is not a cursor of this list and sort. Start again without {name}."
    raise InvalidInputError(message, errors={name: [message]})
