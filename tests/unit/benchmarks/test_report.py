"""The page of results says what was measured, and nothing else."""

import pytest

from benchmarks import report
from benchmarks.agent_beside_collectd import CONTENDERS, CPU, MEMORY
from benchmarks.ingest import CPU as INGEST_CPU
from benchmarks.queries import questions
from benchmarks.queries_data import History

MACHINE = {
    "cpu_model": "Xeon",
    "cpu_count": 2,
    "memory_bytes": 24 * 2**30,
    "kernel": "6.1",
    "python": "3.11.7",
    "load1": 0.1,
}
BESIDE_COLLECTD = {
    "started_at": "2026-11-21T15:11:07Z",
    "command": "python -m benchmarks.agent_beside_collectd",
    "machine": MACHINE,
    "settings": {"repetitions": 3, "window_seconds": 60.0, "warm_up_seconds": 10.0},
    "results": {
        "medians": {
            name: {
                "cpu_percent_of_a_core": 0.3017,
                MEMORY: 52.39,
                "proportional_mebibytes": 40.3,
                "samples_per_second": 84.4,
                "voluntary_switches_per_second": 4.8,
                "sent_body_bytes_per_second": None,
            }
            for name in CONTENDERS
        },
        "ratios_to_collectd": {"agent": {CPU: 0.7713}},
    },
    "promises": [
        {"name": "cpu", "bound": 1.5, "measured": 0.7713, "unit": "times", "is_kept": True},
        {"name": "memory", "bound": 60.0, "measured": None, "unit": "MiB", "is_kept": False},
    ],
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.30171, "0.302"), (1538.4, "1,540"), (52.39, "52.4"), (0.0, "0"), (None, "-")],
)
def test_figures_have_three_digits_and_a_missing_one_is_a_dash(
    value: float | None, text: str
) -> None:
    assert report.shown(value) == text


def test_every_contender_has_a_row_with_its_multiple_of_collectd() -> None:
    text = report.beside_collectd(BESIDE_COLLECTD)
    assert "| agent, as collectd reads, to a gateway | 0.302 | 0.771 | 52.4 |" in text
    assert "| collectd 5.12 with write_http, to a sink | 0.302 | 1 |" in text
    assert "| bare psutil loop, which sends nothing | 0.302 | - |" in text
    assert sum(line.startswith("| ") for line in text.splitlines()) == len(CONTENDERS) + 2


def test_the_section_says_when_where_and_with_which_command() -> None:
    text = report.beside_collectd(BESIDE_COLLECTD)
    assert "2026-11-21, 2 cores of Xeon, 24 GiB, Linux 6.1, Python 3.11.7" in text
    assert "`python -m benchmarks.agent_beside_collectd`" in text


def test_a_broken_promise_is_shown_as_one() -> None:
    text = report.promises({"agent_beside_collectd": BESIDE_COLLECTD})
    assert "| cpu | 1.5 times | 0.771 times | yes |" in text
    assert "| memory | 60 MiB | - MiB | **no** |" in text


def test_servers_stand_beside_each_other_in_a_table_for_each_load() -> None:
    figures = {
        "values_per_second": 512_345.0,
        "posts_per_second": 11.8,
        INGEST_CPU: 0.81,
        "ack_milliseconds_p50": 90.1,
        "ack_milliseconds_p99": 120.4,
        "disk_bytes_per_value": 3.2,
        "resident_mebibytes": 301.0,
    }
    one = {
        "bodies": {"posts": 144},
        "medians": dict.fromkeys(report.SERVERS, figures),
        "ratios_to_influxdb": {name: {INGEST_CPU: 0.3} for name in ("vedette", "victoriametrics")},
    }
    settings = {"appliances": 1_000, "repetitions": 3, "settle_seconds": 5.0}
    text = report.taken_in(
        {**BESIDE_COLLECTD, "settings": settings, "results": {"large": one, "small": one}}
    )
    row = "| {} | 512,000 | 11.8 | 0.81 | {} | 90.1 | 120 | 3.2 | 301 |"
    assert text.count(row.format("Vedette on DuckDB", "0.3")) == 2
    assert text.count(row.format("InfluxDB 1.6", "1")) == 2


def test_every_question_has_a_row_with_median_and_p95_of_each_store() -> None:
    answers = {name: {"milliseconds": 12.34, "milliseconds_p95": 20.0} for name in report.QUESTIONS}
    history = {"appliances": 1_000, "minutes": 60, "step_ns": 10**10, "tenant_hours": 24}
    settings = {"history": history, "fields": ["power_watts"]}
    text = report.asked(
        {**BESIDE_COLLECTD, "settings": settings, "results": dict.fromkeys(report.STORES, answers)}
    )
    cells = "| 12.3 (20) " * len(report.STORES)
    assert text.count(f"{cells}|") == len(report.QUESTIONS)


def test_the_questions_of_the_page_are_those_that_are_asked() -> None:
    asked = questions(History(appliances=1, minutes=1, tenant_hours=1, end_ns=0))
    assert list(report.QUESTIONS) == list(asked)


def test_a_held_fleet_says_who_fell_behind() -> None:
    settings = {
        "appliances": 10_000,
        "interval_seconds": 10,
        "seconds": 600,
        "due_posts_per_second": 1_000.0,
        "due_values_per_second": 156_000.0,
    }
    results = {
        "posts": 600_000,
        "refused": 0,
        "posts_per_second": 999.7,
        "ack_milliseconds_p50": 60.0,
        "ack_milliseconds_p99": 150.0,
        "ack_milliseconds_max": None,
        "server_cpu_percent_of_a_core": 140.0,
        "server_resident_mebibytes": 400.0,
        "file_mebibytes_per_minute": 30.0,
        "driver_lateness_milliseconds_p99": 3.0,
        "fell_behind": "nobody",
    }
    text = report.held({**BESIDE_COLLECTD, "settings": settings, "results": results})
    assert "| posts a second, due and acknowledged | 1,000, 1,000 |" in text
    assert "| posts refused | 0 of 600,000 |" in text
    assert "| fell behind the schedule | nobody |" in text
