"""Overwrites: when a series has several rows at one instant, of which the last one counts.

The last write wins, per field, as in InfluxDB. When rows are written of a series and instant that
has others, in tables or files, their times are noted by tenant and measurement, in the transaction
that adds them. Queries of these times take the last value of each field; all others read rows as
they are. Sealing leaves one row of each, and the times are forgotten.

Live samples arrive in order and are not compared with anything: only what is not newer than all
that its appliance has written of a measurement may have the series and instant of another sample.
Such *suspects* are looked up once they are in their table.

Source: docs/decisions/0009-embedded-store.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import duckdb

from timeseries.duckdb.files.files import Files
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.rows import Rows
from timeseries.duckdb.query.relation import Relation
from timeseries.duckdb.query.sql import select
from timeseries.duckdb.query.units import TENANT
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Key,
    Span,
    Spans,
    Table,
    joined,
    quoted,
    table_name,
    tag_column,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import Batch, Block
from timeseries.store import APPLIANCE_TAG, HOUR_NS, IDENTITY_TAGS, TENANT_TAG, Resolution
from timeseries.validation import repeating_measurements

OVERWRITTEN_TABLE = "overwritten"
_DDL = (
    f"CREATE TABLE IF NOT EXISTS {OVERWRITTEN_TABLE} (measurement VARCHAR NOT NULL, "
    "tenant VARCHAR NOT NULL, oldest BIGINT NOT NULL, newest BIGINT NOT NULL)"
)
_EXISTS = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
_TIME = quoted(TIME_COLUMN)
EARLIEST_NS = MIN_INT64 - 1
"""Older than every sample."""
MAX_NEWEST_TIMES = 200_000
"""How many newest times are held; then the newest of each measurement counts for all."""
MAX_FILES = 8
"""In more files, or in a bucket, nothing is looked up, because all writes wait for it."""
MAX_SUSPECTS = 10_000
"""How many suspects of a measurement are held apart."""
MAX_NAMES = 500
"""Above this, suspects are looked up among the samples of all appliances."""
Owner = tuple[str, str]
"""The tenant and the appliance of a sample, "" for one without."""


class Suspect(NamedTuple):
    """Samples of an appliance that may overwrite others: the oldest and the newest time."""

    tenant: str
    appliance: str
    oldest_ns: int
    newest_ns: int


Suspects = Mapping[str, Sequence[Suspect]]
"""The suspects of each measurement."""


def merge_if_many(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return suspects; if they are many, those of an appliance are merged."""
    if len(suspects) <= MAX_SUSPECTS:
        return list(suspects)
    merged: dict[Owner, Suspect] = {}
    for suspect in suspects:
        former = merged.get(suspect[:2], suspect)
        span = min(suspect.oldest_ns, former.oldest_ns), max(suspect.newest_ns, former.newest_ns)
        merged[suspect[:2]] = Suspect(suspect.tenant, suspect.appliance, *span)
    return list(merged.values())


class NewestTimes:
    """The newest time that each appliance has written of a measurement.

    Args:
        floor_of: returns the newest time of a measurement in the store before it was opened.
        staged_of: returns the newest time of samples that are written without being noted here,
            by measurement, tenant and appliance.
    """

    def __init__(
        self,
        floor_of: Callable[[str], int],
        staged_of: Callable[[str, str, str], int] = lambda _name, _tenant, _appliance: EARLIEST_NS,
    ) -> None:
        self._floor_of = floor_of
        self._staged_of = staged_of
        self._floors: dict[str, int] = {}
        self._newest: dict[tuple[str, str, str], int] = {}

    def check(self, batch: Batch, identity: Mapping[str, str]) -> tuple[Batch, Suspects]:
        """Note a batch that is written next; return it, in order of writing, and its suspects."""
        repeating = repeating_measurements(batch)
        spans: dict[tuple[str, str, str], Span] = {}
        for block in batch.blocks:
            for owner, span in _spans_of(block, identity, is_stamped=batch.is_stamped):
                place = (block.measurement, *owner)
                former = spans.get(place)
                if former is not None:
                    span = min(span[0], former[0]), max(span[1], former[1])  # noqa: PLW2901 - both
                spans[place] = span
        suspects: dict[str, list[Suspect]] = {}
        for place, span in spans.items():
            measurement, tenant, appliance = place
            before = max(self.of(place), self._staged_of(*place))
            if span[0] <= before or measurement in repeating:
                suspects.setdefault(measurement, []).append(Suspect(tenant, appliance, *span))
            self._newest[place] = max(before, span[1])
        self._limit()
        return batch.in_order(repeating), suspects

    def of(self, place: tuple[str, str, str]) -> int:
        """Return the newest time noted of a measurement, tenant and appliance."""
        newest = self._newest.get(place)
        return self._floor(place[0]) if newest is None else newest

    def note(self, place: tuple[str, str, str], newest_ns: int) -> None:
        """Note the newest time of samples that were written."""
        self._newest[place] = max(self.of(place), newest_ns)

    def _floor(self, measurement: str) -> int:
        if measurement not in self._floors:
            self._floors[measurement] = self._floor_of(measurement)
        return self._floors[measurement]

    def _limit(self) -> None:
        if len(self._newest) > MAX_NEWEST_TIMES:
            for (measurement, _, _), newest in self._newest.items():
                self._floors[measurement] = max(newest, self._floor(measurement))
            self._newest.clear()


