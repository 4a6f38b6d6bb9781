"""Segments: settled samples of one tenant and measurement in Parquet files.

A *segment* has up to four files with one name, in the folders that `layout` names: `.raw.parquet`
with the samples, sorted by series and then time, and the roll-ups of exactly these samples,
`.5m.parquet`, `.1h.parquet` and `.1d.parquet`. Files never change. The table of segments in the
database lists them; see `manifest`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import duckdb

from timeseries.duckdb.files.layout import partition, segment_path
from timeseries.duckdb.schema import Span, Table
from timeseries.store import Detail, Resolution
from timeseries.validation import FieldType

MANIFEST_TABLE = "segments"
_SIZES = {
    Resolution.RAW: "raw_bytes",
    Resolution.FIVE_MINUTES: "five_minute_bytes",
    Resolution.HOUR: "hour_bytes",
    Resolution.DAY: "day_bytes",
}
_COLUMNS = (
    "name, tenant, measurement, oldest, newest, first_appliance, last_appliance, rows, "
    f"tags, fields, types, rolled, details, is_open, {', '.join(_SIZES.values())}"
)
MANIFEST_DDL = (
    f"CREATE TABLE IF NOT EXISTS {MANIFEST_TABLE} (name VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
    "measurement VARCHAR NOT NULL, oldest BIGINT NOT NULL, newest BIGINT NOT NULL, "
    "first_appliance VARCHAR NOT NULL, last_appliance VARCHAR NOT NULL, rows BIGINT NOT NULL, "
    "tags VARCHAR[] NOT NULL, fields VARCHAR[] NOT NULL, types VARCHAR[] NOT NULL, "
    "rolled VARCHAR[] NOT NULL, raw_bytes BIGINT, five_minute_bytes BIGINT, hour_bytes BIGINT)"
)
# Details are NULL in rows of earlier versions, which rolled up all, and had no open layout.
_COLUMNS_DDL = (
    f"ALTER TABLE {MANIFEST_TABLE} ADD COLUMN IF NOT EXISTS details UTINYINT[]; "
    f"ALTER TABLE {MANIFEST_TABLE} ADD COLUMN IF NOT EXISTS day_bytes BIGINT; "
    f"ALTER TABLE {MANIFEST_TABLE} ADD COLUMN IF NOT EXISTS is_open BOOLEAN"
)
_LIST = f"SELECT {_COLUMNS} FROM {MANIFEST_TABLE}"  # noqa: S608 - ours
# The detail from which on a field has anything in a roll-up.
_LEAST_DETAILS: Mapping[Resolution | None, Detail] = {
    Resolution.FIVE_MINUTES: Detail.MEANS,
    Resolution.DAY: Detail.PERCENTILES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Settled samples of one tenant and measurement.

    Attributes:
        name: the name of its files, unique.
        oldest_ns: the time of the oldest sample.
        newest_ns: the time of the newest one.
        first_appliance: the first appliance in order; "" for samples without.
        last_appliance: the last one.
        rows: how many samples.
        table: the tags and fields that have values in the samples.
        rolled: the fields that are rolled up, and how much.
        sizes: the bytes of its files.
        is_open: whether they are in the open layout.
    """

    name: str
    tenant: str
    measurement: str
    oldest_ns: int
    newest_ns: int
    first_appliance: str
    last_appliance: str
    rows: int
    table: Table
    rolled: Mapping[str, Detail]
    sizes: Mapping[Resolution, int]
    is_open: bool = False

    @property
    def fields(self) -> Mapping[str, FieldType]:
        """The fields that it still has values of."""
        return self.stored(Resolution.RAW if Resolution.RAW in self.sizes else None).fields

    def stored(self, resolution: Resolution | None) -> Table:
        """Return the tags of one of its files, and the fields that it has values of."""
        if resolution is Resolution.RAW:
            return self.table
        least = _LEAST_DETAILS.get(resolution, Detail.HOURS)
        kinds = self.table.fields.items()
        return Table(self.table.tags, {name: kind for name, kind in kinds if self.has(name, least)})

    def has(self, field: str, detail: Detail) -> bool:
        """Return whether a field is rolled up at least so much."""
        return self.rolled.get(field, Detail.NONE) >= detail

    @property
    def paths(self) -> dict[Resolution, str]:
        """Its files, relative to the folder of the store."""
        return {resolution: self.path(resolution) for resolution in self.sizes}

    def path(self, resolution: Resolution) -> str:
        """Return the path of a file, relative to the folder of the store."""
        return segment_path(
            self.name,
            resolution,
            tenant=self.tenant,
            measurement=self.measurement,
            oldest_ns=self.oldest_ns,
            is_open=self.is_open,
        )

    @property
    def partition(self) -> str:
        """The folder of its tenant's measurement in the open layout."""
        return partition(self.tenant, self.measurement)

    def overlaps(self, span: Span, *, margin_ns: int = 0) -> bool:
        """Return whether it may have samples in a span, or in the margin before it."""
        return self.oldest_ns < span[1] and self.newest_ns >= span[0] - margin_ns

    def is_inside(self, spans: Iterable[Span], *, width_ns: int = 1) -> bool:
        """Return whether all its samples, or the windows of that width with them, begin in a span.

        Args:
            spans: the times.
            width_ns: the width of the windows.
        """
        first_ns = self.oldest_ns // width_ns * width_ns
        return any(start <= first_ns and self.newest_ns < end for start, end in spans)

    def without(self, resolution: Resolution) -> "Segment":
        """Return it after retention has deleted one of its files; days end with their hours."""
        gone = {resolution, *([Resolution.DAY] if resolution is Resolution.HOUR else [])}
        return replace(
            self, sizes={other: size for other, size in self.sizes.items() if other not in gone}
        )


