"""Exports hold what was written, in types that other tools read."""

import csv
import io
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv as pyarrow_csv
import pytest
from pyarrow import parquet

from core.csv_cells import FORMULA_STARTS
from core.errors import NotFoundError
from tests.unit.timeseries.migration_samples import END_NS, START_NS, all_of, rows_of, write_history
from timeseries.duckdb.store import DuckDBStore
from timeseries.migration.export import ExportFormat, export
from timeseries.points import FieldValue, Point
from timeseries.store import ScanQuery, write

ACME = {"tenant": "acme", "appliance": "a1"}


def exported(store: DuckDBStore, file_format: ExportFormat, measurement: str = "gpu") -> bytes:
    return b"".join(piece.data for piece in export(store, all_of(measurement), file_format))


def csv_rows(store: DuckDBStore, measurement: str = "gpu") -> list[dict[str, str]]:
    text = exported(store, ExportFormat.CSV, measurement).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_parquet_holds_every_point_with_its_types(store: DuckDBStore) -> None:
    write_history(store, hours=3)

    table = parquet.read_table(io.BytesIO(exported(store, ExportFormat.PARQUET)))

    assert table.num_rows == len(rows_of(store)) == 3 * 2 * 36
    assert {field.name: field.type for field in table.schema} == {
        "time": pa.timestamp("ns", tz="UTC"),
        "tenant": pa.string(),
        "appliance": pa.string(),
        "gpu": pa.string(),
        "power_watts": pa.float64(),
        "count": pa.int64(),
    }
    assert sum(table["count"].to_pylist()) == 3 * 2 * sum(range(0, 3 * 3600, 300))


def test_parquet_is_packed_with_zstd(store: DuckDBStore) -> None:
    write_history(store, hours=1)

    file = parquet.ParquetFile(io.BytesIO(exported(store, ExportFormat.PARQUET)))

    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_duckdb_reads_the_parquet_file(store: DuckDBStore, tmp_path: Path) -> None:
    write_history(store, hours=2)
    path = tmp_path / "gpu.parquet"
    path.write_bytes(exported(store, ExportFormat.PARQUET))

    with duckdb.connect() as connection:
        row = connection.execute(
            "SELECT count(*), count(DISTINCT appliance), epoch_ns(min(time)) FROM read_parquet(?)",
            [str(path)],
        ).fetchone()

    assert row == (144, 3, START_NS)


def test_csv_has_a_header_and_times_to_the_nanosecond(store: DuckDBStore) -> None:
    point = Point("gpu", {"gpu": "0"}, {"power_watts": 1.5, "count": 3}, START_NS + 123456789)
    write(store, [point], identity=ACME)

    assert csv_rows(store) == [
        {
            "time": "2023-11-14T22:00:00.123456789Z",
            "tenant": "acme",
            "appliance": "a1",
            "gpu": "0",
            "count": "3",
            "power_watts": "1.5",
        }
    ]


def test_text_with_quotes_commas_and_newlines_survives_csv(store: DuckDBStore) -> None:
    text = 'he said "no", \nthen =1+1'
    write(store, [Point("log", {}, {"text": text}, START_NS)], identity=ACME)

    assert csv_rows(store, "log")[0]["text"] == text


@pytest.mark.parametrize("start", FORMULA_STARTS)
def test_csv_has_no_formulas_and_numbers_stay_numbers(store: DuckDBStore, start: str) -> None:
    formula = f"{start}1+1|cmd\n{start}2"
    fields: dict[str, FieldValue] = {"text": formula, f"{start}name": -1.5, "count": -3}
    write(store, [Point("log", {"host": formula}, fields, START_NS)], identity=ACME)

    (row,) = csv_rows(store, "log")
    table = parquet.read_table(io.BytesIO(exported(store, ExportFormat.PARQUET, "log")))

    assert row["text"] == row["host"] == f"'{formula}"
    assert (row[f"'{start}name"], row["count"]) == ("-1.5", "-3")
    assert table["text"].to_pylist() == [formula]


def test_what_a_point_lacks_is_null_in_parquet_and_nothing_in_csv(store: DuckDBStore) -> None:
    points = [
        Point("gpu", {"gpu": "0"}, {"power_watts": 1.0}, START_NS),
        Point("gpu", {}, {"is_lost": True}, START_NS + 1),
    ]
    write(store, points, identity=ACME)

    table = parquet.read_table(io.BytesIO(exported(store, ExportFormat.PARQUET)))

    assert table["gpu"].to_pylist() == ["0", None]
    assert table["power_watts"].to_pylist() == [1.0, None]
    assert table["is_lost"].to_pylist() == [None, True]
    assert [row["power_watts"] for row in csv_rows(store)] == ["1", ""]


