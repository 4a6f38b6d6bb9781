"""The page of results says what was measured, and nothing else."""

import pytest

from benchmarks import report
from benchmarks.agent_beside_collectd import CONTENDERS, CPU, MEMORY

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
