"""Making rows of a roll-up from samples; what was delivered twice is deleted on the way."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from timeseries.duckdb.rollups_sql import (
    build_sql,
    delete_repeated_sql,
    gaps_sql,
    once,
    repeated_sql,
    samples,
)
from timeseries.duckdb.schema import Table
from timeseries.store import Resolution


@dataclass(frozen=True, slots=True)
class Build:
    """What to roll up: the samples of a measurement that meet a condition, into a table that is.

    Attributes:
        table: the tags and fields that the samples have.
        condition: the text of the condition.
        values: what is bound to it.
    """

    measurement: str
    resolution: Resolution
    table: Table
    condition: str
    values: Sequence[object] = ()

    def run(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """Insert the rows in the transaction that is open; return how many."""
        source = (
            once(self.measurement, self.condition, self.table)
            if self._has_repeated(cursor)
            else samples(self.measurement, self.condition)
        )
        fields = list(self.table.fields)
        gaps = cursor.execute(gaps_sql(source, fields), self.values).fetchall()[0]
        text = build_sql(
            self.measurement,
            self.resolution,
            table=self.table,
            source=source,
            with_gaps={name for name, has_gaps in zip(fields, gaps, strict=True) if has_gaps},
        )
        (written,) = cursor.execute(text, self.values).fetchall()[0]
        return int(written)

    def _has_repeated(self, cursor: duckdb.DuckDBPyConnection) -> bool:
        """Return whether a series has two samples at one instant, which differ.

        What was delivered twice is deleted, so that averages of samples weigh it once.
        """
        repeated = repeated_sql(self.measurement, self.condition, self.table)
        if not cursor.execute(repeated, self.values).fetchall():
            return False
        delete = delete_repeated_sql(self.measurement, self.condition, self.table)
        cursor.execute(delete, self.values)
        return bool(cursor.execute(repeated, self.values).fetchall())
