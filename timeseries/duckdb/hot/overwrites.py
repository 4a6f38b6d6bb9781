"""Overwrites: when a series has several rows at one instant, of which the last one counts.

The last write wins, per field, as in InfluxDB. When rows are written of a series and instant that
has others, in tables or files, their times are noted by tenant and measurement, in the transaction
that adds them. Queries of these times take the last value of each field; all others read rows as
they are. Sealing leaves one row of each, and the times are forgotten.

Source: docs/decisions/0009-embedded-store.md.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

import duckdb

from timeseries.duckdb.files.spans import Spans, joined
from timeseries.duckdb.query.units import TENANT
from timeseries.duckdb.schema import TIME_COLUMN, Key, Span, quoted, table_name

OVERWRITTEN_TABLE = "overwritten"
_DDL = (
    f"CREATE TABLE IF NOT EXISTS {OVERWRITTEN_TABLE} (measurement VARCHAR NOT NULL, "
    "tenant VARCHAR NOT NULL, oldest BIGINT NOT NULL, newest BIGINT NOT NULL)"
)
_EXISTS = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
_TIME = quoted(TIME_COLUMN)


class Overwrites:
    """The spans in which series have several rows at one instant, by measurement and tenant.

    Only the writer's thread changes them; readers may ask at any time.

    Args:
        cursor: reads the table, which it creates if missing.
        tables: those of the store. One of an earlier version may have such rows anywhere.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, tables: Collection[Key]) -> None:
        self._spans: dict[str, dict[str, Spans]] = {}
        # To ask whether the table exists takes a third of the time to open a new store.
        is_former = not tables or bool(cursor.execute(_EXISTS, [OVERWRITTEN_TABLE]).fetchall())
        cursor.execute(_DDL)
        rows = cursor.execute(
            f"SELECT measurement, tenant, oldest, newest FROM {OVERWRITTEN_TABLE}"  # noqa: S608 - ours
        ).fetchall()
        for measurement, tenant, oldest, newest in rows:
            self._set(measurement, {tenant: [(oldest, newest + 1)]})
        if is_former:
            return
        for key in tables:
            rows = cursor.execute(
                f"SELECT {TENANT}, min({_TIME}), max({_TIME}) FROM {quoted(table_name(key))} "  # noqa: S608 - own identifiers only
                "GROUP BY 1"
            ).fetchall()
            spans = [(tenant, (oldest, newest + 1)) for tenant, oldest, newest in rows]
            self.add(cursor, key.measurement, spans)

    def of(self, measurement: str, tenants: Sequence[str] | None) -> Spans:
        """Return the spans of some tenants' samples, in order; None for all tenants."""
        spans = self._spans.get(measurement)
        if not spans:
            return ()
        return joined(
            chain.from_iterable(
                tenant_spans
                for tenant, tenant_spans in spans.items()
                if tenants is None or tenant in tenants
            )
        )

    def by_tenant(self, measurement: str) -> Mapping[str, Spans]:
        """Return the spans of each tenant."""
        return self._spans.get(measurement, {})

    def add(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        added: Iterable[tuple[str, Span]],
    ) -> None:
        """Add spans of tenants in the open transaction; readers see them at once."""
        spans: dict[str, list[Span]] = {}
        for tenant, span in added:
            spans.setdefault(tenant, []).append(span)
        self._set(measurement, spans)
        for tenant in spans:
            self._store(cursor, measurement, tenant)

    def keep(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        is_needed: Callable[[str, Span], bool],
    ) -> None:
        """Forget the spans that are not needed any longer."""
        for tenant, spans in self.by_tenant(measurement).items():
            needed = tuple(span for span in spans if is_needed(tenant, span))
            if needed != spans:
                others = {**self.by_tenant(measurement), tenant: needed}
                self._spans[measurement] = {
                    name: tenant_spans for name, tenant_spans in others.items() if tenant_spans
                }
                self._store(cursor, measurement, tenant)

    def _set(self, measurement: str, spans: Mapping[str, Iterable[Span]]) -> None:
        former = self.by_tenant(measurement)
        self._spans[measurement] = {
            **former,
            **{
                tenant: joined([*former.get(tenant, ()), *added]) for tenant, added in spans.items()
            },
        }

    def _store(self, cursor: duckdb.DuckDBPyConnection, measurement: str, tenant: str) -> None:
        place = [measurement, tenant]
        cursor.execute(
            f"DELETE FROM {OVERWRITTEN_TABLE} WHERE measurement = ? AND tenant = ?",  # noqa: S608 - ours
            place,
        )
        for start, end in self.by_tenant(measurement).get(tenant, ()):
            cursor.execute(
                f"INSERT INTO {OVERWRITTEN_TABLE} VALUES (?, ?, ?, ?)",  # noqa: S608 - ours
                [*place, start, end - 1],
            )
