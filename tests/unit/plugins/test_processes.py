"""Processes by state, on a captured `/proc` with one process in each state."""

from datetime import timedelta
from pathlib import Path

import pytest

from plugins.base import PluginContext
from plugins.processes.reader import STATE_FIELDS, ProcessesConfig, ProcessesPlugin, count_states
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost


@pytest.fixture
def states_host(host: CapturedHost) -> CapturedHost:
    host.use("proc_states")
    return host


def test_each_process_is_in_one_state(states_host: CapturedHost) -> None:
    # Among them a program called `train) S (v2`, which runs.
    assert count_states(states_host.proc) == {
        "total": 8,
        "running": 1,
        "blocked": 1,
        "sleeping": 2,
        "idle": 1,
        "stopped": 2,
        "zombies": 1,
    }


def test_a_process_that_ended_after_the_listing_is_skipped(states_host: CapturedHost) -> None:
    (states_host.proc / "9999").mkdir()
    assert count_states(states_host.proc)["total"] == 8


def test_threads_and_rates_come_from_the_kernels_own_counts(states_host: CapturedHost) -> None:
    plugin = ProcessesPlugin(ProcessesConfig(), states_host.context)
    [first] = plugin.gather(FIRST_AT)
    assert first.fields["threads"] == 122
    assert "forks_per_second" not in first.fields
    states_host.use("proc_b")
    [second] = plugin.gather(SECOND_AT)
    # Between the captures: 32,055 to 33,068 forks, 1,926,920 to 1,949,115 switches.
    assert second.fields["forks_per_second"] == pytest.approx(1013 / 10)
    assert second.fields["context_switches_per_second"] == pytest.approx(22_195 / 10)
    assert second.fields["threads"] == 104


@pytest.mark.parametrize(
    ("seconds", "has_states"), [(1, False), (8.9, False), (9.5, True), (10, True), (-60, True)]
)
def test_states_are_absent_until_their_interval_has_passed(
    states_host: CapturedHost, seconds: float, *, has_states: bool
) -> None:
    plugin = ProcessesPlugin(ProcessesConfig(states_interval_seconds=10), states_host.context)
    [first] = plugin.gather(FIRST_AT)
    assert first.fields["total"] == 8
    [point] = plugin.gather(FIRST_AT + timedelta(seconds=seconds))
    assert ("total" in point.fields) == has_states
    assert "threads" in point.fields


def test_states_can_be_read_each_time(states_host: CapturedHost) -> None:
    plugin = ProcessesPlugin(ProcessesConfig(states_interval_seconds=0), states_host.context)
    plugin.gather(FIRST_AT)
    [point] = plugin.gather(FIRST_AT + timedelta(milliseconds=1))
    assert point.fields["zombies"] == 1


def test_this_hosts_processes_add_up() -> None:
    plugin = ProcessesPlugin(ProcessesConfig(), PluginContext())
    [point] = plugin.gather(FIRST_AT)
    plugin.close()
    counts = [int(point.fields[name]) for name in STATE_FIELDS]
    assert sum(counts) == point.fields["total"]
    assert point.fields["total"] == pytest.approx(
        sum(path.name.isdigit() for path in Path("/proc").iterdir()), rel=0.5
    )
