"""Read threads: a hung plugin does not block the others, and is read again once it returns."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from threading import Event, active_count

import pytest

from collector.reading.plugin_host import PluginHost
from collector.reading.plugin_reader import PluginPlan
from core.clock import to_ns, utc_now
from plugins.base import PluginContext
from tests.fixtures.polling import eventually
from tests.fixtures.puppets import puppet_plan
from timeseries.points import Point

LIMIT_SECONDS = 0.1


class Gate:
    """A plugin that hangs while its gate is shut; `passed` counts the readings that came back."""

    name = "gate"

    def __init__(self) -> None:
        self.open = Event()
        self.entered = 0
        self.passed = 0
        self.is_closed = False

    def gather(self, now: datetime) -> Iterable[Point]:
        self.entered += 1
        self.open.wait()
        self.passed += 1
        return [Point("gate", {}, {"entered": self.entered}, to_ns(now))]

    def close(self) -> None:
        self.is_closed = True


def plan_of(gate: Gate) -> PluginPlan:
    return PluginPlan(
        name="gate",
        plugin_class=lambda _config, _context: gate,  # type: ignore[arg-type] # as read
        config=None,
        interval_seconds=0.05,
        jitter_seconds=0.0,
        time_limit_seconds=LIMIT_SECONDS,
    )


def quick(name: str) -> PluginPlan:
    return replace(puppet_plan(name=name, worker=""), interval_seconds=0.02)


class Watched:
    """A host at work, whose watch the test keeps."""

    def __init__(self, plans: list[PluginPlan]) -> None:
        self.points: list[Point] = []
        self.host = PluginHost(
            plans, PluginContext(), on_points=self.points.extend, clock=utc_now, seed="dgx-1"
        )
        self.host.start()

    def count(self, measurement: str) -> int:
        return sum(point.measurement == measurement for point in list(self.points))

    def goes_on(self) -> bool:
        """Return whether another puppet is read after now."""
        before = self.count("puppet")
        return bool(eventually(lambda: self.host.watch() and self.count("puppet") > before))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def watched(gate: Gate) -> Iterator[Watched]:
    watched = Watched([quick("first"), plan_of(gate), quick("last")])
    eventually(lambda: gate.entered)
    yield watched
    gate.open.set()
    watched.host.stop()


def failures(watched: Watched) -> int:
    watched.host.watch()
    return watched.host.gather_failures


def test_other_plugins_are_read_while_one_hangs(watched: Watched) -> None:
    eventually(lambda: failures(watched) == 1)
    assert watched.goes_on()


def test_points_read_before_the_hang_are_not_lost(watched: Watched) -> None:
    eventually(lambda: failures(watched) == 1)
    first = next(point for point in watched.points if point.measurement == "puppet")
    assert first.fields["readings"] == 1


def test_a_plugin_that_hangs_blocks_only_one_thread(watched: Watched, gate: Gate) -> None:
    eventually(lambda: failures(watched) == 1)
    threads = active_count()
    for _ in range(5):
        assert watched.goes_on()
    assert gate.entered == 1
    assert active_count() <= threads


def test_a_late_reading_is_dropped_and_the_plugin_read_again(
    watched: Watched, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    eventually(lambda: failures(watched) == 1)
    gate.open.set()
    eventually(lambda: watched.count("gate"))
    gate_point = next(point for point in watched.points if point.measurement == "gate")
    assert gate_point.fields == {"entered": 2}
    assert "dropped 1 points" in caplog.text


def test_the_time_limit_is_counted_as_such(watched: Watched) -> None:
    eventually(lambda: failures(watched) == 1)
    own = {point.tags["plugin"]: point for point in watched.host.own_points(utc_now())}
    assert own["gate"].fields["timeouts"] == 1
    assert own["gate"].fields["errors"] == 0


def test_a_removed_plugin_that_hangs_is_closed_when_it_returns(
    watched: Watched, gate: Gate
) -> None:
    eventually(lambda: failures(watched) == 1)
    watched.host.apply([quick("first")])
    assert watched.goes_on()
    assert not gate.is_closed
    gate.open.set()
    eventually(lambda: gate.is_closed)


def test_a_host_ends_although_a_plugin_hangs(watched: Watched) -> None:
    eventually(lambda: failures(watched) == 1)
    watched.host.stop()
    assert not watched.host.is_alive


def test_the_watch_is_wanted_only_when_a_limit_could_pass(gate: Gate) -> None:
    gate.open.set()
    idle = Watched([puppet_plan(worker="", time_limit_seconds=30.0)])
    eventually(lambda: idle.points)
    eventually(lambda: idle.host.watch() == 30.0)
    idle.host.stop()


def test_a_worker_that_hangs_does_not_stop_the_plugins_of_the_agent(gate: Gate) -> None:
    gate.open.set()
    watched = Watched([quick("here"), puppet_plan("hang", name="there", time_limit_seconds=0.5)])
    try:
        assert watched.goes_on()
        eventually(lambda: failures(watched) == 1)
        assert watched.goes_on()
    finally:
        watched.host.stop()
    assert watched.host.worker_pids == []
