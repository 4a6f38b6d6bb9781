"""The store on VictoriaMetrics, a single server or a cluster.

It stores only numbers, as floating point with 12 digits, and times in milliseconds: booleans become
0 and 1, text is dropped (a point with only text is rejected), and times are truncated. Retention is
the server's flag -retentionPeriod.

A write is acknowledged when the server has it in memory. It becomes searchable after about a second
and is on disk some seconds later: a clean stop loses nothing. What a kill loses is written again
from `recent_writes`, if there is a folder for that.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from core.clock import Clock, to_ns, utc_now
from core.errors import ConfigurationError
from timeseries.columns import SampleColumns, SeriesColumns, columns_of
from timeseries.points import Batch
from timeseries.store import (
    IDENTITY_TAGS,
    Extent,
    Latest,
    LatestQuery,
    NeededField,
    RangeQuery,
    RejectedPoint,
    Resolution,
    SampleQuery,
    ScanQuery,
    Series,
    StoreUnavailableError,
    TooManySamplesError,
)
from timeseries.store_url import SOURCE
from timeseries.victoriametrics.client import MAX_AHEAD_MS, VictoriaMetricsClient
from timeseries.victoriametrics.lines import (
    MEASUREMENT_LABEL,
    METRIC_LABEL,
    RESERVED_LABELS,
    SCOPE_LABEL,
    account_of,
    mark_of,
    scope_of,
)
from timeseries.victoriametrics.metricsql import field_selector, metric_name, selector
from timeseries.victoriametrics.range_query import read_latest, read_range
from timeseries.victoriametrics.reader import (
    Reader,
    extent,
    samples_of_field,
    scan,
    span_of,
    step_ms_of,
)
from timeseries.victoriametrics.writer import VictoriaMetricsWriter

DEFAULT_DATABASE = "vedette"
_PARAMETERS = ("database", "select", "storage")
MAX_QUEUED_POINTS = 500_000

log = logging.getLogger(__name__)


class VictoriaMetricsStore:
    """A `Store` in one VictoriaMetrics server.

    Args:
        client: the server.
        database: separates the series of stores that share a server.
        clock: for the range of times that the server accepts.
        recent_folder: where what the server may lose when it is killed is stored.

    Attributes:
        takes_many_senders: whether a submission may have points of several tenants.

    Raises:
        ConfigurationError: the name of the database is empty or has a slash.
    """

    def __init__(
        self,
        client: VictoriaMetricsClient,
        *,
        database: str = DEFAULT_DATABASE,
        clock: Clock = utc_now,
        recent_folder: Path | None = None,
    ) -> None:
        if "/" in database or not database:
            raise ConfigurationError(
                [f"the database name {database!r} is invalid; use a name without a slash"],
                source="TIMESERIES_URL",
            )
        self._client = client
        self._database = database
        self._clock = clock
        self._is_closed = False
        # The account of a cluster is that of a submission.
        self.takes_many_senders = not client.is_cluster
        self._writer = VictoriaMetricsWriter(
            client,
            database=database,
            clock=clock,
            max_queued_points=MAX_QUEUED_POINTS,
            recent_folder=recent_folder,
        )

    @classmethod
    def from_url(cls, url: str, *, recent_folder: Path | None = None) -> "VictoriaMetricsStore":
        """Open `victoriametrics://[user:password@]host[:port][/path][?database=name]`.

        `select=host:port` and `storage=host:port,...` are those of a cluster. What the server may
        lose when it is killed is stored in `recent_folder`.

        Raises:
            ConfigurationError: a parameter is unknown, or a cluster's is missing.
        """
        parameters = dict(parse_qsl(urlsplit(url).query))
        errors = [
            f"{name}= is unknown; use {', '.join(_PARAMETERS)}"
            for name in parameters
            if name not in _PARAMETERS
        ]
        if "storage" in parameters and "select" not in parameters:
            errors.append("storage= is for a cluster; add select=host:port, its vmselect")
        if errors:
            raise ConfigurationError(errors, source=SOURCE)
        database = parameters.get("database", DEFAULT_DATABASE)
        client = VictoriaMetricsClient.from_url(url)
        return cls(client, database=database, recent_folder=recent_folder)

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next request; the future has the rejected points."""
        return self._writer.submit(batch, identity)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""
        reader = self._reader(query)
        step_ms_of(query)
        return read_range(reader, query) if reader else []

    def query_columns(self, query: RangeQuery) -> list[SeriesColumns]:
        """Return the series of a range query as arrays, by field."""
        return columns_of(self.query_range(query))

    def samples(self, query: SampleQuery) -> list[SampleColumns]:
        """Return the numbers themselves, with one series for each set of tags."""
        reader = self._reader(query)
        if reader is None:
            return []
        span = span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms)
        columns, remaining = list[SampleColumns](), query.max_samples
        for name in query.fields:
            visible = field_selector(reader.selector, query.measurement, name)
            own = replace(reader, selector=visible)
            of_field = samples_of_field(own, span, name, limit=remaining)
            if of_field is None:
                raise TooManySamplesError.of(query)
            remaining -= len(of_field.values)
            columns.append(of_field)
        return columns

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
        """Return the extent of a scan: exact times, and a lower bound of its points.

        The server counts samples by field: the points of a tag set are those of its longest field.
        With a single field the number is exact.
        """
        reader = self._reader(query)
        if reader is None:
            return None
        return extent(reader, span_of(query.start_ns, query.end_ns, last_ms=reader.last_ms))

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        return self._label_values(MEASUREMENT_LABEL, None, tenants)

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type, which is always `float`, of these tenants' fields, sorted."""
        start = len(metric_name(measurement, ""))
        names = self._label_values(METRIC_LABEL, measurement, tenants)
        return {name[start:]: "float" for name in names}

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        visible = self._existing(measurement, tenants)
        client = self._reading(tenants)
        listed = self._names(client, "/api/v1/labels", visible) if visible else []
        tags = {*listed} - RESERVED_LABELS
        return [*IDENTITY_TAGS, *sorted(tags.difference(IDENTITY_TAGS))] if tags else []

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        return [] if tag in RESERVED_LABELS else self._label_values(tag, measurement, tenants)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, including those still queued."""
        visible = selector(self._database, tenants=(tenant,))
        if visible:
            client = self._reading((tenant,))
            self._writer.run(lambda: self._writer.forget(mark_of(self._database, tenant)))
            self._writer.run(lambda: client.delete(visible))

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Do nothing: retention is the server's flag -retentionPeriod."""
        self._check_open()
        log.debug("not deleted: %s samples before %d; see -retentionPeriod", resolution, before_ns)

    def maintain(  # the interface of all stores
        self,
        *,
        now_ns: int,  # noqa: ARG002
        needed: Collection[NeededField] = (),  # noqa: ARG002
    ) -> int:
        """Do nothing: the server answers every query from samples."""
        self._check_open()
        return 0

    def close(self) -> None:
        """Write queued points and close the connections."""
        self._is_closed = True
        self._writer.close()
        self._client.close()

    def _reader(self, query: RangeQuery | LatestQuery | ScanQuery | SampleQuery) -> Reader | None:
        self._check_open()
        visible = selector(
            self._database,
            measurement=query.measurement,
            tenants=query.tenants,
            filters={} if isinstance(query, SampleQuery) else query.filters,
            conditions=query.matchers if isinstance(query, RangeQuery | SampleQuery) else (),
        )
        client = self._reading(query.tenants)
        return Reader(client, visible, self._last_ms()) if visible else None

    def _reading(self, tenants: tuple[str, ...] | None) -> VictoriaMetricsClient:
        """Return the client of a single tenant's account in a cluster, or of all accounts."""
        if not self._client.is_cluster or tenants is None or len(tenants) != 1:
            return self._client
        return self._client.within(account_of(self._database, tenants[0]))

    def _existing(self, measurement: str | None, tenants: tuple[str, ...] | None) -> str | None:
        # With a selector, deleted names are still listed; without one they are not.
        prefix = scope_of(self._database, "")
        scopes = self._names(self._client, _values_path(SCOPE_LABEL), None)
        existing = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
        seen = [tenant for tenant in existing if tenants is None or tenant in tenants]
        return selector(self._database, measurement=measurement, tenants=seen)

    def _label_values(
        self, label: str, measurement: str | None, tenants: tuple[str, ...] | None
    ) -> list[str]:
        visible = self._existing(measurement, tenants)
        if not label or not visible:
            return []
        return self._names(self._reading(tenants), _values_path(label), visible)

    def _names(self, client: VictoriaMetricsClient, path: str, visible: str | None) -> list[str]:
        self._check_open()
        parameters = [("start", "0"), ("end", str(self._last_ms() // 1000))]
        if visible:
            parameters.append(("match[]", visible))
        return sorted(client.names(path, parameters))

    def _last_ms(self) -> int:
        return to_ns(self._clock()) // 1_000_000 + MAX_AHEAD_MS

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError("The time series store is closed.")


def _values_path(label: str) -> str:
    # The server merges two slashes in a path into one.
    name = quote(label, safe="").replace("%2F", "%2F%2F")
    return f"/api/v1/label/{name}/values"
