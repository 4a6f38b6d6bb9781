"""How lines reach an InfluxDB: `POST /write` below 1.8, from there on the v2 call of
influxdb-client, synchronously; either way compressed, in one request, and durable once answered."""

import gzip
import importlib
from typing import Any, Protocol

from urllib3.exceptions import HTTPError

from timeseries.influxdb.address import InfluxDBAddress
from timeseries.influxdb.errors import no_answer, write_error
from timeseries.influxdb.http import WRITE_SECONDS, InfluxDBConnection

_GZIP_LEVEL = 1
_HAS_V2_WRITE = (1, 8)


class Delivery(Protocol):
    """Writes lines of line protocol with times in nanoseconds."""

    def write(self, lines: bytes) -> None:
        """Write lines; they are durable on return.

        Raises:
            LinesRefusedError: some or all were refused.
            RequestTooLargeError: send less at a time.
            StoreUnavailableError: the server does not answer or lets nobody in.
            OverloadedError: the server has too much to do.
        """

    def close(self) -> None:
        """Close what was opened."""


def open_delivery(connection: InfluxDBConnection) -> Delivery:
    """Return the way to write to the version that answers.

    Raises:
        StoreUnavailableError: none answers.
    """
    if connection.version >= _HAS_V2_WRITE:
        return V2Delivery(connection.address)
    return V1Delivery(connection)


class V1Delivery:
    """Writes through `POST /write` of 1.x."""

    def __init__(self, connection: InfluxDBConnection) -> None:
        self._connection = connection

    def write(self, lines: bytes) -> None:
        """Write lines; they are durable on return."""
        address = self._connection.address
        query = {"db": address.database, "precision": "ns"}
        if address.retention_policy:
            query["rp"] = address.retention_policy
        answer = self._connection.post(
            "/write", _compressed(lines), query=query, headers={"Content-Encoding": "gzip"}
        )
        if not _is_success(answer.status):
            raise write_error(
                address, status=answer.status, headers=answer.headers, body=answer.data
            )

    def close(self) -> None:
        """Close nothing: the connection is not ours."""


class V2Delivery:
    """Writes through `POST /api/v2/write` of 1.8, 2.x and 3.x."""

    def __init__(self, address: InfluxDBAddress) -> None:
        self._address = address
        # Imported here, for a server of another kind does without its several hundred modules.
        client_module: Any = importlib.import_module("influxdb_client")
        rest: Any = importlib.import_module("influxdb_client.rest")
        self._error: type[Exception] = rest.ApiException
        self._client = client_module.InfluxDBClient(
            url=address.base_url,
            token=address.token or (f"{address.user}:{address.password}" if address.user else None),
            org=address.organisation or "-",
            timeout=int(WRITE_SECONDS * 1000),
        )
        self._service = client_module.WriteService(self._client.api_client)

    def write(self, lines: bytes) -> None:
        """Write lines; they are durable on return."""
        try:
            self._service.post_write(
                org=self._address.organisation or "-",
                bucket=self._address.bucket,
                body=_compressed(lines),
                precision="ns",
                content_encoding="gzip",
                content_type="text/plain; charset=utf-8",
            )
        except self._error as error:
            raise _as_write_error(self._address, error) from error
        except (HTTPError, OSError) as error:
            raise no_answer(self._address, error) from error

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()


def _as_write_error(address: InfluxDBAddress, error: Any) -> Exception:  # noqa: ANN401 - no types
    if not error.status:
        return no_answer(address, error)
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    return write_error(address, status=error.status, headers=error.headers or {}, body=body)


def _is_success(status: int) -> bool:
    return 200 <= status < 300  # noqa: PLR2004 - HTTP's class of successes


def _compressed(lines: bytes) -> bytes:
    return gzip.compress(lines, _GZIP_LEVEL)