def staged_suspects(rows: Iterable[Rows]) -> Iterator[Suspect]:
    """Yield the suspects of rows that were staged before the store was opened: all of them."""
    for chunk in rows:
        columns = dict(zip(chunk.tags, chunk.tag_values, strict=True))
        owners = zip(*(columns.get(tag, ("",)) for tag in IDENTITY_TAGS), strict=False)
        span = min(chunk.times_ns), max(chunk.times_ns)
        for tenant, appliance in set(owners):
            yield Suspect(tenant, appliance, *span)


def overwritten_spans(
    cursor: duckdb.DuckDBPyConnection,
    suspects: Sequence[Suspect],
    tables: Mapping[Key, Table],
    segments: Sequence[Segment],
    files: Files,
) -> list[tuple[str, Span]]:
    """Return when series have several rows at one instant, by tenant, among some suspects.

    Args:
        cursor: sees the suspects in the tables.
        suspects: of one measurement.
        tables: those of the measurement.
        segments: those of the measurement.
        files: those of the segments.
    """
    span = (
        max(min(suspect.oldest_ns for suspect in suspects), MIN_INT64),
        min(max(suspect.newest_ns for suspect in suspects), MAX_INT64) + 1,
    )
    tenants = {suspect.tenant for suspect in suspects}
    names = {suspect.appliance for suspect in suspects}
    relation = Relation(
        tables={key: table for key, table in tables.items() if key.owner in {"", *tenants}},
        segments=segments,
        files=files,
        tenants=None if "" in tenants else sorted(tenants),
        filters={APPLIANCE_TAG: sorted(names)} if len(names) <= MAX_NAMES else {},
    )
    visible = [segment for segment in relation.visible(span) if Resolution.RAW in segment.sizes]
    if len(visible) > MAX_FILES or (visible and files.filesystem is not None):
        return [
            (suspect.tenant, (suspect.oldest_ns, suspect.newest_ns + 1)) for suspect in suspects
        ]
    source, values = relation.samples((), [span], segments=visible)
    if not source:
        return []
    series = ", ".join([_TIME, *(quoted(tag_column(tag)) for tag in sorted(relation.table.tags))])
    twice = f"({select([series], source)} GROUP BY {series} HAVING count(*) > 1)"
    columns = [TENANT, f"min({_TIME})", f"max({_TIME})"]
    text = f"{select(columns, twice)} GROUP BY {TENANT}, {_TIME} // {HOUR_NS}"
    rows = cursor.execute(text, values).fetchall()
    return [(tenant, (oldest, newest + 1)) for tenant, oldest, newest in rows]


def _spans_of(
    block: Block, identity: Mapping[str, str], *, is_stamped: bool
) -> Iterable[tuple[Owner, Span]]:
    """Return the owners of a block's samples, each with the oldest and the newest time."""
    times_ns = block.times_ns
    if not len(times_ns):
        return ()
    span = min(times_ns), max(times_ns)
    tenant, appliance = identity.get(TENANT_TAG, ""), identity.get(APPLIANCE_TAG, "")
    if (tenant and appliance) or not is_stamped:
        return (((tenant, appliance), span),)
    owners = _owners(block, identity)
    if span[0] == span[1]:
        return [(owner, span) for owner in set(owners)]
    span_of: dict[Owner, Span] = {}
    for at, time_ns in zip(block.tag_set_of, times_ns, strict=False):
        oldest, newest = span_of.get(owners[at], (time_ns, time_ns))
        span_of[owners[at]] = min(oldest, time_ns), max(newest, time_ns)
    return span_of.items()


