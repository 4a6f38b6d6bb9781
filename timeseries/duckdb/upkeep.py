"""What is done to a DuckDB store now and then: retention, rolling up, compaction."""

import logging
import threading
from collections.abc import Iterator

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.compaction import Compaction
from timeseries.duckdb.database import Database, is_fatal
from timeseries.duckdb.rollups import GRACE_NS, RollUp
from timeseries.duckdb.rollups_build import Build
from timeseries.duckdb.rollups_coverage import MINUTE_NS
from timeseries.duckdb.scan import HOUR_NS, hours_sql
from timeseries.duckdb.schema import Schema
from timeseries.duckdb.writer import DuckDBWriter
from timeseries.lineprotocol_grammar import MIN_INT64
from timeseries.store import Resolution, ScanQuery, StoreUnavailableError

_log = logging.getLogger(__name__)


class Upkeep:
    """Does its work on the writer's thread, between two commits, and waits for it.

    Roll-ups are built and samples laid together beside the writer, on cursors of the database.
    """

    def __init__(self, database: Database, writer: DuckDBWriter) -> None:
        self._database = database
        self._writer = writer
        self._compaction = Compaction(database)
        self._rolling = threading.Lock()
        self.deleting = threading.Lock()
        """Held by whoever deletes samples, and while they are laid together or rolled up."""

    def delete_before(self, before_ns: int, *, resolution: Resolution) -> None:
        """Delete what is older of a resolution, an hour in each transaction: writes go between."""
        for measurement in list(self._writer.schema):
            for until_ns in self._hours_before(before_ns, measurement, resolution):
                with self.deleting:
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
                    self._lay_together(measurement, now_ns=now_ns)
                except VedetteError as error:
                    _log.warning("%r was not rolled up: %s", measurement, error.message)
                    errors.append(error)
        if errors:
            raise errors[0]
        return written

    def _steps(self, measurement: str, *, now_ns: int) -> Iterator[int]:
        steps: list[Iterator[int | Build]] = []

        def work(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> int | Build | None:
            if not steps:
                roll_up = RollUp(cursor, self._writer.roll_ups, measurement, schema[measurement])
                steps.append(roll_up.steps(now_ns=now_ns))
            return next(steps[0], None)

        while (step := self._writer.run(work)) is not None:
            yield self._built(step) if isinstance(step, Build) else step

    def _built(self, build: Build) -> int:
        """Build rows beside the writer; return how many."""
        with self.deleting, self._database.cursor() as cursor:
            cursor.begin()
            try:
                written = build.run(cursor)
                cursor.commit()
            except duckdb.Error as error:
                if is_fatal(error):
                    self._writer.mend()
                raise StoreUnavailableError(
                    f"The time series store could not roll up {build.measurement!r}: {error}"
                ) from error
        return written

    def _lay_together(self, measurement: str, *, now_ns: int) -> None:
        # What is not rolled up yet may still be sent again.
        before_ns = (now_ns - GRACE_NS) // MINUTE_NS * MINUTE_NS
        while True:
            with self.deleting:
                if not self._compaction.run(measurement, before_ns=before_ns):
                    return
