"""The store interface: what portal, rules and reports use of a time series database.

The gateway stamps the tags `tenant` and `appliance`; a sender can't set them. Every query has the
tenants that it may read: `None` is the operator's view of all of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol

from core.clock import NS_PER_SECOND
from core.errors import InvalidInputError, UnavailableError
from timeseries.points import Batch, FieldValue, Point

if TYPE_CHECKING:  # NumPy is only on servers
    from timeseries.columns import SampleColumns, SeriesColumns
    from timeseries.series_batch import SeriesBatch

TENANT_TAG = "tenant"
APPLIANCE_TAG = "appliance"
IDENTITY_TAGS = (TENANT_TAG, APPLIANCE_TAG)
HOUR_NS = 3600 * NS_PER_SECOND
DAY_NS = 24 * HOUR_NS
_SMALL_DAY_POINTS = 100_000


class StoreUnavailableError(UnavailableError):
    """The store can't be opened or does not answer; nothing was written."""

    default_code = "store_unavailable"


class DamagedStoreError(StoreUnavailableError):
    """Bytes of the store's files are not those that were written; `recovery` retains the rest."""

    default_code = "store_damaged"


class Aggregate(StrEnum):
    """The function that reduces the values of one series in one window.

    The last four are described in `timeseries.successive`.
    """

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    LAST = "last"
    P50 = "p50"
    P95 = "p95"
    P99 = "p99"
    STDDEV = "stddev"
    CHANGE = "change"
    INCREASE = "increase"
    RATE = "rate"


TagMatcher = tuple[str, str, str]
"""A tag, an operator (`=`, `!=`, `=~` or `!~`) and a value or pattern; a missing tag is "".

A pattern is RE2, which takes linear time, and must match the whole value.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery:
    """Aggregates of some fields over `[start_ns, end_ns)`, by window and by group.

    Attributes:
        step_ns: window width, aligned to the epoch; None for one value over the range.
        tenants: the tenants whose samples are visible; None for all.
        filters: tag to allowed values.
        matchers: more conditions on tags, all of which must hold.
        group_by: tags that split the result into series; a sample without the tag has "".
        above: a store may leave out values that are not above this level; of one field only.
        below: the same for values that are not below this one.
        whole_appliances: of these, `above` and `below` leave out nothing; they are for queries that
            group by appliance.
    """

    measurement: str
    fields: tuple[str, ...]
    start_ns: int
    end_ns: int
    aggregate: Aggregate = Aggregate.AVG
    step_ns: int | None = None
    tenants: tuple[str, ...] | None
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    matchers: tuple[TagMatcher, ...] = ()
    group_by: tuple[str, ...] = ()
    above: float | None = None
    below: float | None = None
    whole_appliances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: values of `field` at window starts, oldest first, without gaps."""

    field: str
    tags: Mapping[str, str]
    times_ns: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestQuery:
    """The newest value of some fields in each group, of the samples in `[since_ns, until_ns)`.

    A sender whose clock is ahead writes samples in the future, which would hide current ones: set
    `until_ns` to show the present. None is no limit.
    """

    measurement: str
    fields: tuple[str, ...]
    since_ns: int
    until_ns: int | None = None
    tenants: tuple[str, ...] | None
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_by: tuple[str, ...] = IDENTITY_TAGS


@dataclass(slots=True)  # frozen ones are made in three times the time, and a fleet has thousands
class Latest:
    """The newest values of one group, without fields that have none in the query's span."""

    tags: Mapping[str, str]
    time_ns: int
    values: Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanQuery:
    """The samples of one measurement in `[start_ns, end_ns)` as they were written."""

    measurement: str
    start_ns: int
    end_ns: int
    tenants: tuple[str, ...] | None
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """The numbers of some fields in `[start_ns, end_ns)`, sample by sample.

    Attributes:
        max_samples: with more than these, `samples` raises `TooManySamplesError`.
    """

    measurement: str
    fields: tuple[str, ...]
    start_ns: int
    end_ns: int
    tenants: tuple[str, ...] | None
    matchers: tuple[TagMatcher, ...] = ()
    max_samples: int


