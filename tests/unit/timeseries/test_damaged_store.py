"""One flipped byte in a file of the embedded store: it opens, and retains all that can be read."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from core.clock import NS_PER_SECOND
from tests.fixtures.in_process import run_vedette
from timeseries.duckdb.recovery import notice_path
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import open_store
from timeseries.points import Batch, Block
from timeseries.store import (
    DAY_NS,
    DamagedStoreError,
    ScanQuery,
    Store,
    StoreUnavailableError,
    damage_notice,
)

ACME = {"tenant": "acme", "appliance": "a1"}
MEASUREMENTS = ("cpu", "gpu")
ROWS, SEALED, HOT, IN_LOG = 2_000, 4, 3, 3
ALL = ROWS * (SEALED + HOT + IN_LOG)
# Of DuckDB's file: the first block of metadata, and the first of a table.
METADATA, FIRST_BLOCK = 12_288 + 64, 274_432 + 64


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with sealed files, rows in its file and rows in its log, as after kill -9."""
    folder = tmp_path_factory.mktemp("damage") / "whole"
    file = folder / "samples.duckdb"
    store = DuckDBStore(file)
    _write(store, range(SEALED))
    store.maintain(now_ns=30 * DAY_NS)
    _write(store, range(SEALED, SEALED + HOT))
    store.close()
    store = DuckDBStore(file)
    _write(store, range(SEALED + HOT, SEALED + HOT + IN_LOG))
    killed = folder.with_name("killed")
    shutil.copytree(folder, killed)
    store.close()
    return killed


@pytest.fixture
def file(template: Path, tmp_path: Path) -> Path:
    """The file of a copy of it."""
    return Path(shutil.copytree(template, tmp_path / "store")) / "samples.duckdb"


def _write(store: DuckDBStore, numbers: range) -> None:
    for number in numbers:
        for measurement in MEASUREMENTS:
            random = Random(number)  # noqa: S311 - repeatable
            values = tuple([random.random() for _ in range(ROWS)] for _ in range(2))
            times = [(number * ROWS + row) * NS_PER_SECOND for row in range(ROWS)]
            block = Block(
                measurement,
                (),
                [()],
                [0] * ROWS,
                ("a", "b"),
                (float, float),
                values,
                times,
                range(ROWS),
            )
            assert store.submit(Batch((block,)), identity=ACME).result() == []


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}.wal")


@contextmanager
def _recovered(file: Path) -> Iterator[Store]:
    with closing(open_store(f"duckdb:///{file}", recovers=True)) as store:
        yield store


def _points(store: Store) -> dict[str, int]:
    counts = {}
    for name in MEASUREMENTS:
        query = ScanQuery(measurement=name, start_ns=0, end_ns=2**62, tenants=None)
        counts[name] = sum(map(len, store.scan(query)))
    return counts


def _aside(file: Path, pattern: str) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.damaged-*/{pattern}"))


def test_a_store_without_damage_has_no_notice(file: Path) -> None:
    with _recovered(file) as store:
        assert _points(store) == dict.fromkeys(MEASUREMENTS, ALL)
        assert damage_notice(store) == ""


def test_other_commands_refuse_a_damaged_store_with_the_next_step(file: Path) -> None:
    _flip(_log(file), 500)
    before = file.read_bytes()

    with pytest.raises(DamagedStoreError, match="vedette store repair"):
        open_store(f"duckdb:///{file}")

    assert file.read_bytes() == before


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_commits_before_the_damage_of_the_log_are_retained(file: Path, share: float) -> None:
    log = _log(file)
    # Beside the length of an entry: with a wrong one DuckDB takes the rest for a torn write.
    _flip(log, int(log.stat().st_size * share) + 100)
    damaged = log.read_bytes()

    with _recovered(file) as store:
        points = _points(store)
        assert "log" in damage_notice(store)

    least = ROWS * (SEALED + HOT)
    assert all(least <= count < ALL or share > 0.9 for count in points.values())
    assert sum(points.values()) >= 2 * least + (share > 0.9) * 5 * ROWS
    assert [path.read_bytes() for path in _aside(file, "*.wal")] == [damaged]


