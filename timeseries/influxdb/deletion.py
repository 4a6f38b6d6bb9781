"""Deleting from an InfluxDB: InfluxQL on 1.x, `POST /api/v2/delete` on 2.x; 3.x has no way."""

import json
from datetime import UTC, datetime

from core.clock import NS_PER_SECOND
from timeseries.influxdb.errors import query_error
from timeseries.influxdb.http import InfluxDBConnection
from timeseries.influxdb.names import stored
from timeseries.influxdb.ql import (
    MAX_TIME_NS,
    MIN_TIME_NS,
    delete_before_statement,
    drop_tenant_statement,
)
from timeseries.store import TENANT_TAG, StoreUnavailableError

_NO_DELETION = (3, 0)
_SUCCESS = 204


def delete_tenant(connection: InfluxDBConnection, tenant: str) -> None:
    """Delete every sample of a tenant."""
    if not tenant:
        return
    if connection.has_buckets:
        text = stored(tenant).replace("\\", "\\\\").replace('"', '\\"')
        _delete(connection, start_ns=MIN_TIME_NS, end_ns=MAX_TIME_NS, only=f'{TENANT_TAG}="{text}"')
    else:
        _run(connection, drop_tenant_statement(tenant))


def delete_before(connection: InfluxDBConnection, before_ns: int) -> None:
    """Delete every sample that is older than an instant."""
    if before_ns <= MIN_TIME_NS:
        return
    if connection.has_buckets:
        _delete(connection, start_ns=MIN_TIME_NS, end_ns=min(before_ns - 1, MAX_TIME_NS))
    else:
        _run(connection, delete_before_statement(before_ns))


def _run(connection: InfluxDBConnection, statement: str) -> None:
    for _ in connection.query([statement]):
        pass


def _delete(connection: InfluxDBConnection, *, start_ns: int, end_ns: int, only: str = "") -> None:
    """Delete from the first to the last instant, both included."""
    address = connection.address
    if connection.version >= _NO_DELETION:
        raise StoreUnavailableError(
            f"InfluxDB at {address.place} is a {connection.version[0]}.x, which can't delete "
            "samples: set a retention period on the database there."
        )
    body = {"start": _rfc3339(start_ns), "stop": _rfc3339(end_ns)}
    if only:
        body["predicate"] = only
    answer = connection.post(
        "/api/v2/delete",
        json.dumps(body).encode(),
        query={"org": address.organisation, "bucket": address.bucket},
        headers={"Content-Type": "application/json"},
    )
    if answer.status != _SUCCESS:
        raise query_error(address, status=answer.status, headers=answer.headers, body=answer.data)


def _rfc3339(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
