"""The store interface: what portal, rules and reports ask of any time series database.

Tags `tenant` and `appliance` are stamped by the gateway, never taken from a sender. Every query
names the tenants it may see: `None` is the operator's view of all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from core.errors import UnavailableError
from timeseries.batch import Batch
from timeseries.points import FieldValue, Point

TENANT_TAG = "tenant"
APPLIANCE_TAG = "appliance"
IDENTITY_TAGS = (TENANT_TAG, APPLIANCE_TAG)


class StoreUnavailableError(UnavailableError):
    """The store can't be opened or does not answer; nothing was written."""

    default_code = "store_unavailable"


class Aggregate(StrEnum):
    """How the values of one series in one window become one number."""

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    LAST = "last"
    P50 = "p50"
    P95 = "p95"
    P99 = "p99"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery:
    """Aggregates of some fields over `[start_ns, end_ns)`, by window and by group.

    Attributes:
        step_ns: window width, windows aligned to the epoch; None gives one value for the range.
        tenants: the tenants whose samples may be seen; None is every tenant.
        filters: tag to the values it may have.
        group_by: tags that split the answer into series; a sample without the tag has "".
    """

    measurement: str
    fields: tuple[str, ...]
    start_ns: int
    end_ns: int
    aggregate: Aggregate = Aggregate.AVG
    step_ns: int | None = None
    tenants: tuple[str, ...] | None
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: values of `field` at window starts, oldest first, gaps left out."""

    field: str
    tags: Mapping[str, str]
    times_ns: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestQuery:
    """The newest value of some fields in each group, of the samples in `[since_ns, until_ns)`.

    A sender whose clock is ahead writes samples of the future, which would hide those of now:
    whoever shows the present gives `until_ns`. None is no bound.
    """

    measurement: str
    fields: tuple[str, ...]
    since_ns: int
    until_ns: int | None = None
    tenants: tuple[str, ...] | None
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_by: tuple[str, ...] = IDENTITY_TAGS


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest values of one group; a field never written in the query's span is left out."""

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


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the points of a scan lie, `[start_ns, end_ns)`, and how many they are.

    `is_exact` is False where the store can't count points, only the values of each field: `points`
    is then a lower bound, short of points that lack what others of their series have.
    """

    start_ns: int
    end_ns: int
    points: int
    is_exact: bool = True


class Resolution(StrEnum):
    """How fine samples are kept: as they came, or rolled up by minute and by hour."""

    RAW = "raw"
    MINUTE = "1m"
    HOUR = "1h"


@dataclass(frozen=True, slots=True)
class RejectedPoint:
    """A point that the store refused and why; the others of its batch were kept.

    `position` is the point's position in the batch.
    """

    position: int
    reason: str


class Store(Protocol):
    """A time series database. Unknown measurements, fields and tags give empty answers.

    Every call may raise `StoreUnavailableError`; implementations are safe to share by threads.
    """

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> "Future[list[RejectedPoint]]":
        """Queue a batch for writing, `identity` (tenant, appliance) stamped over its own tags.

        The future resolves when the good points are durable: acknowledge a sender only then.
        A point whose field clashes with the stored type is named in the result.
        """

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return one row per group, ordered by group."""

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first, identity tags among their tags.

        Positions count anew in each batch. For export and for moving to another store.
        """

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of what a scan would yield; None where that is nothing."""

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted.

        This list and the next three know what roll-ups hold, long after the samples have expired.
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

        Writes of others are taken meanwhile. A deletion that was cut short is completed by another.
        """

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample of a resolution that is older than `before_ns`: retention."""

    def roll_up(self, *, now_ns: int) -> int:
        """Bring the roll-ups up to date with what was written, late samples included.

        Each keeps count, sum, min, max and a sketch of quantiles by series and window, so that
        `query_range` answers long ranges from them. Called every minute; a store that keeps none
        does nothing.

        Returns:
            How many windows were written.
        """

    def close(self) -> None:
        """Write what is queued and release the database."""


def write(
    store: Store, points: Iterable[Point], *, identity: Mapping[str, str]
) -> list[RejectedPoint]:
    """Write points and wait until they are durable; return those refused."""
    return store.submit(Batch.of(points), identity=identity).result()