def _owners(block: Block, identity: Mapping[str, str]) -> Sequence[Owner]:
    """Return the owner of each tag set of a block whose own identity tags count."""
    columns = [
        [values[block.tags.index(tag)] for values in block.tag_sets]
        if tag in block.tags and not identity.get(tag)
        else [identity.get(tag, "")] * len(block.tag_sets)
        for tag in (TENANT_TAG, APPLIANCE_TAG)
    ]
    return list(zip(*columns, strict=True))


class Overwrites:
    """The spans in which series have several rows at one instant, by measurement and tenant.

    Only the writer's thread changes them; readers may ask at any time.

    Args:
        cursor: reads the table, which it creates if missing.
        tables: those of the store. One of an earlier version may have such rows anywhere.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, tables: Collection[Key]) -> None:
        self._spans: dict[str, dict[str, Spans]] = {}
        # To ask whether the table exists takes a third of the time to open a new store.
        is_former = not tables or bool(cursor.execute(_EXISTS, [OVERWRITTEN_TABLE]).fetchall())
        cursor.execute(_DDL)
        rows = cursor.execute(
            f"SELECT measurement, tenant, oldest, newest FROM {OVERWRITTEN_TABLE}"  # noqa: S608 - ours
        ).fetchall()
        for measurement, tenant, oldest, newest in rows:
            self._set(measurement, {tenant: [(oldest, newest + 1)]})
        if is_former:
            return
        for key in tables:
            rows = cursor.execute(
                f"SELECT {TENANT}, min({_TIME}), max({_TIME}) FROM {quoted(table_name(key))} "  # noqa: S608 - own identifiers only
                "GROUP BY 1"
            ).fetchall()
            spans = [(tenant, (oldest, newest + 1)) for tenant, oldest, newest in rows]
            self.add(cursor, key.measurement, spans)

    def of(self, measurement: str, tenants: Sequence[str] | None) -> Spans:
        """Return the spans of some tenants' samples, in order; None for all tenants."""
        spans = self._spans.get(measurement)
        if not spans:
            return ()
        return joined(
            chain.from_iterable(
                tenant_spans
                for tenant, tenant_spans in spans.items()
                if tenants is None or tenant in tenants
            )
        )

    def by_tenant(self, measurement: str) -> Mapping[str, Spans]:
        """Return the spans of each tenant."""
        return self._spans.get(measurement, {})

    def add(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        added: Iterable[tuple[str, Span]],
    ) -> None:
        """Add spans of tenants in the open transaction; readers see them at once."""
        spans: dict[str, list[Span]] = {}
        for tenant, span in added:
            spans.setdefault(tenant, []).append(span)
        self._set(measurement, spans)
        for tenant in spans:
            self._store(cursor, measurement, tenant)

    def keep(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        is_needed: Callable[[str, Span], bool],
    ) -> None:
        """Forget the spans that are not needed any longer."""
        for tenant, spans in self.by_tenant(measurement).items():
            needed = tuple(span for span in spans if is_needed(tenant, span))
            if needed != spans:
                others = {**self.by_tenant(measurement), tenant: needed}
                self._spans[measurement] = {
                    name: tenant_spans for name, tenant_spans in others.items() if tenant_spans
                }
                self._store(cursor, measurement, tenant)

    def _set(self, measurement: str, spans: Mapping[str, Iterable[Span]]) -> None:
        former = self.by_tenant(measurement)
        self._spans[measurement] = {
            **former,
            **{
                tenant: joined([*former.get(tenant, ()), *added]) for tenant, added in spans.items()
            },
        }

    def _store(self, cursor: duckdb.DuckDBPyConnection, measurement: str, tenant: str) -> None:
        place = [measurement, tenant]
        cursor.execute(
            f"DELETE FROM {OVERWRITTEN_TABLE} WHERE measurement = ? AND tenant = ?",  # noqa: S608 - ours
            place,
        )
        for start, end in self.by_tenant(measurement).get(tenant, ()):
            cursor.execute(
                f"INSERT INTO {OVERWRITTEN_TABLE} VALUES (?, ?, ?, ?)",  # noqa: S608 - ours
                [*place, start, end - 1],
            )
