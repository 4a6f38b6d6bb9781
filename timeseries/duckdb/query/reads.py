"""Reads of range queries, and the sources that their statements are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import duckdb

from timeseries.duckdb.query.row_groups import Row
from timeseries.store import Resolution


@dataclass(frozen=True, slots=True)
class Read:
    """A statement, its values, and the fields it answers; an empty text gives no rows.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values.

    Attributes:
        finish: converts the rows of the statement to such rows.
        shortcut: tried first if set; returns such rows, or None if that would take too much memory.
    """

    fields: Sequence[str]
    text: str
    values: Sequence[object] = field(default_factory=list)
    finish: Callable[[Sequence[Row]], Sequence[Row]] = tuple
    shortcut: Callable[[duckdb.DuckDBPyConnection], Sequence[Row] | None] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Samples or roll-ups to aggregate, with their values, by windows of the query."""

    resolution: Resolution
    window: str
    text: str
    values: Sequence[object]
