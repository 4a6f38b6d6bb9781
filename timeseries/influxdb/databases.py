"""A database (1.x) or bucket (2.x) for each tenant, beside the one that the URL names.

The named one, the *base*, is the template of their retention, and has the samples that were written
before its tenants had their own, or that `databases=shared` put there. Reads take all of a query's
databases as one: InfluxQL merges what several databases have of a measurement.

A tenant's database is created when its first sample arrives. A user or token that may not create it
writes to the base instead, as a warning says. InfluxDB 3 has no queries over several databases: its
tenants share the base.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from timeseries.influxdb.client import (
    WRITE_SECONDS,
    AccessDeniedError,
    DatabaseMissingError,
    InfluxDBConnection,
)
from timeseries.influxdb.influxql import identifier

# Tells a tenant's database from another installation's whose name begins alike.
_INFIX = ".tenant-"
_MAX_LENGTH = 120
_NO_JOINS = (3, 0)
_log = logging.getLogger(__name__)


class TenantDatabases:
    """The databases of a server's tenants."""

    def __init__(self, connection: InfluxDBConnection) -> None:
        self._connection = connection
        self._base = connection.address.database
        self._prefix = f"{self._base}{_INFIX}"

    @property
    def are_shared(self) -> bool:
        """True if all tenants share the base."""
        return self._connection.address.is_shared or self._connection.version >= _NO_JOINS

    def of_tenant(self, tenant: str) -> str:
        """Return the database for the samples of a tenant; the base for those of none."""
        if not tenant or self.are_shared:
            return self._base
        # A name is that of a folder: without slashes and unprintable characters, and not too long.
        # A dot would end the prefix of another installation.
        name = quote(tenant, safe="", errors="surrogatepass")
        name = name.replace(".", "%2E").replace("~", "%7E")
        if len(name) > _MAX_LENGTH:
            name = "~" + hashlib.sha256(name.encode()).hexdigest()
        return self._prefix + name

    def visible(self, tenants: Sequence[str] | None) -> list[str]:
        """Return the databases that may have samples of these tenants, None for all."""
        if self.are_shared:
            return [self._base]
        statement = ["SHOW DATABASES"]
        names = [
            str(row[0]) for _, series in self._connection.query(statement) for row in series.values
        ]
        if tenants is None:
            own = sorted(name for name in names if self._is_tenants(name))
        else:
            own = sorted({*names} & {self.of_tenant(tenant) for tenant in tenants if tenant})
        return [self._base, *own]

    def create(self, name: str) -> None:
        """Create a tenant's database with the retention of the base.

        Raises:
            AccessDeniedError: the user or token may not.
            DatabaseMissingError: there is no base.
        """
        if self._connection.has_buckets:
            self._create_bucket(name)
        else:
            self._create_database(name)
        _log.info("created database %s on %s", name, self._connection.address.host_port)

    def drop(self, tenant: str) -> None:
        """Drop a tenant's database, if it has one."""
        name = self.of_tenant(tenant)
        if name not in self.visible((tenant,))[1:]:
            return
        if not self._connection.has_buckets:
            self._run(f"DROP DATABASE {identifier(name)}")
            return
        for bucket in self._buckets(name):
            self._call("DELETE", f"/api/v2/buckets/{quote(bucket['id'], safe='')}")

    def _is_tenants(self, name: str) -> bool:
        return name.startswith(self._prefix) and "." not in name.removeprefix(self._prefix)

    def _create_database(self, name: str) -> None:
        statement = f"SHOW RETENTION POLICIES ON {identifier(self._base)}"
        wanted = self._connection.address.retention_policy
        for _, series in self._connection.query([statement]):
            for row in series.values:
                policy = dict(zip(series.columns, row, strict=True))
                if policy["name"] == wanted or (not wanted and policy["default"]):
                    self._run(
                        f"CREATE DATABASE {identifier(name)} WITH DURATION {policy['duration']} "
                        f"REPLICATION {policy['replicaN']} "
                        f"SHARD DURATION {policy['shardGroupDuration']} "
                        f"NAME {identifier(str(policy['name']))}"
                    )
                    return
        raise DatabaseMissingError(
            f"InfluxDB at {self._connection.address.host_port} has no retention policy "
            f"{wanted or 'by default'} in database {self._base!r}. Create it, or change rp= in "
            "the URL."
        )

    def _create_bucket(self, name: str) -> None:
        address = self._connection.address
        for base in self._buckets(self._base):
            body = {
                "orgID": base["orgID"],
                "name": address.of(name).bucket,
                "description": "Samples of one tenant of Vedette",
                "retentionRules": base.get("retentionRules", []),
            }
            self._call("POST", "/api/v2/buckets", body)
            return
        raise DatabaseMissingError(
            f"InfluxDB at {address.host_port} has no bucket {address.bucket!r}. Create it, or "
            "change bucket= in the URL."
        )

    def _buckets(self, database: str) -> Iterator[dict[str, Any]]:
        address = self._connection.address.of(database)
        query = urlencode({"org": address.organization, "name": address.bucket})
        try:
            answer = self._call("GET", f"/api/v2/buckets?{query}")
        except DatabaseMissingError:
            return
        yield from answer.get("buckets", [])

    def _call(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        response = self._connection.request(
            method,
            url,
            seconds=WRITE_SECONDS,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        exists_already = method == "POST" and response.status == HTTPStatus.UNPROCESSABLE_ENTITY
        if response.status >= HTTPStatus.BAD_REQUEST and not exists_already:
            raise self._connection.error_of(response)
        decoded: dict[str, Any] = msgspec.json.decode(response.data) if response.data else {}
        return decoded

    def _run(self, statement: str) -> None:
        for _ in self._connection.query([statement]):
            pass


class TenantDatabase:
    """The database of one tenant, which one thread at a time writes to."""

    def __init__(
        self, connection: InfluxDBConnection, databases: TenantDatabases, tenant: str
    ) -> None:
        self._connection = connection
        self._databases = databases
        self.name = databases.of_tenant(tenant)

    def write(self, lines: bytes) -> None:
        """Write lines; create the database if it is missing, or use the base if that is denied."""
        try:
            self._connection.write(lines, database=self.name)
        except (DatabaseMissingError, AccessDeniedError):
            if self.name == self._connection.address.database:
                raise
            self._create_and_write(lines)

    def _create_and_write(self, lines: bytes) -> None:
        base = self._connection.address.database
        try:
            self._databases.create(self.name)
        except AccessDeniedError as error:
            self._connection.write(lines, database=base)
            _log.warning(
                "can't create database %r for a tenant, so its samples go to %r, which tenants "
                "without their own share. Let the user or token create databases (1.x: GRANT ALL "
                "PRIVILEGES TO user; 2.x: an all-access token), or set databases=shared in the "
                "URL. %s",
                self.name,
                base,
                error.message,
            )
            self.name = base
        else:
            self._connection.write(lines, database=self.name)
