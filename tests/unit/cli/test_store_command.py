"""`vedette store` moves and exports by itself, and survives being killed."""

import csv
import io
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.fixtures.in_process import run_vedette
from tests.fixtures.polling import eventually
from tests.unit.timeseries.migration_samples import (
    HOUR_NS,
    START_NS,
    all_of,
    rows_of,
    write_history,
)
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import write

HOURS = 6
POINTS = HOURS * 3 * 3 * 12


class Place:
    """A folder with an old store that has a history, and the addresses of an old and a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old, self.new = folder / "old.duckdb", folder / "new.duckdb"
        self.urls = ("--from", f"duckdb:///{self.old}", "--to", f"duckdb:///{self.new}")
        self.environ = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "VEDETTE_DATA_DIR": str(folder / "var"),
            "TIMESERIES_URL": f"duckdb:///{self.old}",
        }

    def fill(self, *, hours: int = HOURS, every_seconds: int = 300) -> int:
        with closing(DuckDBStore(self.old)) as store:
            return write_history(store, hours=hours, every_seconds=every_seconds)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", "store", *arguments],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command to its end; return its status, stdout and stderr."""
        result = run_vedette("store", *arguments, environ=self.environ)
        return result.returncode, result.stdout, result.stderr

    def rows(self, path: Path, measurement: str = "gpu") -> list[tuple[object, ...]]:
        with closing(DuckDBStore(path)) as store:
            return rows_of(store, measurement)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_history_moves_and_is_verified(place: Place) -> None:
    place.fill()

    status, out, _ = place.run("migrate", *place.urls, "--verify")

    assert status == 0
    assert f"{POINTS:,} points are in duckdb:///{place.new}." in out
    assert "same number of values in 4 chunks" in out
    assert place.rows(place.new) == place.rows(place.old)


def test_a_move_that_is_complete_leaves_no_file_of_progress(place: Place) -> None:
    place.fill()

    place.run("migrate", *place.urls)

    assert list((place.folder / "var" / "migrations").iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, signal.SIGTERM, signal.SIGINT],
)
@pytest.mark.nightly
def test_a_move_that_is_ended_midway_goes_on_and_leaves_no_duplicate(
    number: signal.Signals, place: Place
) -> None:
    total = place.fill(hours=20 * 24, every_seconds=1800)
    state = place.folder / "state.json"

    with place.start("migrate", *place.urls, "--state", str(state)) as process:
        eventually(state.exists, within_seconds=60, every_seconds=0.005, what="a day")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (-number if number is signal.SIGKILL else 128 + number)
    assert number is signal.SIGKILL or b"Run the same command again" in err
    moved = sum(len(place.rows(place.new, name)) for name in ("gpu", "host"))
    assert 0 < moved < total

    status, out, _ = place.run("migrate", *place.urls, "--state", str(state), "--verify")

    assert status == 0
    assert f"{total:,} points are in" in out
    for name in ("gpu", "host"):
        assert place.rows(place.new, name) == place.rows(place.old, name)
    assert not state.exists()


# In the gate, `test_migration.py` and `test_migration_late.py` go on after moves that stopped.
@pytest.mark.nightly
def test_late_samples_that_land_after_a_kill_are_moved_by_the_next_run(place: Place) -> None:
    place.fill(hours=20 * 24, every_seconds=1800)
    state = place.folder / "state.jsonl"
    with place.start("migrate", *place.urls, "--state", str(state)) as process:
        eventually(state.exists, within_seconds=60, every_seconds=0.005, what="a day")
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(place.rows(place.new)) < len(place.rows(place.old))
    with closing(DuckDBStore(place.old)) as store:
        late = [
            Point("gpu", {"gpu": "late"}, {"power_watts": 1.0}, START_NS + hour * HOUR_NS + 7)
            for hour in (0, 1, 30, 400)
        ]
        write(store, late, identity={"tenant": "acme", "appliance": "a1"})

    status, out, err = place.run("migrate", *place.urls, "--state", str(state), "--verify")

    assert (status, "Resuming from" in err) == (0, True)
    assert "Verified" in out
    for name in ("gpu", "host"):
        assert place.rows(place.new, name) == place.rows(place.old, name)
    assert not state.exists()


