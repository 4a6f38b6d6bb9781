"""Statements with which other programs read files of the open layout: a view of one measurement.

The view has only files that the list has; so what was replaced, and stays for a while, is not read
twice. Times are in UTC. docs/open-files.md has examples; tests run them in DuckDB, Spark and
ClickHouse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from timeseries.duckdb.files.layout import FILES_LIST
from timeseries.duckdb.schema import TIME_COLUMN, quoted
from timeseries.store import Resolution


class Engine(StrEnum):
    """A program that reads the files."""

    DUCKDB = "duckdb"
    SPARK = "spark"
    TRINO = "trino"
    CLICKHOUSE = "clickhouse"


_TYPES: Mapping[Engine, Mapping[str, str]] = {
    Engine.TRINO: {"MAP(INTEGER, UINTEGER)": "MAP(INTEGER, BIGINT)"},
    Engine.CLICKHOUSE: {
        "BIGINT": "Nullable(Int64)",
        "DOUBLE": "Nullable(Float64)",
        "BOOLEAN": "Nullable(Bool)",
        "VARCHAR": "Nullable(String)",
        "MAP(INTEGER, UINTEGER)": "Map(Int32, UInt32)",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """The files of a tenant's measurement in one resolution.

    Attributes:
        place: the folder, or s3:// address, of the store's files.
        partition: the folder of the tenant's measurement.
        name: the name of the view.
        columns: the columns of the files, with their types in DuckDB.
        endpoint: the address of the server with the bucket; "" for AWS.
    """

    place: str
    partition: str
    resolution: Resolution
    name: str
    columns: Mapping[str, str]
    endpoint: str = ""

    @property
    def files_list(self) -> str:
        """The address of the list of files."""
        return f"{self.place}/{self.partition}/{FILES_LIST}"

    @property
    def folder(self) -> str:
        """The address of the folder of the resolution, which has one of each day."""
        return f"{self.place}/{self.partition}/resolution={self.resolution}"


def statements(table: OpenTable, engine: Engine) -> str:
    """Return the statements that make the view of a table in a program."""
    return {
        Engine.DUCKDB: _duckdb,
        Engine.SPARK: _spark,
        Engine.TRINO: _trino,
        Engine.CLICKHOUSE: _clickhouse,
    }[engine](table)


def _duckdb(table: OpenTable) -> str:
    return f"""\
SET VARIABLE {table.name}_files = (
    SELECT list({_text(f"{table.place}/")} || path) FROM read_json({_text(table.files_list)})
    WHERE resolution = '{table.resolution}');
CREATE OR REPLACE TEMP VIEW {table.name} AS
SELECT make_timestamp_ns({quoted(TIME_COLUMN)}) AS sampled_at, *
FROM read_parquet(getvariable('{table.name}_files'),
    union_by_name = true, hive_partitioning = true);
"""  # noqa: S608 - own identifiers and quoted texts only


def _spark(table: OpenTable) -> str:
    return f"""\
SET spark.sql.parquet.mergeSchema = true;
CREATE OR REPLACE TEMPORARY VIEW {table.name}_list
USING json OPTIONS (path {_text(_hadoop(table.files_list))});
CREATE OR REPLACE TEMPORARY VIEW {table.name} AS
SELECT timestamp_micros({_backticks(TIME_COLUMN)} DIV 1000) AS sampled_at, *
FROM parquet.{_backticks(_hadoop(table.folder))}
WHERE _metadata.file_name IN (SELECT file FROM {table.name}_list);
"""  # noqa: S608 - own identifiers and quoted texts only


def _trino(table: OpenTable) -> str:
    columns = _columns(table, Engine.TRINO, quote=quoted)
    names = ", ".join(map(quoted, table.columns))
    return f"""\
USE hive.vedette;
CREATE TABLE {table.name}_list (path VARCHAR, file VARCHAR, resolution VARCHAR)
WITH (format = 'JSON', external_location = {_text(table.files_list.rpartition("/")[0] + "/")});
CREATE TABLE {table.name}_parquet ({columns}, day VARCHAR)
WITH (format = 'PARQUET', partitioned_by = ARRAY['day'],
      external_location = {_text(f"{table.folder}/")});
CALL system.sync_partition_metadata('vedette', '{table.name}_parquet', 'FULL');
CREATE OR REPLACE VIEW {table.name} AS
SELECT from_unixtime_nanos({quoted(TIME_COLUMN)}) AS sampled_at, {names}, day
FROM {table.name}_parquet
WHERE "$path" IN (SELECT concat({_text(f"{table.place}/")}, path) FROM {table.name}_list);
"""  # noqa: S608 - own identifiers and quoted texts only


def _clickhouse(table: OpenTable) -> str:
    columns = _columns(table, Engine.CLICKHOUSE, quote=_backticks) + ", day Date"
    function = "s3" if table.place.startswith("s3://") else "file"
    data, files = (
        f"{function}({_text(_http(table, address))}"
        for address in (f"{table.folder}/day=*/*.parquet", table.files_list)
    )
    return f"""\
CREATE OR REPLACE VIEW {table.name} AS
SELECT fromUnixTimestamp64Nano(assumeNotNull({_backticks(TIME_COLUMN)}), 'UTC') AS sampled_at, *
FROM {data}, 'Parquet', {_text(columns)})
WHERE _file IN (SELECT file FROM {files}, 'JSONEachRow', 'file String'));
"""  # noqa: S608 - own identifiers and quoted texts only


def _columns(table: OpenTable, engine: Engine, *, quote: Callable[[str], str]) -> str:
    types = _TYPES[engine]
    return ", ".join(
        f"{quote(name)} {types.get(kind, kind)}" for name, kind in table.columns.items()
    )


def _hadoop(address: str) -> str:
    """Return an address as Spark has it."""
    scheme, separator, rest = address.partition("s3://")
    return f"s3a://{rest}" if separator and not scheme else address


def _http(table: OpenTable, address: str) -> str:
    """Return an address as ClickHouse has it; it decodes what is percent-encoded."""
    bucket, separator, key = address.removeprefix("s3://").partition("/")
    if not address.startswith("s3://"):
        return address
    host = table.endpoint.rstrip("/") or "https://s3.amazonaws.com"
    return f"{host}/{bucket}{separator}{key.replace('%', '%25')}"


def _backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