# Around 1970, close to each other: an export reads all the windows between its points.
MIXED = (
    Point("m", {"gpu": "0"}, {"f": -0.1, "i": 2**62, "b": False, "s": 'a "b",\n温度'}, 7),
    Point("m", {}, {"f": 1e300, "s": ""}, 8),
    Point("m", {"gpu": " 1"}, {"i": -1, "b": True}, -1),
)
EXPECTED: list[dict[str, object]] = [
    {"time": -1, "gpu": " 1", "b": True, "f": None, "i": -1, "s": None},
    {"time": 7, "gpu": "0", "b": False, "f": -0.1, "i": 2**62, "s": 'a "b",\n温度'},
    {"time": 8, "gpu": None, "b": None, "f": 1e300, "i": None, "s": ""},
]


def read_csv(data: bytes) -> pa.Table:
    """Read an export as its types, as any reader that is told them would."""
    types = {
        "time": pa.timestamp("ns", tz="UTC"),
        "tenant": pa.string(),
        "appliance": pa.string(),
        "gpu": pa.string(),
        "b": pa.bool_(),
        "f": pa.float64(),
        "i": pa.int64(),
        "s": pa.string(),
    }
    return pyarrow_csv.read_csv(
        io.BytesIO(data),
        parse_options=pyarrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow_csv.ConvertOptions(
            column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


@pytest.mark.parametrize("file_format", ExportFormat)
def test_an_export_has_the_written_samples(store: DuckDBStore, file_format: ExportFormat) -> None:
    assert write(store, MIXED, identity=ACME) == []

    ever = ScanQuery(measurement="m", start_ns=-(2**63), end_ns=END_NS, tenants=None)
    data = b"".join(piece.data for piece in export(store, ever, file_format))
    is_csv = file_format is ExportFormat.CSV
    table = read_csv(data) if is_csv else parquet.read_table(io.BytesIO(data))

    rows = table.set_column(0, "time", table["time"].cast(pa.int64())).to_pylist()
    assert rows == [row | ACME for row in EXPECTED]


def test_columns_are_those_of_the_tenants_alone(store: DuckDBStore) -> None:
    write(store, [Point("m", {"ours": "1"}, {"power_watts": 1.0}, START_NS)], identity=ACME)
    globex = {"tenant": "globex", "appliance": "g1"}
    write(store, [Point("m", {"theirs": "1"}, {"secret": 1.0}, START_NS)], identity=globex)
    query = ScanQuery(measurement="m", start_ns=0, end_ns=END_NS, tenants=("acme",))

    text = b"".join(piece.data for piece in export(store, query, ExportFormat.CSV))

    assert text.splitlines()[0] == b'"time","tenant","appliance","ours","power_watts"'


def test_a_field_called_like_a_tag_has_a_column_of_its_own(store: DuckDBStore) -> None:
    point = Point("x", {"kind": "tag"}, {"kind": "field", "time": 5}, START_NS)
    write(store, [point], identity=ACME)

    (row,) = csv_rows(store, "x")

    assert (row["kind"], row["field_kind"], row["field_time"]) == ("tag", "field", "5")


def test_an_empty_span_is_a_file_with_a_header_and_no_rows(store: DuckDBStore) -> None:
    write_history(store, hours=1)
    query = ScanQuery(measurement="gpu", start_ns=END_NS, end_ns=END_NS + 1, tenants=None)

    text = b"".join(piece.data for piece in export(store, query, ExportFormat.CSV))
    packed = b"".join(piece.data for piece in export(store, query, ExportFormat.PARQUET))

    assert text.count(b"\n") == 1
    assert parquet.read_table(io.BytesIO(packed)).num_rows == 0


def test_an_export_has_only_the_requested_tenants(store: DuckDBStore) -> None:
    write_history(store, hours=1)
    query = ScanQuery(measurement="gpu", start_ns=0, end_ns=END_NS, tenants=("globex",))

    packed = b"".join(piece.data for piece in export(store, query, ExportFormat.PARQUET))

    assert set(parquet.read_table(io.BytesIO(packed))["tenant"].to_pylist()) == {"globex"}


def test_an_unknown_measurement_is_an_error_before_any_byte(store: DuckDBStore) -> None:
    with pytest.raises(NotFoundError, match="no measurement 'nothing'"):
        export(store, all_of("nothing"), ExportFormat.CSV)


def test_a_long_export_comes_in_pieces(store: DuckDBStore) -> None:
    write_history(store, hours=10, every_seconds=3)

    pieces = list(export(store, all_of("gpu"), ExportFormat.PARQUET))

    assert len(pieces) > 2
    assert pieces[-1].rows == 10 * 1200 * 6
    file = parquet.ParquetFile(io.BytesIO(b"".join(piece.data for piece in pieces)))
    assert file.num_row_groups > 1
