"""The arithmetic of the benchmarks of ingest, of the held fleet and of queries."""

from pathlib import Path

from benchmarks import fleet_hold, ingest, queries
from benchmarks.bodies import Bodies
from benchmarks.fleet_hold import Reading
from benchmarks.meter import Usage
from benchmarks.queries_data import History

BODIES = Bodies(path=Path("x"), count=10, lines=180, plain_bytes=1, sent_bytes=1)
LOADED = {
    "seconds": 2.0,
    "posts_per_second": 5.0,
    "ack_milliseconds_p50": 1.0,
    "ack_milliseconds_p99": None,
}


def test_figures_of_a_load_are_per_value() -> None:
    found = ingest.figures(LOADED, BODIES, cpu_seconds=0.00312, disk_bytes=15_600)
    assert found["values_per_second"] == 780.0  # 10 posts of 156 values in 2 s
    assert found["cpu_seconds_per_million_values"] == 2.0
    assert found["disk_bytes_per_value"] == 10.0
    assert found["ack_milliseconds_p50"] == 1.0


def compared(vedette_cpu: float) -> dict[str, object]:
    one = {
        "vedette": {ingest.CPU: vedette_cpu, ingest.SPEED: 500_000.0},
        "influxdb": {ingest.CPU: 3.0, ingest.SPEED: 250_000.0},
    }
    return ingest.compared([one])


def test_ratios_are_to_influxdb() -> None:
    found = compared(0.9)
    assert found["ratios_to_influxdb"] == {"vedette": {ingest.CPU: 0.3, ingest.SPEED: 2.0}}


def test_a_third_of_the_cpu_is_the_promise() -> None:
    cheap, dear = (
        [promise.is_kept for promise in ingest.promises({"large": one, "small": one})]
        for one in (compared(0.9), compared(1.1))
    )
    assert cheap == [True, True, True]
    assert dear == [False, True, True]


def test_the_room_of_a_file_counts_the_log_beside_it(tmp_path: Path) -> None:
    (tmp_path / "samples.duckdb").write_bytes(bytes(8_192))
    (tmp_path / "samples.duckdb.wal").write_bytes(bytes(4_096))
    (tmp_path / "vedette.db").write_bytes(bytes(65_536))
    assert ingest.file_bytes(tmp_path / "samples.duckdb") == 12_288
    assert ingest.file_bytes(tmp_path) == 77_824


def reading(at_seconds: float, *, cpu_ns: int, file_bytes: int, resident_bytes: int) -> Reading:
    usage = Usage(
        at_seconds=at_seconds,
        cpu_ns=cpu_ns,
        voluntary_switches=0,
        involuntary_switches=0,
        threads=1,
        processes=1,
        resident_bytes=resident_bytes,
        proportional_bytes=0,
    )
    return Reading(usage=usage, file_bytes=file_bytes)


def test_the_server_of_a_fleet_is_watched_from_first_to_last_reading() -> None:
    mebibyte = 2**20
    found = fleet_hold.server_figures([
        reading(10.0, cpu_ns=10**9, file_bytes=0, resident_bytes=100 * mebibyte),
        reading(20.0, cpu_ns=8 * 10**9, file_bytes=mebibyte, resident_bytes=300 * mebibyte),
        reading(40.0, cpu_ns=31 * 10**9, file_bytes=3 * mebibyte, resident_bytes=200 * mebibyte),
    ])  # fmt: skip
    assert found == {
        "server_cpu_percent_of_a_core": 100.0,
        "server_resident_mebibytes": 200.0,
        "server_most_resident_mebibytes": 300.0,
        "file_mebibytes": 3.0,
        "file_mebibytes_per_minute": 6.0,
    }


def test_who_fell_behind_is_told() -> None:
    def told(lateness: float | None, waiting: int) -> str:
        found = {
            "driver_lateness_milliseconds_p99": lateness,
            "most_waiting_posts": waiting,
            "connections": 100,
        }
        return fleet_hold.verdict(found)

    assert told(2.0, 3) == "nobody"
    assert told(None, 3) == "nobody"
    assert told(200.0, 3) == "driver"
    assert told(2.0, 101) == "server"


def test_a_refused_post_breaks_the_promise_of_a_held_fleet() -> None:
    plan = fleet_hold.Plan(appliances=100, seconds=10)
    kept = fleet_hold.promises({"refused": 0, "posts_per_second": 9.99}, plan)
    broken = fleet_hold.promises({"refused": 1, "posts_per_second": 9.0}, plan)
    assert [promise.is_kept for promise in kept] == [True, True]
    assert [promise.is_kept for promise in broken] == [False, False]


def test_each_question_has_a_bound_in_time_and_one_beside_influxdb() -> None:
    names = queries.questions(History(appliances=1, minutes=1, tenant_hours=1, end_ns=0)).keys()
    answers = {
        queries.DUCKDB: {name: {"milliseconds": 40.0} for name in names},
        queries.INFLUXDB: {name: {"milliseconds": 20.0} for name in names},
    }
    found = {promise.name: promise for promise in queries.promises(answers)}
    assert len(found) == 2 * len(names)
    assert found["query fleet, median"].is_kept
    assert found["query fleet, beside InfluxDB"].measured == 2.0
    assert not found["query fleet, beside InfluxDB"].is_kept
