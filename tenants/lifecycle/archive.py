"""Exports all data of a tenant as one ZIP file.

Each table is a JSON lines file in `tables/`, each measurement a Parquet file in `samples/`, the log
of each attempt a file in `logs/`. Secrets and their hashes are left out.
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from sqlalchemy import ColumnElement, Select, Table, case, select
from sqlalchemy.orm import Session

from core.atomic_files import replacing
from core.db import Base, SessionFactory, transaction
from tenants.models import Appliance, AuditEntry, Membership, Tenant, TenantRemoval, User
from timeseries.migration.export import ExportFormat, export
from timeseries.store import ScanQuery, Store

ROWS_AT_ONCE = 1000
# What a tenant has on its own appliances, and on those that it rents.
_ON_ANY_APPLIANCE = frozenset({"dataset_copies"})
_SECRETS = frozenset(
    {
        "secret",
        "secret_hash",
        "password_hash",
        "totp_secret",
        "totp_last_step",
        "private_key",
        "code_hash",
        "env",
        "secret_env",
        "secrets",
        "target",
        # Of log targets.
        "token",
        "url",
        "instance_id",
        "past_instances",
        # Files that were emailed: what they say is in the other tables.
        "content",
    }
)
_EARLIEST_NS, _LATEST_NS = -(2**63), 2**63 - 1
_README = """\
All data of the tenant {name} ({slug}).

tables/*.jsonl     one JSON object a line; instants are UTC. Secrets, the environment variables of
                   jobs and the addresses of receivers are left out.
samples/*.parquet  one row for each point: its time, its tags, its fields.
logs/JOB/N.log     the output of attempt N of a job: time, stream, F for a whole line, the line.
                   N.parquet has the same lines.
logs/appliances/*.parquet has logs of appliances, tables/log_batches.jsonl the newest of them.
                   tables/attempt_log_chunks.jsonl has those of attempts that ended just before.
tables/audit_entries.jsonl is a chain of hashes: each entry names the hash of the one before.
"""

Progress = Callable[[int, int], None]


class TenantLogs(Protocol):
    """The files with logs of jobs."""

    def of_tenant(self, tenant_id: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name of each file of a tenant, below its folder, with its content in pieces."""

    def delete(self, name: str) -> None:
        """Delete the folder of a tenant, which may be missing."""


class ArchiveInterrupted(Exception):  # noqa: N818 - not an error
    """The process is stopping."""


class Archive:
    """Writes the export of one tenant."""

    def __init__(
        self,
        sessions: SessionFactory,
        store: Store,
        logs: TenantLogs,
        tenant_id: str,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._logs = logs
        self._tenant_id = tenant_id
        self._is_stopping = is_stopping

    def write(self, path: Path, *, progress: Progress) -> int:
        """Write the file, which appears under its name when it is complete; return its size.

        `progress` is called after each table and measurement with the numbers done and in total.

        Raises:
            ArchiveInterrupted: the process is stopping; no file remains.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It contains personal data: only the server's user may read it.
        with (
            replacing(path) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            self._fill(archive, progress)
        return path.stat().st_size

    def _fill(self, archive: zipfile.ZipFile, progress: Progress) -> None:
        measurements = self._store.measurements(tenants=(self._tenant_id,))
        statements = list(_statements(self._tenant_id))
        total = len(statements) + len(measurements) + 1
        with transaction(self._sessions) as session:
            tenant = session.get_one(Tenant, self._tenant_id)
            readme = _README.format(name=tenant.name, slug=tenant.slug)
        archive.writestr("README.txt", readme)
        for done, (name, statement) in enumerate(statements):
            progress(done, total)
            self._write_table(archive, name, statement)
        for done, measurement in enumerate(measurements, start=len(statements)):
            progress(done, total)
            self._write_samples(archive, measurement)
        progress(total - 1, total)
        self._write_logs(archive)
        progress(total, total)

    def _write_table(self, archive: zipfile.ZipFile, name: str, statement: Select[Any]) -> None:
        with (
            transaction(self._sessions) as session,
            archive.open(f"tables/{name}.jsonl", "w", force_zip64=True) as file,
        ):
            for line in _lines(session, statement):
                self._check_stopping()
                file.write(line)

    def _write_samples(self, archive: zipfile.ZipFile, measurement: str) -> None:
        query = ScanQuery(
            measurement=measurement,
            start_ns=_EARLIEST_NS,
            end_ns=_LATEST_NS,
            tenants=(self._tenant_id,),
        )
        # Parquet is already compressed: store it as it is.
        member = zipfile.ZipInfo(f"samples/{quote(measurement, safe='')}.parquet")
        with archive.open(member, "w", force_zip64=True) as file:
            for piece in export(self._store, query, ExportFormat.PARQUET):
                self._check_stopping()
                file.write(piece.data)

    def _write_logs(self, archive: zipfile.ZipFile) -> None:
        for name, pieces in self._logs.of_tenant(self._tenant_id):
            with archive.open(f"logs/{name}", "w", force_zip64=True) as file:
                for piece in pieces:
                    self._check_stopping()
                    file.write(piece)

    def _check_stopping(self) -> None:
        if self._is_stopping():
            raise ArchiveInterrupted


def _statements(tenant_id: str) -> Iterator[tuple[str, Select[Any]]]:
    """Yield every table with data of the tenant, with the query of its rows."""
    members = select(Membership.user_id).where(Membership.tenant_id == tenant_id)
    tables = Base.metadata.tables
    yield "tenants", _columns(tables["tenants"]).where(Tenant.id == tenant_id)
    yield "users", _columns(tables["users"]).where(User.id.in_(members))
    yield (
        "audit_entries",
        _columns(tables["audit_entries"])
        .where(AuditEntry.chain == tenant_id)
        .order_by(AuditEntry.number),
    )
    appliances = select(Appliance.id).where(Appliance.tenant_id == tenant_id)
    for table in tenant_tables():
        statement = _columns(table).where(table.c.tenant_id == tenant_id)
        if table.name in _ON_ANY_APPLIANCE:
            statement = statement.where(table.c.appliance_id.in_(appliances))
        yield table.name, statement
    own = {table.name for table in tenant_tables()}
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            parent = key.column.table
            if "tenant_id" not in table.c and parent.name in own - {"users"}:
                owned = select(key.column).where(parent.c.tenant_id == tenant_id)
                yield table.name, _columns(table).where(key.parent.in_(owned))
                break


def tenant_tables() -> list[Table]:
    """Return the tables with tenants' rows, referred tables first."""
    tables = Base.metadata.sorted_tables
    retained = TenantRemoval.__tablename__
    return [table for table in tables if "tenant_id" in table.c and table.name != retained]


def _columns(table: Table) -> Select[Any]:
    columns: dict[str, ColumnElement[Any]] = {
        column.name: column for column in table.columns if column.name not in _SECRETS
    }
    if {"contract_id", "appliance_id"} <= columns.keys():
        # A rented appliance is another tenant's.
        own = case((table.c.contract_id.is_(None), table.c.appliance_id))
        columns["appliance_id"] = own.label("appliance_id")
    statement = select(*columns.values())
    return statement.order_by(*table.primary_key.columns)


def _lines(session: Session, statement: Select[Any]) -> Iterator[bytes]:
    rows = session.execute(statement, execution_options={"yield_per": ROWS_AT_ONCE})
    for row in rows.mappings():
        yield json.dumps(dict(row), default=_json_value, ensure_ascii=False).encode() + b"\n"


def _json_value(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(f"can't encode {type(value).__name__} as JSON")
