"""Sealed samples are in one file each, whatever happens, and files are few and found by a query."""

import itertools
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from tests.unit.timeseries.killed_sealing import (
    MIDNIGHT_NS,
    SETTLED_NS,
    count_by_hour,
    fill,
    kill_at_each_step,
    times_of,
)
from tests.unit.timeseries.rollup_samples import (
    ACME,
    ACME_2,
    GLOBEX,
    HOUR_NS,
    gpu,
    seeded,
    write_all,
)
from timeseries.duckdb.cold import maintenance, sealing
from timeseries.duckdb.files.segments import MANIFEST_TABLE, Segment
from timeseries.duckdb.query import range_query, relation, units
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import (
    DAY_NS,
    Aggregate,
    Detail,
    RangeQuery,
    Resolution,
    ScanQuery,
    StoreUnavailableError,
    write,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.duckdb"


def segments_of(store: DuckDBStore) -> tuple[Segment, ...]:
    return store.manifest.of("gpu")


def files_under(path: Path) -> set[str]:
    return {file.relative_to(path.with_suffix("")).as_posix() for file in files_in(path)}


def files_in(path: Path) -> list[Path]:
    return [file for file in path.with_suffix("").rglob("*") if file.is_file()]


@pytest.mark.nightly
def test_a_kill_9_at_any_step_leaves_each_sample_once(path: Path) -> None:
    """Each kill hits the store that the one before has left, and new samples."""
    kill_at_each_step(
        path,
        open_them=lambda: DuckDBStore(path),
        files=lambda: files_under(path),
    )


def test_a_reader_sees_each_sample_once_while_others_seal_and_merge(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    fill(store)
    expected, failures = len(times_of(store)), list[object]()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                counts = [float(sum(times_of(store).values()))]
                counts += [count_by_hour(store, hours=hours) for hours in (24, 12, 1)]
            except StoreUnavailableError as error:
                failures.append(error)
                return
            if counts != [expected, expected, expected / 2, expected / 24]:
                failures.append(counts)

    reader = threading.Thread(target=read)
    reader.start()
    for hour in range(8, 28, 8):
        store.maintain(now_ns=MIDNIGHT_NS + hour * HOUR_NS)
    store.maintain(now_ns=SETTLED_NS)
    done.set()
    reader.join()

    assert failures == []
    assert len(segments_of(store)) == 1


def test_what_is_older_than_all_in_the_table_is_read_without_it(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    fill(store)
    store.maintain(now_ns=MIDNIGHT_NS + 12 * HOUR_NS + units.GRACE_NS)
    later = gpu(MIDNIGHT_NS + 13 * HOUR_NS + 1, x=1.0)
    write_all(store, [later], ACME)

    assert count_by_hour(store, hours=12) == 144
    assert store.writer.staged_points == 1
    assert count_by_hour(store, hours=14) == 12 * 14 + 1
    assert store.writer.staged_points == 0

    # A late sample counts at once, staged or not, and so does one after the table was empty.
    for second in (1, 2):
        write_all(store, [gpu(MIDNIGHT_NS + second, x=1.0)], ACME)
        assert count_by_hour(store, hours=12) == 144 + second
    store.maintain(now_ns=SETTLED_NS)
    write_all(store, [gpu(MIDNIGHT_NS + 3, x=1.0)], ACME)
    assert count_by_hour(store, hours=12) == 144 + 3


def test_a_text_stays_a_text_before_another_tenant_writes_numbers(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    write_all(store, [gpu(MIDNIGHT_NS, x="unknown")], GLOBEX)
    store.maintain(now_ns=SETTLED_NS)
    write_all(store, [gpu(SETTLED_NS, x=1.0)], ACME)
    before = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=SETTLED_NS,
        tenants=None,
    )

    assert store.query_range(before) == []
    assert store.writer.staged_points == 1
    assert store.query_range(replace(before, end_ns=SETTLED_NS + 1))[0].values == [1.0]
    scanned = ScanQuery(measurement="gpu", start_ns=0, end_ns=SETTLED_NS, tenants=None)
    (batch,) = store.scan(scanned)
    assert [point.fields for point in batch.points()] == [{"x": "unknown"}]


def test_a_store_that_was_opened_again_reads_what_is_in_its_table(path: Path) -> None:
    with closing(DuckDBStore(path)) as store:
        fill(store)
    with closing(DuckDBStore(path)) as store:
        write_all(store, [gpu(MIDNIGHT_NS + 13 * HOUR_NS + 1, x=1.0)], ACME)
        assert count_by_hour(store, hours=12) == 144


@pytest.mark.nightly
def test_times_of_files_are_compared_only_where_some_do_not_match(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have an hour each, and a query from 0:30 to 5:30 reads half of the first and last."""
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    monkeypatch.setattr(units, "MAX_ROWS", 2)
    monkeypatch.setattr(relation, "MANY_ROWS", 1)
    fill(store)
    store.maintain(now_ns=MIDNIGHT_NS + 20 * HOUR_NS)
    start_ns = MIDNIGHT_NS + HOUR_NS // 2
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=start_ns,
        end_ns=start_ns + 5 * HOUR_NS,
        tenants=None,
        aggregate=Aggregate.COUNT,
        step_ns=600 * 10**9,
        group_by=("appliance",),
    )

    answer = store.query_range(query)

    assert len({segment.oldest_ns // HOUR_NS for segment in segments_of(store)}) > 5
    for series in answer:
        assert series.times_ns == list(range(start_ns, query.end_ns, 600 * 10**9))
        assert series.values == [1.0] * 30
    assert [series.tags["appliance"] for series in answer] == ["a1", "a2"]


def test_few_samples_wait_for_the_end_of_their_day(store: DuckDBStore) -> None:
    fill(store)

    assert store.maintain(now_ns=MIDNIGHT_NS + 24 * HOUR_NS) == 0
    assert store.maintain(now_ns=MIDNIGHT_NS + 24 * HOUR_NS + units.GRACE_NS) == 288

    (segment,) = segments_of(store)
    assert segment.path(Resolution.RAW).startswith("acme/gpu/2023-11-14/")
    assert (segment.first_appliance, segment.last_appliance, segment.rows) == ("a1", "a2", 288)


def test_a_run_has_a_budget_and_the_next_begins_with_what_waits(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock with 10 s from one look to the next, sealing a measurement takes 30 s."""
    names = ["a", "b", "c"]
    for name in names:
        write(store, [Point(name, {}, {"x": 1.0}, MIDNIGHT_NS)], identity=ACME)
    ticks, pauses = itertools.count(0, 10), list[float]()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=pauses.append)
    monkeypatch.setattr(maintenance, "time", clock)

    def sealed() -> int:
        store.maintain(now_ns=SETTLED_NS)
        return sum(bool(store.manifest.of(name)) for name in names)

    assert sealed() == 2
    assert pauses == [maintenance.MAX_PAUSE_SECONDS] * 2
    assert sealed() == 3


def test_late_samples_get_a_segment_that_is_merged(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    fill(store)
    for second in (1, 2):
        store.maintain(now_ns=MIDNIGHT_NS + 23 * HOUR_NS)
        fill(store, second=second)
    # Also what was sent again is kept once.
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    store.maintain(now_ns=SETTLED_NS)

    assert len(segments_of(store)) == 1
    assert set(times_of(store).values()) == {1}
    assert count_by_hour(store) == len(times_of(store)) == 3 * 288


def test_floats_are_read_as_they_were_written(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MIN_ROWS", 1)
    rng = seeded(1)
    columns: dict[str, list[list[float]]] = {
        "whole": [[-7.0, 3.0], [2.0**52, 0.0]],
        "tenths": [[-0.1, 12.3], [4.0, 1e13 + 0.1]],
        "thousandths": [[rng.randrange(10**9) / 1_000 for _ in range(2)], [0.5, 99.99]],
        "many_and_large": [[0.001, 2.5], [9e14, 1.0]],
        "exact_to_the_last_bit": [[0.1 + 0.2, 1 / 3], [1e-9, 5.0]],
        "large": [[1e300, -1e16], [2.0**60, 0.25]],
    }
    expected = {
        (MIDNIGHT_NS + hour * HOUR_NS + second, name): value
        for name, hours in columns.items()
        for hour, values in enumerate(hours)
        for second, value in enumerate(values)
    }

    def read() -> dict[tuple[int, str], float]:
        batches = store.scan(ScanQuery(measurement="gpu", start_ns=0, end_ns=2**62, tenants=None))
        return {
            (point.time_ns, name): float(value)
            for batch in batches
            for point in batch.points()
            for name, value in point.fields.items()
        }

    for hour in (0, 1):
        for second in (0, 1):
            time_ns = MIDNIGHT_NS + hour * HOUR_NS + second
            fields = {name: expected[time_ns, name] for name in columns}
            write_all(store, [Point("gpu", {}, fields, time_ns)], ACME)
        store.maintain(now_ns=MIDNIGHT_NS + (hour + 2) * HOUR_NS)
    assert len(segments_of(store)) == 2
    assert read() == expected

    store.maintain(now_ns=SETTLED_NS)
    assert len(segments_of(store)) == 1
    assert read() == expected


def test_a_large_day_is_merged_into_ranges_of_appliances(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_MERGED_ROWS", 20)
    monkeypatch.setattr(units, "MAX_ROWS", 10)
    for number in range(5):
        identity = ACME | {"appliance": f"a{number}"}
        write_all(store, [gpu(MIDNIGHT_NS + hour * HOUR_NS, x=1.0) for hour in range(8)], identity)
    monkeypatch.setattr("timeseries.duckdb.cold.maintenance.MAX_MERGED_ROWS", 100)
    store.maintain(now_ns=SETTLED_NS)

    assert sorted(
        (segment.first_appliance, segment.last_appliance) for segment in segments_of(store)
    ) == [
        ("a0", "a1"),
        ("a2", "a3"),
        ("a4", "a4"),
    ]
    assert len(times_of(store)) == 40


def test_a_query_reads_only_files_that_may_have_its_samples(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MAX_ROWS", 100)
    for day in range(2):
        for identity in (ACME, ACME_2, GLOBEX):
            times = range(60)
            points = [gpu(MIDNIGHT_NS + day * DAY_NS + at, x=1.0) for at in times]
            write_all(store, points, identity)
    store.maintain(now_ns=MIDNIGHT_NS + 4 * DAY_NS)
    seen: list[int] = []
    plan = range_query.plan_sources

    def noted(*args: object, **named: object) -> range_query.Plan:
        planned = plan(*args, **named)  # type: ignore[arg-type]
        seen.append(sum(map(len, planned.values())))
        return planned

    monkeypatch.setattr(range_query, "plan_sources", noted)
    for tenants, appliance, days in ((None, (), 2), (("acme",), (), 2), (("acme",), ("a2",), 1)):
        query = RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=MIDNIGHT_NS,
            end_ns=MIDNIGHT_NS + days * DAY_NS,
            aggregate=Aggregate.COUNT,
            tenants=tenants,
            filters={"appliance": appliance} if appliance else {},
        )
        assert store.query_range(query)[0].values == [
            60 * days * (3 if tenants is None else 1 if appliance else 2)
        ]
    assert seen == [4, 2, 1]


def test_segments_without_samples_are_merged_by_period(store: DuckDBStore) -> None:
    for day in range(5, 15):  # within one of the periods
        write_all(store, [gpu(MIDNIGHT_NS + day * DAY_NS, x=float(day))], ACME)
    later_ns = MIDNIGHT_NS + 20 * DAY_NS
    store.maintain(now_ns=later_ns)
    before = [segment.sizes.keys() for segment in segments_of(store)]
    store.delete_before(later_ns)
    store.maintain(now_ns=later_ns)

    assert before == [{Resolution.RAW, Resolution.HOUR, Resolution.DAY}] * 10
    after = [segment.sizes.keys() for segment in segments_of(store)]
    assert after == [{Resolution.HOUR, Resolution.DAY}]
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=MIDNIGHT_NS,
        end_ns=later_ns,
        aggregate=Aggregate.SUM,
        tenants=("acme",),
    )
    assert store.query_range(query)[0].values == [95.0]


def test_segments_that_are_rolled_up_differently_stay_apart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MIN_EXPIRED", 2)
    later_ns, quarter_ns = MIDNIGHT_NS + 20 * DAY_NS, HOUR_NS // 4
    rng, expected = seeded(3), dict[int, float]()
    for day, detail in zip(range(5, 9), [Detail.ALL, Detail.MEANS] * 2, strict=True):
        width_ns = quarter_ns if detail is Detail.ALL else HOUR_NS
        points = [
            gpu(MIDNIGHT_NS + day * DAY_NS + second * 10**9, x=rng.gauss(300, 9))
            for second in range(0, 3_600, 3)
        ]
        for point in points:
            window, value = point.time_ns // width_ns * width_ns, float(point.fields["x"])
            expected[window] = max(value, expected.get(window, value))
        with closing(DuckDBStore(path, detail_of=lambda *_, detail=detail: detail)) as store:
            write_all(store, points, ACME)
            store.maintain(now_ns=MIDNIGHT_NS + (day + 2) * DAY_NS)
    with closing(DuckDBStore(path)) as store:
        store.delete_before(later_ns)
        store.maintain(now_ns=later_ns)

        assert sorted(segment.rolled["x"] for segment in segments_of(store)) == [
            Detail.MEANS,
            Detail.ALL,
        ]
        query = RangeQuery(
            measurement="gpu",
            fields=("x",),
            start_ns=MIDNIGHT_NS,
            end_ns=later_ns,
            step_ns=quarter_ns,
            aggregate=Aggregate.MAX,
            tenants=("acme",),
        )
        (series,) = store.query_range(query)
        assert dict(zip(series.times_ns, series.values, strict=True)) == expected


def test_segments_of_earlier_versions_are_rolled_up_in_all_detail(path: Path) -> None:
    with closing(DuckDBStore(path)) as store:
        write_all(store, [gpu(MIDNIGHT_NS, x=1.0)], ACME)
        store.maintain(now_ns=SETTLED_NS)
        segments = segments_of(store)
    with closing(duckdb.connect(str(path))) as connection:
        for column in ("details", "day_bytes"):
            connection.execute(f"ALTER TABLE {MANIFEST_TABLE} DROP COLUMN {column}")

    sizes = dict(segments[0].sizes)
    del sizes[Resolution.DAY]
    for _ in range(2):
        with closing(DuckDBStore(path)) as store:
            assert segments_of(store) == (replace(segments[0], sizes=sizes),)
            assert segments[0].rolled == {"x": Detail.ALL}


def test_only_some_fields_have_roll_ups(path: Path) -> None:
    store = DuckDBStore(
        path,
        detail_of=lambda measurement, field: (
            Detail.ALL if (measurement, field) == ("gpu", "x") else Detail.NONE
        ),
    )
    write_all(store, [gpu(MIDNIGHT_NS, x=1.0, y=2.0, note="text")], ACME)
    write_all(store, [gpu(MIDNIGHT_NS, y=2.0)], GLOBEX)
    store.maintain(now_ns=SETTLED_NS)

    by_tenant = {segment.tenant: segment for segment in segments_of(store)}
    assert by_tenant["acme"].rolled == {"x": Detail.ALL}
    assert by_tenant["globex"].sizes.keys() == {Resolution.RAW}
    store.delete_before(SETTLED_NS)
    assert store.fields("gpu", tenants=None) == {"x": "float"}
    store.close()
    assert [folder.name for folder in path.with_suffix("").iterdir()] == ["acme"]


def test_fields_that_are_needed_have_roll_ups_up_to_a_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_NEEDED_FIELDS", 2)
    store = DuckDBStore(path, detail_of=lambda _measurement, _field: Detail.NONE)
    for identity in (ACME, GLOBEX):
        write_all(store, [gpu(MIDNIGHT_NS, a=1.0, b=2.0, c=3.0, d=4.0, note="x")], identity)
    needed = [("acme", "gpu", name) for name in ("d", "note", "c", "b")]
    store.maintain(now_ns=SETTLED_NS, needed=[*needed, ("globex", "other", "a")])

    by_tenant = {segment.tenant: segment for segment in segments_of(store)}
    assert by_tenant["acme"].rolled == {"b": Detail.ALL, "c": Detail.ALL}
    assert by_tenant["globex"].sizes.keys() == {Resolution.RAW}
    store.delete_before(SETTLED_NS)
    assert store.fields("gpu", tenants=None) == {"b": "float", "c": "float"}
    store.close()


def test_files_of_samples_are_never_deleted_for_a_new_database(path: Path) -> None:
    store = DuckDBStore(path)
    fill(store)
    store.maintain(now_ns=SETTLED_NS)
    store.close()
    file_paths = files_under(path)
    saved = path.rename(path.with_name("saved"))

    with pytest.raises(StoreUnavailableError, match="Restore the file"):
        DuckDBStore(path)

    assert files_under(path) == file_paths
    path.unlink()
    saved.rename(path)
    store = DuckDBStore(path)
    assert count_by_hour(store) == 288
    store.close()


@pytest.mark.nightly
def test_a_file_shrinks_once_its_samples_are_sealed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MIN_FREE_BYTES", 1)
    rng, start_ns = seeded(1), SETTLED_NS - DAY_NS
    points = [
        Point("gpu", {}, {f"f{number}": rng.random() for number in range(40)}, start_ns + second)
        for second in range(0, 10_000 * 10**9, 10**9)
    ]
    with closing(DuckDBStore(path)) as store:
        write_all(store, points, ACME)
        store.maintain(now_ns=start_ns)
        before = path.stat().st_size
        assert store.maintain(now_ns=SETTLED_NS + 30 * DAY_NS) == len(points)
        segments = segments_of(store)
        assert path.stat().st_size < before / 3
    with closing(DuckDBStore(path)) as store:
        assert segments_of(store) == segments
