"""VictoriaMetrics as a store: the way from one server to a cluster of them.

It keeps numbers only, as floating point of 12 digits, and times to the millisecond: booleans
become 0 and 1, texts are left out (a point that has nothing else is refused), and a time is cut to
its millisecond. How old samples may get is the server's option -retentionPeriod.

A write is answered when the server has it in memory. Queries find it about a second later, and it
is on the disk some seconds later: a server that is stopped loses nothing, one that is killed loses
those seconds.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from urllib.parse import parse_qsl, quote, urlsplit

from core.clock import Clock, to_ns, utc_now
from core.errors import ConfigurationError
from timeseries.batch import Batch
from timeseries.store import (
    IDENTITY_TAGS,
    Extent,
    Latest,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    Resolution,
    ScanQuery,
    Series,
    StoreUnavailableError,
)
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.flags import MAX_AHEAD_MS
from timeseries.victoriametrics.lines import (
    MEASUREMENT_LABEL,
    METRIC_LABEL,
    OWN_LABELS,
    SCOPE_LABEL,
    scope_of,
)
from timeseries.victoriametrics.metricsql import metric_name, selector
from timeseries.victoriametrics.ranges import read_latest, read_range
from timeseries.victoriametrics.reader import Reader
from timeseries.victoriametrics.scan import extent, scan
from timeseries.victoriametrics.windows import span_of, step_ms_of
from timeseries.victoriametrics.writer import VictoriaMetricsWriter

DEFAULT_DATABASE = "vedette"
MAX_QUEUED_POINTS = 500_000

log = logging.getLogger(__name__)


class VictoriaMetricsStore:
    """A `Store` in one VictoriaMetrics server.

    Args:
        client: the server.
        database: tells this store's series from those of others in the same server.
        clock: tells which times the server keeps.
        max_queued_points: how many points may wait for the writer before `submit` refuses.

    Raises:
        ConfigurationError: the database's name is empty or holds a slash.
    """

    def __init__(
        self,
        client: VictoriaMetricsClient,
        *,
        database: str = DEFAULT_DATABASE,
        clock: Clock = utc_now,
        max_queued_points: int = MAX_QUEUED_POINTS,
    ) -> None:
        if "/" in database or not database:
            raise ConfigurationError(
                [f"the database {database!r} must have a name without a slash"],
                source="TIMESERIES_URL",
            )
        self._client = client
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        self._writer = VictoriaMetricsWriter(
            client, database=database, clock=clock, max_queued_points=max_queued_points
        )

    @classmethod
    def from_url(cls, url: str) -> "VictoriaMetricsStore":
        """Open `victoriametrics://[user:password@]host[:port][/path][?database=name]`."""
        given = dict(parse_qsl(urlsplit(url).query))
        database = given.get("database", DEFAULT_DATABASE)
        return cls(VictoriaMetricsClient.from_url(url), database=database)

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next request; the future holds the points refused.

        Raises:
            OverloadedError: too many points wait already.
        """
        return self._writer.submit(batch, identity)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""
        reader = self._reader(query)
        step_ms_of(query)
        return read_range(reader, query) if reader else []

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group."""
        reader = self._reader(query)
        return read_latest(reader, query) if reader else []

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first."""
        reader = self._reader(query)
        if reader:
            yield from scan(reader, span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms))

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan: its bounds are exact, its points a lower bound.

        The server counts the samples of a field's series: of each point's tags it is the field with
        the most. With a single field the number is exact.
        """
        reader = self._reader(query)
        if reader is None:
            return None
        return extent(reader, span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms))

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        return self._label_values(MEASUREMENT_LABEL, self._alive(None, tenants))

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type, which is always `float`, of these tenants' fields, sorted."""
        start = len(metric_name(measurement, ""))
        names = self._label_values(METRIC_LABEL, self._alive(measurement, tenants))
        return {name[start:]: "float" for name in names}

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        visible = self._alive(measurement, tenants)
        found = set(self._names("/api/v1/labels", visible) if visible else []) - OWN_LABELS
        return [*IDENTITY_TAGS, *sorted(found.difference(IDENTITY_TAGS))] if found else []

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        visible = self._alive(measurement, tenants)
        return [] if tag in OWN_LABELS else self._label_values(tag, visible)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, those still queued included."""
        visible = selector(self._database, tenants=(tenant,))
        if visible:
            self._writer.run_alone(lambda: self._client.delete(visible))

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Do nothing: how long samples are kept is the server's option -retentionPeriod."""
        self._check_open()
        log.debug("not deleted: %s samples before %d; see -retentionPeriod", resolution, before_ns)

    def roll_up(self, *, now_ns: int) -> int:  # noqa: ARG002 - the interface's
        """Do nothing: the server answers long ranges from the samples themselves."""
        self._check_open()
        return 0

    def close(self) -> None:
        """Write what is queued and close the connections."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._writer.close()
        self._client.close()

    def _reader(self, query: RangeQuery | LatestQuery | ScanQuery) -> Reader | None:
        self._check_open()
        visible = selector(
            self._database,
            measurement=query.measurement,
            tenants=query.tenants,
            filters=query.filters,
        )
        return Reader(self._client, visible, self._last_ms()) if visible else None

    def _alive(self, measurement: str | None, tenants: tuple[str, ...] | None) -> str | None:
        # Listed under a selector, names outlive their deletion; listed without one they don't.
        prefix = scope_of(self._database, "")
        scopes = self._names(_values_path(SCOPE_LABEL), None)
        alive = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
        seen = [one for one in alive if tenants is None or one in tenants]
        return selector(self._database, measurement=measurement, tenants=seen)

    def _label_values(self, label: str, visible: str | None) -> list[str]:
        return self._names(_values_path(label), visible) if label and visible else []

    def _names(self, path: str, visible: str | None) -> list[str]:
        self._check_open()
        asked = [("start", "0"), ("end", str(self._last_ms() // 1000))]
        if visible:
            asked.append(("match[]", visible))
        return sorted(self._client.names(path, asked))

    def _last_ms(self) -> int:
        return to_ns(self._clock()) // 1_000_000 + MAX_AHEAD_MS

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError("The time series store is closed.")


def _values_path(label: str) -> str:
    # The server makes one slash of two in a path.
    place = quote(label, safe="").replace("%2F", "%2F%2F")
    return f"/api/v1/label/{place}/values"
