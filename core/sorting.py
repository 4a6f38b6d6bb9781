"""Sorting of lists by what the one who asks names: `name,-created_at`.

A *sort* is a list of names with commas between; a hyphen before a name turns its order round.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute

from core.errors import InvalidInputError

Column = ColumnElement[Any] | InstrumentedAttribute[Any]
Columns = Mapping[str, Column]
S = TypeVar("S", bound=Select[*tuple[Any, ...]])


def sorted_by(statement: S, sort: str, columns: Columns, *, last: Column) -> S:
    """Return a statement in another order, in place of its own.

    Args:
        statement: what to sort.
        sort: names of columns; empty keeps the statement's own order.
        columns: what may be sorted by, by name.
        last: a unique column, which decides among equals, so that pages never overlap. It goes
            the way of the last name.

    Raises:
        InvalidInputError: there is nothing of that name to sort by.
    """
    if not sort:
        return statement
    terms = sort_terms(sort, columns)
    orders = [_order(columns[name], is_descending=descending) for name, descending in terms]
    return statement.order_by(None).order_by(*orders, _order(last, is_descending=terms[-1][1]))


def sort_terms(sort: str, columns: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the names of a sort, each with whether its order is turned round."""
    terms = [(part.removeprefix("-"), part.startswith("-")) for part in sort.split(",")]
    names = [name for name, _ in terms]
    wrong = [name for name in names if name not in columns]
    if wrong or len(set(names)) < len(names):
        what = f"{wrong[0]!r} is nothing to sort by" if wrong else f"{sort!r} names one twice"
        fault = f"{what}. Choose among {', '.join(columns)}; a hyphen turns the order round."
        raise InvalidInputError(fault, errors={"sort": [fault]})
    return terms


def _order(column: Column, *, is_descending: bool) -> ColumnElement[Any]:
    return column.desc() if is_descending else column.asc()