class TooManySamplesError(InvalidInputError):
    """A query has more samples than it may read."""

    default_code = "too_many_samples"

    @classmethod
    def of(cls, query: SampleQuery) -> "TooManySamplesError":
        """Return the error of a query."""
        return cls(
            f"The query reads more than {query.max_samples:,} samples of {query.measurement!r}. "
            "Use a shorter range, or matchers that select fewer series."
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """The time range of a scan's points, `[start_ns, end_ns)`, and their number.

    `is_exact` is False if the store can only count the values of each field: `points` is then a
    lower bound, because points of a series may have different fields.
    """

    start_ns: int
    end_ns: int
    points: int
    is_exact: bool = True


class Resolution(StrEnum):
    """The resolution of stored data: raw samples, or roll-ups by five minutes, hour and day."""

    RAW = "raw"
    FIVE_MINUTES = "5m"
    HOUR = "1h"
    DAY = "1d"


class Detail(IntEnum):
    """The roll-ups of a field; each level includes those before.

    Attributes:
        NONE: nothing.
        HOURS: count, sum, minimum, maximum and last value by hour.
        MEANS: count and sum by five minutes, too.
        PERCENTILES: percentiles by hour and by day, too.
        ALL: minimum and maximum by five minutes, too.
    """

    NONE = 0
    HOURS = 1
    MEANS = 2
    PERCENTILES = 3
    ALL = 4


@dataclass(frozen=True, slots=True)
class RejectedPoint:
    """A point, by position in its batch, that the store rejected; the others were written.

    `is_left_out` marks what this kind of store can't store at all, such as text: the sender can't
    do anything about it, so that it is counted instead of being an error.
    """

    position: int
    reason: str
    is_left_out: bool = False


NeededField = tuple[str, str, str]
"""A field that something asks for again and again: its tenant, measurement and name."""


class Store(Protocol):
    """A time series database. Unknown measurements, fields and tags give empty results.

    Every call may raise `StoreUnavailableError`; implementations are thread-safe.
    """

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> "Future[list[RejectedPoint]]":
        """Queue a batch for writing; `identity` (tenant, appliance) replaces its own tags.

        The future resolves when the valid points are durable: acknowledge a sender only then. Its
        result has the rejected points, such as those with a conflicting field type.

        Raises:
            OverloadedError: too many points are waiting already.
        """

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""

    def query_columns(self, query: RangeQuery) -> "list[SeriesColumns]":
        """Return the same as arrays, by field: faster for millions of values."""

    def samples(self, query: SampleQuery) -> "list[SampleColumns]":
        """Return the numbers themselves, with one series for each set of tags, in any order.

        The tag of the tenant may be missing in a query of a single one.
        Where samples have expired, averages of five minutes or last values of hours count as such.

        Raises:
            TooManySamplesError: there are more than the query may read.
        """

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return one row per group, ordered by group."""

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first, including identity tags.

        Positions restart in each batch. For export and migration.
        """

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan; None without points."""

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted.

        This and the next three methods include roll-ups, long after the samples have expired.
        """

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted.

        A type is `float`, `integer`, `boolean` or `string`.
        """

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant that was submitted before this call.

        Other tenants can write meanwhile. Call it again to complete an interrupted deletion.
        """

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample of a resolution that is older than `before_ns`: retention."""

    def maintain(self, *, now_ns: int, needed: Collection[NeededField] = ()) -> int:
        """Move settled samples to where they take less space; return how many.

        The embedded store rolls them up then: count, sum, min, max, last and a quantile sketch by
        series and window, from which `query_range` answers long ranges. Called every few minutes;
        does nothing in stores that do so by themselves.

        Args:
            now_ns: the time.
            needed: the fields that have roll-ups beside declared ones.
        """

    def close(self) -> None:
        """Write queued points and close the database."""


class SeriesStore(Store, Protocol):
    """A store that takes samples of numbered series as they are, as `takes_series` says."""

    def submit_series(self, batch: "SeriesBatch") -> "Future[list[RejectedPoint]]":
        """Queue samples of numbered series, whose identity is verified; see `submit`."""


def write(
    store: Store, points: Iterable[Point], *, identity: Mapping[str, str]
) -> list[RejectedPoint]:
    """Write points and wait until they are durable; return the rejected ones."""
    return store.submit(Batch.of(points), identity=identity).result()


def check_store(store: Store) -> None:
    """Check that a store answers.

    Raises:
        StoreUnavailableError: it does not, or its database does not exist.
    """
    # The cheapest query. InfluxDB answers `measurements` for a missing database, but not this one.
    store.fields("", tenants=None)


def damage_notice(store: Store) -> str:
    """Return what happened to a damaged store, for operators; empty if nothing did."""
    return str(getattr(store, "notice", ""))


def chunks(query: ScanQuery, extent: Extent) -> Iterator[ScanQuery]:
    """Yield a scan split into the hours of an extent, or into days if these are small."""
    end_ns = min(query.end_ns, -(-extent.end_ns // HOUR_NS) * HOUR_NS)
    start_ns = max(query.start_ns, extent.start_ns // HOUR_NS * HOUR_NS)
    days = max(1, (end_ns - start_ns) // DAY_NS)
    width_ns = DAY_NS if extent.points <= days * _SMALL_DAY_POINTS else HOUR_NS
    while start_ns < end_ns:
        next_ns = min(start_ns - start_ns % width_ns + width_ns, end_ns)
        yield replace(query, start_ns=start_ns, end_ns=next_ns)
        start_ns = next_ns
