"""Rolling up: what the writer does, step by step, to keep the roll-ups of DuckDB up to date.

Each step is a transaction of its own on the writer's thread and small enough that writes do not
wait long behind it. What is closed is rolled up by builds in between, transactions of their own
beside the writer: nobody reads their rows until a step has said that they are there. A process that
is killed in between begins again where it was. Hours are made from the samples, as minutes are,
since only samples have what a sketch needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import duckdb

from timeseries.duckdb.rollups_build import Build
from timeseries.duckdb.rollups_coverage import HOUR_NS, MINUTE_NS, WIDTHS_NS, Progress, Span
from timeseries.duckdb.rollups_schema import rollup_ddl, rollup_table
from timeseries.duckdb.rollups_sql import APPLIANCE, samples, within
from timeseries.duckdb.rollups_state import RollUpState
from timeseries.duckdb.schema import TIME_COLUMN, Table, quoted
from timeseries.duckdb.sql import delete_sql
from timeseries.store import Resolution

GRACE_NS = MINUTE_NS
"""How long a window stays open after its end for samples on their way."""

MAX_STEP_VALUES = 400_000
"""About how many values one step takes, so that writes do not wait long behind it."""

MAX_BUILD_VALUES = 10_000_000
"""About how many values one build takes, so that they fit into memory."""

MAX_STEP_HOURS = 24
"""How many hours with few samples one step or build takes together."""

_TIME = quoted(TIME_COLUMN)
# Besides the fields, tags and time cost about as much as these.
_BASE_COLUMNS = 4
_THEIRS = f"{APPLIANCE} IN (SELECT unnest(CAST(? AS VARCHAR[])))"


@dataclass(frozen=True, slots=True)
class RollUp:
    """The rolling up of one measurement, on the writer's cursor.

    Attributes:
        table: the tags and fields that the samples have.
    """

    cursor: duckdb.DuckDBPyConnection
    state: RollUpState
    measurement: str
    table: Table

    def steps(self, *, now_ns: int) -> Iterator[int | Build]:
        """Do one step at each turn, in the transaction that is open then.

        Yields:
            How many rows the step wrote to the roll-ups, or what to build before the next one.
        """
        for hours in self._late_together():
            yield from self._take_in_late(hours)
        until = (now_ns - GRACE_NS) // MINUTE_NS * MINUTE_NS
        yield from self._advance(Resolution.MINUTE, until)
        yield from self._advance(Resolution.HOUR, until // HOUR_NS * HOUR_NS)

    def expire(self, resolution: Resolution, before_ns: int) -> None:
        """Delete what is older, but no samples that are not rolled up yet; whole hours."""
        progress = self.state.drafted(self.measurement)
        if resolution is Resolution.RAW:
            self._expire_samples(progress, before_ns)
        elif resolution in progress.tables:
            since = before_ns // HOUR_NS * HOUR_NS
            self._delete_rows(resolution, f"{_TIME} < {since}")
            self._keep_since(progress, resolution, since)

    def _late_together(self) -> list[list[int]]:
        """Return the late hours, those that follow one another together.

        Hours of which something has been deleted stand alone: what is left differs from hour to
        hour.
        """
        progress = self.state.progress(self.measurement)
        whole_since = max(progress.since.values(), default=0)
        together: list[list[int]] = []
        for hour in sorted(progress.late):
            last = together[-1] if together else []
            is_next = last and hour - last[-1] == HOUR_NS and last[-1] >= whole_since
            if is_next and len(last) < MAX_STEP_HOURS:
                last.append(hour)
            else:
                together.append([hour])
        return together

    def _take_in_late(self, hours: Sequence[int]) -> Iterator[int]:
        """Make hours anew for the appliances whose samples were late, some at a time."""
        late = self.state.progress(self.measurement).late
        marked = sorted(set().union(*(late.get(hour, ()) for hour in hours)))
        if not marked:
            return
        span = (hours[0], hours[-1] + HOUR_NS)
        slices = self._slices(f"{within([span])} AND {_THEIRS}", marked, of_values=MAX_STEP_VALUES)
        some_at_once = max(1, len(marked) // slices)
        for first in range(0, len(marked), some_at_once):
            some = marked[first : first + some_at_once]
            yield self._remake(span, some)

    def _remake(self, span: Span, appliances: Sequence[str]) -> int:
        progress = self.state.drafted(self.measurement)
        names = list(appliances)
        written = 0
        for resolution, until in progress.until.items():
            rolled = (span[0], min(span[1], until))
            if rolled[0] >= rolled[1] or rolled[0] < progress.since.get(resolution, 0):
                continue
            condition = f"{within([rolled])} AND {_THEIRS}"
            if not progress.is_frozen(span[0]):
                self._delete_rows(resolution, condition, names)
            written += self._build(resolution, condition, names)
        if progress.is_frozen(span[0]):
            condition = f"{within([span])} AND {_THEIRS}"
            self.cursor.execute(delete_sql(self.measurement, condition), [names])
        for hour in range(span[0], span[1], HOUR_NS):
            self.state.unmark(self.cursor, self.measurement, hour_ns=hour, appliances=appliances)
        return written

    def _advance(self, resolution: Resolution, until: int) -> Iterator[int | Build]:
        """Roll up what is closed by now, at most so many hours and values in a step."""
        reached = self.state.progress(self.measurement).until.get(resolution, 0)
        # What a run that did not come to its end has left.
        self._delete_rows(resolution, f"{_TIME} >= {reached}")
        while (span := self._next_span(resolution, until)) is not None:
            # From here on, samples of this span are late: another part may have been read.
            self.state.claim(self.measurement, span[1])
            self._prepare(resolution)
            slices = self._slices(within([span]), of_values=MAX_BUILD_VALUES)
            for index in range(slices):
                part = f" AND hash({APPLIANCE}) % {slices} = {index}" if slices > 1 else ""
                yield Build(self.measurement, resolution, self.table, within([span]) + part)
            self._reach(resolution, span[1])
            yield 0
        if self.state.progress(self.measurement).until.get(resolution, 0) < until:
            self._reach(resolution, until)
            yield 0

    def _next_span(self, resolution: Resolution, until: int) -> Span | None:
        """Return the next span that has samples and is not rolled up yet, up to some hours."""
        since = max(0, self.state.drafted(self.measurement).until.get(resolution, 0))
        source = samples(self.measurement, f"{_TIME} >= {since} AND {_TIME} < {until}")
        (oldest,) = self.cursor.execute(f"SELECT min({_TIME}) FROM {source}").fetchall()[0]  # noqa: S608 - ours
        if oldest is None:
            return None
        width = WIDTHS_NS[resolution]
        return oldest // width * width, min(until, self._end_of_step(oldest // HOUR_NS * HOUR_NS))

    def _end_of_step(self, first_hour: int) -> int:
        """Return the end of the hours from this one on that make one step, of the first at least.

        Few samples in each cost less together: a step has its price whatever it holds.
        """
        span = (first_hour, first_hour + MAX_STEP_HOURS * HOUR_NS)
        source = samples(self.measurement, within([span]))
        counts = f"SELECT {_TIME} // {HOUR_NS} AS h, count(*) FROM {source} GROUP BY h ORDER BY h"  # noqa: S608 - ours
        left = MAX_BUILD_VALUES // (len(self.table.fields) + _BASE_COLUMNS)
        end = first_hour + HOUR_NS
        for hour, rows in self.cursor.execute(counts).fetchall():
            left -= int(rows)
            if left < 0:
                break
            end = max(end, (int(hour) + 1) * HOUR_NS)
        return end

    def _slices(self, condition: str, *values: object, of_values: int) -> int:
        count = f"SELECT count(*) FROM {samples(self.measurement, condition)}"  # noqa: S608 - ours
        (rows,) = self.cursor.execute(count, values).fetchall()[0]
        return 1 + int(rows) * (len(self.table.fields) + _BASE_COLUMNS) // of_values

    def _build(self, resolution: Resolution, condition: str, *values: object) -> int:
        self._prepare(resolution)
        return Build(self.measurement, resolution, self.table, condition, values).run(self.cursor)

    def _prepare(self, resolution: Resolution) -> None:
        progress = self.state.drafted(self.measurement)
        before = progress.tables.get(resolution)
        if before == self.table:
            return
        for statement in rollup_ddl(self.measurement, resolution, before=before, after=self.table):
            self.cursor.execute(statement)
        tables = {**progress.tables, resolution: self.table}
        self.state.save(self.cursor, self.measurement, replace(progress, tables=tables))

    def _reach(self, resolution: Resolution, until: int) -> None:
        progress = self.state.drafted(self.measurement)
        reached = {**progress.until, resolution: until}
        self.state.save(self.cursor, self.measurement, replace(progress, until=reached))

    def _delete_rows(self, resolution: Resolution, condition: str, *values: object) -> None:
        if resolution in self.state.drafted(self.measurement).tables:
            name = quoted(rollup_table(self.measurement, resolution))
            self.cursor.execute(f"DELETE FROM {name} WHERE {condition}", list(values))  # noqa: S608 - ours

    def _expire_samples(self, progress: Progress, before_ns: int) -> None:
        since = before_ns
        if progress.until:
            rolled = progress.until.get(Resolution.HOUR, 0)
            since = min([before_ns // HOUR_NS * HOUR_NS, rolled, *progress.late])
        self.cursor.execute(delete_sql(self.measurement, f"{_TIME} < {since}"))
        if progress.until:
            self._keep_since(progress, Resolution.RAW, since)

    def _keep_since(self, progress: Progress, resolution: Resolution, since: int) -> None:
        kept = max(since, progress.since.get(resolution, since))
        self.state.save(
            self.cursor,
            self.measurement,
            replace(progress, since={**progress.since, resolution: kept}),
        )