def create_manifest(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the table if it is missing, and its newer columns."""
    cursor.execute(MANIFEST_DDL)
    cursor.execute(_COLUMNS_DDL)


def insert_segment(cursor: duckdb.DuckDBPyConnection, segment: Segment) -> None:
    """Add the row of a segment to the table."""
    row = _row(segment)
    cursor.execute(
        f"INSERT INTO {MANIFEST_TABLE} ({_COLUMNS}) "  # noqa: S608 - ours
        f"VALUES ({', '.join('?' * len(row))})",
        row,
    )


def read_segments(cursor: duckdb.DuckDBPyConnection) -> Iterator[Segment]:
    """Yield the segments of the manifest."""
    for row in cursor.execute(_LIST).fetchall():
        name, tenant, measurement, oldest, newest, first, last, rows = row[:8]
        tags, fields, types, rolled, details, is_open, *sizes = row[8:]
        yield Segment(
            name=name,
            tenant=tenant,
            measurement=measurement,
            oldest_ns=oldest,
            newest_ns=newest,
            first_appliance=first,
            last_appliance=last,
            rows=rows,
            table=_table(tuple(tags), tuple(fields), tuple(types)),
            rolled=_details(tuple(rolled), tuple(details or [Detail.ALL] * len(rolled))),
            sizes={
                resolution: size
                for resolution, size in zip(_SIZES, sizes, strict=True)
                if size is not None
            },
            is_open=bool(is_open),
        )


def segment_paths(segments: Iterable[Segment]) -> set[str]:
    """Return the paths of the files of some segments."""
    return {path for segment in segments for path in segment.paths.values()}


def _row(segment: Segment) -> Sequence[object]:
    return [
        segment.name,
        segment.tenant,
        segment.measurement,
        segment.oldest_ns,
        segment.newest_ns,
        segment.first_appliance,
        segment.last_appliance,
        segment.rows,
        sorted(segment.table.tags),
        list(segment.table.fields),
        [str(kind) for kind in segment.table.fields.values()],
        list(segment.rolled),
        [int(detail) for detail in segment.rolled.values()],
        segment.is_open,
        *(segment.sizes.get(resolution) for resolution in _SIZES),
    ]


@lru_cache(maxsize=4_096)
def _table(tags: tuple[str, ...], fields: tuple[str, ...], types: tuple[str, ...]) -> Table:
    """Return a table; equal ones share their memory."""
    return Table(frozenset(tags), dict(zip(fields, map(FieldType, types), strict=True)))


@lru_cache(maxsize=4_096)
def _details(names: tuple[str, ...], details: tuple[int, ...]) -> Mapping[str, Detail]:
    return dict(zip(names, map(Detail, details), strict=True))