def test_a_store_is_not_moved_onto_itself(place: Place) -> None:
    place.fill(hours=1)
    twice = f"duckdb:///{place.folder}/../{place.folder.name}/old.duckdb"

    status, _, err = place.run("migrate", "--from", f"duckdb:///{place.old}", "--to", twice)

    assert status == 1
    assert "--from and --to are the same store" in err


def test_a_source_that_is_not_there_is_not_made(place: Place) -> None:
    status, _, err = place.run("migrate", *place.urls)

    assert status == 1
    assert f"The time series file {place.old} does not exist. Check the path in --from." in err
    assert not place.old.exists()


def test_a_file_in_use_by_a_server_is_rejected_with_advice(place: Place) -> None:
    place.fill(hours=1)
    commands = (
        ("migrate", *place.urls),
        ("export", "--measurement", "gpu", "--format", "csv", "--output", "-"),
        ("stats",),
    )
    code = f"import duckdb; c = duckdb.connect({str(place.old)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        results = [place.run(*command) for command in commands]
        server.communicate(b"\n", timeout=60)
    for status, _, err in results:
        assert status == 1
        assert f"in use by process {server.pid}" in err
        assert "stop it while this command runs" in err
        assert "GET /api/v1/samples/export" in err


def test_a_measurement_that_the_source_lacks_is_named(place: Place) -> None:
    place.fill(hours=1)

    status, _, err = place.run("migrate", *place.urls, "--measurement", "gpus")

    assert status == 1
    assert "no measurement gpus" in err


def test_an_unknown_tenant_is_named(place: Place) -> None:
    place.fill(hours=1)

    status, _, err = place.run("migrate", *place.urls, "--tenant", "initech")

    assert status == 1
    assert "There is no tenant 'initech'" in err


def test_a_tenant_is_moved_alone_by_the_id_of_its_samples(place: Place) -> None:
    place.fill(hours=1)

    status, _, _ = place.run("migrate", *place.urls, "--tenant", "globex")

    assert status == 0
    assert len(place.rows(place.new)) == 2 * 12


def test_a_tenant_is_found_by_its_slug(place: Place) -> None:
    run_vedette("db", "upgrade", environ=place.environ)
    arguments = ["tenant", "add", "Acme Ltd", "--slug", "acme-ltd"]
    ident = run_vedette(*arguments, environ=place.environ).stdout.split()[1]
    with closing(DuckDBStore(place.old)) as store:
        points = [Point("gpu", {}, {"power_watts": 1.0}, all_of("gpu").end_ns - 1)]
        write(store, points, identity={"tenant": ident, "appliance": "a"})
        write(store, points, identity={"tenant": "other", "appliance": "b"})

    selected = ["--measurement", "gpu", "--format", "csv", "--output", "-"]
    status, out, _ = place.run("export", *selected, "--tenant", "acme-ltd")

    assert status == 0
    assert [row["tenant"] for row in csv.DictReader(io.StringIO(out))] == [ident]


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01"])
def test_an_invalid_date_is_rejected(place: Place, value: str) -> None:
    status, _, err = place.run("migrate", *place.urls, "--since", value)

    assert status == 2
    assert f"'{value}' is not a date like 2026-03-01" in err


def test_an_empty_time_range_is_rejected(place: Place) -> None:
    place.fill(hours=1)

    span = ["--since", "2026-03-02", "--until", "2026-03-01"]
    status, _, err = place.run("migrate", *place.urls, *span)

    assert status == 1
    assert "--since 2026-03-02 00:00 is not before --until 2026-03-01 00:00" in err


def test_a_destination_that_refuses_points_ends_with_their_reason(place: Place) -> None:
    place.fill(hours=1)
    with closing(DuckDBStore(place.new)) as store:
        text = Point("gpu", {}, {"count": "many"}, 0)
        for tenant in ("acme", "globex"):
            write(store, [text], identity={"tenant": tenant, "appliance": "y"})

    status, _, err = place.run("migrate", *place.urls)

    assert status == 1
    assert "The destination rejected 72 of 108 points" in err
    assert "'count'" in err


def test_parquet_is_written_under_its_name_when_it_is_whole(place: Place) -> None:
    place.fill()
    path = place.folder / "out" / "gpu.parquet"

    arguments = ["--measurement", "gpu", "--format", "parquet", "--output", str(path)]
    status, out, _ = place.run("export", *arguments)

    assert status == 0
    assert out == f"gpu: {HOURS * 72:,} rows in {path}\n"
    assert parquet.read_table(path).num_rows == HOURS * 72
    assert list(path.parent.iterdir()) == [path]


