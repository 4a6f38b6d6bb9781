"""The store on an InfluxDB server: 1.6 and 1.7, 1.8, 2.x and 3.x by the same code.

An acknowledged sample is in the server's log on disk: the future of a submission resolves when the
server has answered the request that carried it. A sample that is delivered twice is one sample.
What happens to the names that InfluxDB can't hold is told in `influxdb_names`.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

from timeseries.batch import Batch
from timeseries.influxdb.address import InfluxDBAddress, parse_address
from timeseries.influxdb.deletion import delete_before, delete_tenant
from timeseries.influxdb.http import QUERY_SECONDS, InfluxDBConnection
from timeseries.influxdb.reader import InfluxDBReader
from timeseries.influxdb.writer import InfluxDBWriter
from timeseries.listed import Listed
from timeseries.store import (
    Extent,
    Latest,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    Resolution,
    ScanQuery,
    Series,
)

MAX_QUEUED_POINTS = 500_000


class InfluxDBStore(Listed):
    """A `Store` in a database of an InfluxDB.

    Args:
        address: the server and the database; neither is asked for before the first call, so the
            server may start later than this.
        max_queued_points: how many points may wait for the writer before `submit` refuses.
        query_seconds: how long an answer to a query may let one wait.
    """

    def __init__(
        self,
        address: InfluxDBAddress,
        *,
        max_queued_points: int = MAX_QUEUED_POINTS,
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        self._connection = InfluxDBConnection(address, query_seconds=query_seconds)
        self._reader = self._lists = InfluxDBReader(self._connection)
        self._writer = InfluxDBWriter(
            self._connection,
            load_types=lambda measurement: self._reader.shape(measurement).fields,
            max_queued_points=max_queued_points,
        )
        self._lock = threading.Lock()
        self._is_closed = False

    @classmethod
    def from_url(cls, url: str) -> "InfluxDBStore":
        """Open the store that an `influxdb://` or `influxdbs://` URL names.

        Raises:
            ConfigurationError: the URL has faults.
        """
        return cls(parse_address(url))

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next request; the future holds the points refused.

        Raises:
            OverloadedError: too many points wait already.
        """
        return self._writer.submit(batch, identity)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group.

        The 95th and 99th percentile are interpolated in windows of up to 16 different sizes; in
        larger ones they are the value at the nearest rank. Sums of integers that pass 64 bits wrap.
        """
        return self._reader.query_range(query)

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group."""
        return self._reader.latest(query)

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first, as they arrive."""
        return self._reader.scan(query)

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan: its bounds are exact, its points a lower bound.

        InfluxQL counts the values of a field and never points: of each series it is the field with
        the most. With a single field the number is exact.
        """
        return self._reader.extent(query)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, those still queued included."""
        self._writer.run(lambda: delete_tenant(self._connection, tenant))

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample older than `before_ns`; of roll-ups there are none."""
        if resolution is Resolution.RAW:
            self._writer.run(lambda: delete_before(self._connection, before_ns))

    def roll_up(self, *, now_ns: int) -> int:  # noqa: ARG002 - the interface's; nothing is due here
        """Do nothing: this store keeps no roll-ups and answers every range from the samples."""
        return 0

    def close(self) -> None:
        """Write what is queued and close the connections."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._writer.close()
        self._connection.close()