def test_sealed_samples_survive_the_file_that_lists_them(file: Path) -> None:
    _flip(file, METADATA)

    with _recovered(file) as store:
        assert _points(store) == dict.fromkeys(MEASUREMENTS, ROWS * SEALED)
        store.maintain(now_ns=30 * DAY_NS)
        assert "damaged" in damage_notice(store)
    assert _aside(file, "samples.duckdb")

    with _recovered(file) as store:  # nothing is adopted twice, nor deleted
        assert _points(store) == dict.fromkeys(MEASUREMENTS, ROWS * SEALED)


@pytest.mark.parametrize("offset", [METADATA, FIRST_BLOCK, FIRST_BLOCK + 262_144])
def test_a_repair_retains_all_rows_but_those_of_the_damaged_block(file: Path, offset: int) -> None:
    _log(file).unlink()
    size = file.stat().st_size
    _flip(file, min(offset, size - 100))

    result = run_vedette("store", "repair", "--url", f"duckdb:///{file}")

    assert result.returncode == 0, result.stderr
    assert "lost: " in result.stdout
    assert str(file.parent) in result.stdout
    assert not notice_path(file).exists()
    with closing(open_store(f"duckdb:///{file}")) as store:
        points = _points(store)
        assert all(count >= ROWS * SEALED for count in points.values())
        assert f"retained: {sum(points.values()):,} samples" in result.stdout
        assert damage_notice(store) == ""


@pytest.mark.parametrize("size", [0, METADATA, FIRST_BLOCK + 40_000])
def test_a_file_without_its_end_loses_no_sealed_samples(file: Path, size: int) -> None:
    os.truncate(file, size)
    with _recovered(file) as store:
        assert all(count >= ROWS * SEALED for count in _points(store).values())
        assert "lost" in damage_notice(store)


@pytest.mark.parametrize("place", ["footer", "page"])
def test_a_repair_sets_a_damaged_file_of_samples_aside(file: Path, place: str) -> None:
    (path,) = file.parent.glob("samples/acme/gpu/*/*.raw.parquet")
    _flip(path, path.stat().st_size - 3 if place == "footer" else path.stat().st_size // 2)
    damaged = path.read_bytes()

    result = run_vedette("store", "repair", "--url", f"duckdb:///{file}")

    assert result.returncode == 0, result.stderr
    assert f"lost: {ROWS * SEALED:,} samples of gpu" in result.stdout
    assert [copy.read_bytes() for copy in _aside(file, "samples/acme/gpu/*/*.raw.parquet")] == [
        damaged
    ]
    with closing(open_store(f"duckdb:///{file}")) as store:
        assert _points(store) == {"cpu": ALL, "gpu": ROWS * (HOT + IN_LOG)}


def test_a_query_that_meets_damage_is_noticed(file: Path) -> None:
    (path,) = file.parent.glob("samples/acme/gpu/*/*.raw.parquet")
    _flip(path, path.stat().st_size - 3)

    with _recovered(file) as store:
        assert damage_notice(store) == ""
        with pytest.raises(StoreUnavailableError):
            _points(store)
        assert "can't be read" in damage_notice(store)


def test_a_repair_of_a_whole_store_changes_nothing(file: Path) -> None:
    result = run_vedette("store", "repair", "--url", f"duckdb:///{file}")

    assert result.returncode == 0, result.stderr
    assert result.stdout == f"retained: {2 * ALL:,} samples\nNothing is damaged.\n"
    assert _aside(file, "**/*") == []


def test_a_repair_needs_an_embedded_store() -> None:
    result = run_vedette("store", "repair", "--url", "influxdb://127.0.0.1:1/x")

    assert result.returncode == 1
    assert "embedded" in result.stderr
