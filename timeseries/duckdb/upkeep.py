"""What is done to a DuckDB store besides writing samples: deletion, retention and rolling up."""

import logging
import threading
from collections.abc import Iterator

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.rollups import RollUp
from timeseries.duckdb.scan import HOUR_NS, hours_sql
from timeseries.duckdb.schema import Schema, quoted, tag_column
from timeseries.duckdb.sql import delete_sql
from timeseries.duckdb.writer import DuckDBWriter
from timeseries.lineprotocol_grammar import MIN_INT64
from timeseries.store import TENANT_TAG, Resolution, ScanQuery

_log = logging.getLogger(__name__)


class Upkeep:
    """Does its work on the writer's thread, between two commits, and waits for it."""

    def __init__(self, writer: DuckDBWriter) -> None:
        self._writer = writer
        self._rolling = threading.Lock()

    def delete_tenant(self, tenant: str) -> None:
        """Delete the samples and the roll-ups of a tenant."""
        condition = f"{quoted(tag_column(TENANT_TAG))} = ?"

        def work(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> None:
            for measurement, table in schema.items():
                cursor.execute(delete_sql(measurement, condition), [tenant])
                RollUp(cursor, self._writer.roll_ups, measurement, table).forget_tenant(tenant)

        self._writer.run(work)

    def delete_before(self, before_ns: int, *, resolution: Resolution) -> None:
        """Delete what is older of a resolution, an hour in each transaction: writes go between."""
        for measurement in list(self._writer.schema):
            for until_ns in self._hours_before(before_ns, measurement, resolution):
                self._expire(measurement, until_ns, resolution)
        try:
            self._writer.checkpoint()
        except VedetteError as error:
            # A transaction was open; the next commit that finds a long log does it.
            _log.info("the space of deleted samples is returned later: %s", error.message)

    def _expire(self, measurement: str, before_ns: int, resolution: Resolution) -> None:
        def work(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> None:
            table = schema[measurement]
            roll_up = RollUp(cursor, self._writer.roll_ups, measurement, table)
            roll_up.expire(resolution, before_ns)

        self._writer.run(work)

    def _hours_before(
        self, before_ns: int, measurement: str, resolution: Resolution
    ) -> Iterator[int]:
        """Yield the starts of the hours that have older samples, then the time itself."""
        if resolution is Resolution.RAW:
            older = ScanQuery(
                measurement=measurement, start_ns=MIN_INT64, end_ns=before_ns, tenants=None
            )
            found = self._writer.run(
                lambda cursor, schema: cursor.execute(
                    *hours_sql(older, schema[measurement])
                ).fetchall()
            )
            yield from (start for hour, _ in found if (start := hour * HOUR_NS) < before_ns)
        yield before_ns

    def roll_up(self, *, now_ns: int) -> int:
        """Roll up every measurement; return how many rows that wrote.

        One that fails does not keep the others from being rolled up; its error is raised at the
        end.
        """
        written, errors = 0, []
        with self._rolling:
            for measurement in list(self._writer.schema):
                try:
                    written += sum(self._steps(measurement, now_ns=now_ns))
                except VedetteError as error:
                    _log.warning("%r was not rolled up: %s", measurement, error.message)
                    errors.append(error)
        if errors:
            raise errors[0]
        return written

    def _steps(self, measurement: str, *, now_ns: int) -> Iterator[int]:
        steps: list[Iterator[int]] = []

        def work(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> int | None:
            if not steps:
                roll_up = RollUp(cursor, self._writer.roll_ups, measurement, schema[measurement])
                steps.append(roll_up.steps(now_ns=now_ns))
            return next(steps[0], None)

        while (written := self._writer.run(work)) is not None:
            yield written