def test_several_measurements_fill_a_folder(place: Place) -> None:
    place.fill(hours=1)
    folder = place.folder / "out"

    names = ["--measurement", "gpu", "--measurement", "host"]
    status, _, _ = place.run("export", *names, "--format", "csv", "--output", str(folder))

    assert status == 0
    assert sorted(file.name for file in folder.iterdir()) == ["gpu.csv", "host.csv"]


def test_one_measurement_named_twice_is_one_file(place: Place) -> None:
    place.fill(hours=1)
    path = place.folder / "gpu.csv"

    names = ["--measurement", "gpu", "--measurement", "gpu"]
    status, out, _ = place.run("export", *names, "--format", "csv", "--output", str(path))

    assert (status, out) == (0, f"gpu: 72 rows in {path}\n")
    assert path.is_file()


def test_a_measurement_that_is_not_there_is_named_before_anything_is_written(place: Place) -> None:
    place.fill(hours=1)
    folder = place.folder / "out"

    names = ["--measurement", "gpu", "--measurement", "gpus", "--measurement", "nothing"]
    status, _, err = place.run("export", *names, "--format", "csv", "--output", str(folder))

    assert status == 1
    assert "no measurement gpus, nothing; nothing was written" in err
    assert not folder.exists()


def test_a_span_without_samples_is_a_file_with_a_header(place: Place) -> None:
    place.fill(hours=1)
    path = place.folder / "gpu.parquet"

    arguments = ["--measurement", "gpu", "--format", "parquet", "--output", str(path)]
    status, out, _ = place.run("export", *arguments, "--until", "0001-01-02")

    assert (status, out) == (0, f"gpu: 0 rows in {path}\n")
    table = parquet.read_table(path)
    assert (table.num_rows, table.num_columns) == (0, 6)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--measurement", "gpu", "--output", "x"], "Missing option '--format'"),
        (["--measurement", "gpu", "--format", "xlsx", "--output", "x"], "'xlsx' is not one of"),
        (["--format", "csv", "--output", "x"], "Missing option '--measurement'"),
        (
            ["--measurement", "gpu", "--format", "csv", "--output", "x", "--since", "noon"],
            "'noon' is not a date",
        ),
    ],
)
def test_a_wrong_parameter_of_an_export_is_named(
    place: Place, arguments: list[str], fault: str
) -> None:
    status, _, err = place.run("export", *arguments)

    assert status == 2
    assert fault in err


def test_a_span_is_exported_from_its_first_instant_to_before_its_last(place: Place) -> None:
    place.fill()

    span = ["--since", "2023-11-14T23:00Z", "--until", "2023-11-15T00:00Z"]
    arguments = ["--measurement", "host", "--format", "csv", "--output", "-", *span]
    _, out, err = place.run("export", *arguments)

    times = sorted(row["time"] for row in csv.DictReader(io.StringIO(out)))
    assert (times[0], times[-1]) == (
        "2023-11-14T23:00:00.000000000Z",
        "2023-11-14T23:55:00.000000000Z",
    )
    assert err.endswith("host: 36 rows in stdout\n")


def test_parquet_does_not_go_to_a_terminal(place: Place) -> None:
    arguments = ["--measurement", "gpu", "--format", "parquet", "--output", "-"]
    status, _, err = place.run("export", *arguments)

    assert status == 1
    assert "--output - supports one measurement as CSV" in err


def test_an_export_that_cannot_be_written_leaves_nothing(place: Place) -> None:
    place.fill(hours=1)
    (place.folder / "file").touch()

    path = place.folder / "file" / "gpu.csv"
    arguments = ["--measurement", "gpu", "--format", "csv", "--output", str(path)]
    status, _, err = place.run("export", *arguments)

    assert status == 1
    assert f"{path} can't be written" in err
    assert "Traceback" not in err


def test_stats_name_measurements_points_and_times(place: Place) -> None:
    place.fill(hours=1)

    status, out, _ = place.run("stats")

    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["measurement", "fields", "tags", "points", "oldest", "newest"]
    assert lines[1] == [
        *("gpu", "2", "3", "72", "2023-11-14", "22:00:00", "UTC", "2023-11-14", "22:55:00", "UTC")
    ]
    assert lines[2][:4] == ["host", "2", "2", "36"]
    assert f"2 measurements in duckdb:///{place.old}: " in out
