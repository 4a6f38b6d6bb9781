"""Deleting a tenant from a DuckDB store, in steps small enough that writes go on in between.

Each step is a transaction of its own: some hours of the samples or of a roll-up. The samples of a
measurement go before its roll-ups, so that none of these is made anew from what is left. A deletion
that was cut short has done whole steps, and another one finds what remains.
"""

import logging
from collections.abc import Iterator

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.lists import Fetch
from timeseries.duckdb.rollups_schema import rollup_table
from timeseries.duckdb.scan import HOUR_NS, Span, slices
from timeseries.duckdb.schema import TIME_COLUMN, Schema, quoted, table_name, tag_column
from timeseries.duckdb.writer import DuckDBWriter
from timeseries.lineprotocol_grammar import MAX_INT64, MIN_INT64
from timeseries.store import TENANT_TAG, ScanQuery

_log = logging.getLogger(__name__)
_TIME = quoted(TIME_COLUMN)
_THEIRS = f"{quoted(tag_column(TENANT_TAG))} = ?"


class TenantDeletion:
    """Deletes what a tenant had submitted when the deletion began.

    Args:
        writer: what is deleted, is deleted on its thread, between two commits.
        fetch: runs a read, beside the writer.
        tenant: whose samples and roll-ups.
    """

    def __init__(self, writer: DuckDBWriter, fetch: Fetch, tenant: str) -> None:
        self._writer = writer
        self._fetch = fetch
        self._tenant = tenant

    def steps(self) -> Iterator[int]:
        """Delete some rows at each turn; yield how many."""
        self._wait_for_the_queue()
        for measurement in sorted(self._writer.schema):
            yield from self._emptied(measurement, table_name(measurement))
            for resolution in self._writer.roll_ups.progress(measurement).tables:
                yield from self._emptied(measurement, rollup_table(measurement, resolution))
        self._return_space()

    def _emptied(self, measurement: str, table: str) -> Iterator[int]:
        everything = ScanQuery(
            measurement=measurement, start_ns=MIN_INT64, end_ns=MAX_INT64 + 1, tenants=None
        )
        hours = self._fetch(
            f"SELECT {_TIME} // {HOUR_NS}, count(*) FROM {quoted(table)} WHERE {_THEIRS} "  # noqa: S608 - own identifiers only
            "GROUP BY 1 ORDER BY 1",
            [self._tenant],
        )
        for span in slices(((hour, points) for hour, points in hours), everything):
            yield self._delete(table, span)

    def _delete(self, table: str, span: Span) -> int:
        text = f"DELETE FROM {quoted(table)} WHERE {_THEIRS} AND {_TIME} >= ? AND {_TIME} <= ?"  # noqa: S608 - own identifiers only

        def work(cursor: duckdb.DuckDBPyConnection, _schema: Schema) -> int:
            values = [self._tenant, max(span[0], MIN_INT64), span[1] - 1]
            (deleted,) = cursor.execute(text, values).fetchall()[0]
            return int(deleted)

        return self._writer.run(work)

    def _wait_for_the_queue(self) -> None:
        self._writer.run(lambda _cursor, _schema: None)

    def _return_space(self) -> None:
        try:
            self._writer.checkpoint()
        except VedetteError as error:
            # A transaction was open; the next commit that finds a long log does it.
            _log.info("the space of a deleted tenant is returned later: %s", error.message)
