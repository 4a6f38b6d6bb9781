"""Files of samples in the layout for other programs: folders, types, encodings, lists."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.timeseries.killed_sealing import MIDNIGHT_NS, SETTLED_NS, count_by_hour, fill
from tests.unit.timeseries.rollup_samples import ACME, ACME_2, GLOBEX, HOUR_NS, gpu, write_all
from timeseries.duckdb.files import manifest
from timeseries.duckdb.files.files import LocalFiles
from timeseries.duckdb.query import units
from timeseries.duckdb.store import DuckDBStore
from timeseries.store import DAY_NS, Resolution

ENCODINGS = {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}
GPU = "tenant=acme/measurement=gpu"


def opened(folder: Path, *, is_open: bool = True) -> DuckDBStore:
    files = LocalFiles(folder / "samples", is_open=is_open)
    return DuckDBStore(folder / "samples.duckdb", files=files)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with closing(opened(tmp_path)) as store:
        yield store


def files_of(folder: Path) -> set[str]:
    """Return the paths of the files of samples that are there."""
    samples = folder / "samples"
    return {path.relative_to(samples).as_posix() for path in samples.rglob("*.parquet")}


def listed(folder: Path, partition: str = GPU) -> set[str]:
    """Return the paths of the files that a list has, whose sizes must be right."""
    samples = folder / "samples"
    entries = [
        json.loads(line)
        for line in (samples / partition / "_files/files.jsonl").read_text().splitlines()
    ]
    for entry in entries:
        path = samples / entry["path"]
        assert path.stat().st_size == entry["bytes"]
        assert path.name == entry["file"]
        assert f"/resolution={entry['resolution']}/day={entry['day']}/" in entry["path"]
    return {entry["path"] for entry in entries}


def test_a_column_has_one_type_in_all_files_and_known_encodings(
    store: DuckDBStore, tmp_path: Path
) -> None:
    rng = random.Random(1)  # noqa: S311 - samples
    for day in (0, 1):
        times = range(MIDNIGHT_NS + day * DAY_NS, MIDNIGHT_NS + (day + 1) * DAY_NS, 60 * 10**9)
        points = []
        for time in times:
            power = float(rng.randrange(300)) if day else rng.gauss(300, 9)
            point = gpu(time, power_watts=power, count=1, busy=True, state="on")
            points.append(point)
        write_all(store, points, ACME)
    store.maintain(now_ns=SETTLED_NS + DAY_NS)

    types: dict[tuple[str, str], set[str]] = {}
    for path in sorted((tmp_path / "samples").rglob("*.parquet")):
        resolution = path.name.split(".")[1]
        file = pq.ParquetFile(path)
        group = file.metadata.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            assert set(column.encodings) <= ENCODINGS, column.path_in_schema
            key = resolution, column.path_in_schema
            logical = file.schema.column(number).logical_type
            types.setdefault(key, set()).add(f"{column.physical_type} {logical.type}")
    assert {key: kinds for key, kinds in types.items() if len(kinds) > 1} == {}
    assert types["raw", "field_power_watts"] == {"DOUBLE NONE"}
    assert types["raw", "field_count"] == types["raw", "time"] == {"INT64 NONE"}
    assert types["raw", "tag_gpu"] == types["raw", "field_state"] == {"BYTE_ARRAY STRING"}
    assert types["1h", "max_power_watts"] == {"DOUBLE NONE"}
    columns = (tmp_path / "samples" / GPU / "_columns/columns.jsonl").read_text()
    assert {"resolution": "raw", "column": "field_power_watts", "type": "DOUBLE"} in map(
        json.loads, columns.splitlines()
    )


def test_lists_have_the_files_that_count_and_others_stay_for_a_while(
    store: DuckDBStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    fill(store)
    store.maintain(now_ns=MIDNIGHT_NS + 12 * HOUR_NS)
    first = files_of(tmp_path)
    assert listed(tmp_path) == first
    assert first

    store.maintain(now_ns=SETTLED_NS)
    merged = listed(tmp_path)
    assert not merged & first
    assert merged | first <= files_of(tmp_path)

    monkeypatch.setattr(manifest, "GRACE_SECONDS", 0.0)
    store.maintain(now_ns=SETTLED_NS)
    assert files_of(tmp_path) == listed(tmp_path) == merged
    assert count_by_hour(store) == 2 * 144


def test_a_list_can_be_read_at_any_time_while_files_are_replaced(
    store: DuckDBStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    fill(store)
    store.maintain(now_ns=MIDNIGHT_NS + 2 * HOUR_NS)
    failures, done, reads = list[str](), threading.Event(), 0

    def read() -> None:
        nonlocal reads
        while not done.is_set():
            try:
                rows = [
                    pq.read_metadata(tmp_path / "samples" / path).num_rows
                    for path in listed(tmp_path)
                    if path.endswith(".raw.parquet")
                ]
            except (OSError, AssertionError, ValueError) as error:
                failures.append(repr(error))
                return
            reads += 1
            if sum(rows) % 12:  # hours of six samples of two appliances
                failures.append(f"{sum(rows)} rows")

    reader = threading.Thread(target=read)
    reader.start()
    for hour in range(4, 28, 6):
        store.maintain(now_ns=MIDNIGHT_NS + hour * HOUR_NS)
    store.maintain(now_ns=SETTLED_NS)
    done.set()
    reader.join()

    assert failures == []
    assert reads > 1


def test_a_removed_tenant_leaves_nothing_and_retention_shortens_lists(
    store: DuckDBStore, tmp_path: Path
) -> None:
    fill(store)
    write_all(store, [gpu(MIDNIGHT_NS, x=1.0)], GLOBEX)
    store.maintain(now_ns=SETTLED_NS)

    for _ in store.maintenance.delete_tenant("acme"):
        pass
    assert not (tmp_path / "samples/tenant=acme").exists()
    assert listed(tmp_path, "tenant=globex/measurement=gpu") == files_of(tmp_path)

    store.delete_before(SETTLED_NS, resolution=Resolution.RAW)
    assert not any(
        path.endswith(".raw.parquet") for path in listed(tmp_path, "tenant=globex/measurement=gpu")
    )
    assert any(path.endswith(".raw.parquet") for path in files_of(tmp_path))


@pytest.mark.parametrize("is_open", [True, False])
def test_settled_files_of_the_other_layout_are_written_anew(
    tmp_path: Path, *, is_open: bool
) -> None:
    with closing(opened(tmp_path, is_open=not is_open)) as store:
        fill(store)
        for identity in (ACME, ACME_2):
            write_all(store, [gpu(MIDNIGHT_NS - DAY_NS, x=1.0)], identity)
        store.maintain(now_ns=SETTLED_NS)
        # One of them has roll-ups only.
        store.delete_before(MIDNIGHT_NS, resolution=Resolution.RAW)
        store.manifest.delete_garbage(at_once=True)
    before = files_of(tmp_path)

    with closing(opened(tmp_path, is_open=is_open)) as store:
        assert count_by_hour(store) == 2 * 144
        store.maintain(now_ns=SETTLED_NS)
        store.manifest.delete_garbage(at_once=True)
        assert count_by_hour(store) == 2 * 144
    after = files_of(tmp_path)

    assert {path.startswith("tenant=") for path in before} == {not is_open}
    assert {path.startswith("tenant=") for path in after} == {is_open}
    assert len(after) == len(before)
    if is_open:
        assert listed(tmp_path) == after
    else:
        assert not (tmp_path / "samples/tenant=acme").exists()


def test_the_file_of_an_interrupted_change_is_in_no_list_and_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(tmp_path)) as store:
        fill(store)
        store.maintain(now_ns=SETTLED_NS)
    (raw,) = (tmp_path / "samples").rglob("*.raw.parquet")
    stray = raw.with_name("0.raw.parquet")
    stray.write_bytes(raw.read_bytes())
    other = tmp_path / "samples/tenant=gone/measurement=gpu"
    (other / "_files").mkdir(parents=True)
    (other / "_files/files.jsonl").write_text("")
    (other / "resolution=raw/day=2026-01-01").mkdir(parents=True)
    (other / "resolution=raw/day=2026-01-01/0.raw.parquet").write_bytes(raw.read_bytes())
    (tmp_path / "samples" / GPU / "_files/files.jsonl").unlink()

    with closing(opened(tmp_path)) as store:
        store.maintain(now_ns=SETTLED_NS)
        assert listed(tmp_path) == files_of(tmp_path) - {
            stray.relative_to(tmp_path / "samples").as_posix(),
            "tenant=gone/measurement=gpu/resolution=raw/day=2026-01-01/0.raw.parquet",
        }
        monkeypatch.setattr(manifest, "GRACE_SECONDS", 0.0)
        store.maintain(now_ns=SETTLED_NS)
        assert listed(tmp_path) == files_of(tmp_path)
        assert not other.parent.exists()


def test_names_that_paths_may_not_have_are_encoded_in_partitions(tmp_path: Path) -> None:
    identity = {"tenant": "Acme/../x", "appliance": "a1"}
    with closing(opened(tmp_path)) as store:
        write_all(store, [gpu(MIDNIGHT_NS, x=1.0)], identity)
        store.maintain(now_ns=SETTLED_NS)

    partition = "tenant=%41cme%2f%2e%2e%2fx/measurement=gpu"
    assert listed(tmp_path, partition) == files_of(tmp_path)
