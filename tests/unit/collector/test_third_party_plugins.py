"""A plugin that returns invalid points affects no other plugin."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from collector.reading.plugin_host import PluginHost
from collector.reading.plugin_reader import PluginPlan
from core.clock import utc_now
from plugins.base import PluginContext
from tests.fixtures.polling import eventually
from tests.fixtures.puppets import puppet_plan
from timeseries.points import Point


class ForeignPlugin:
    """Gives whatever it was told to."""

    name = "foreign"

    def __init__(self, gives: Any) -> None:  # noqa: ANN401 - that is the point
        self._gives = gives

    def gather(self, now: datetime) -> Iterable[Point]:
        del now
        return self._gives  # type: ignore[no-any-return] # as read

    def close(self) -> None:
        """Nothing is open."""


def foreign(gives: object) -> PluginPlan:
    return PluginPlan(
        name="foreign",
        plugin_class=lambda _config, _context: ForeignPlugin(gives),  # type: ignore[arg-type] # as read
        config=None,
        interval_seconds=0.02,
        jitter_seconds=0.0,
        time_limit_seconds=30.0,
    )


def quick_puppet() -> PluginPlan:
    return replace(puppet_plan(worker=""), interval_seconds=0.02)


@pytest.mark.parametrize(
    "gives",
    [None, 5, ["text"], [{"measurement": "m"}], [None], [Point("m", {}, None, 0)]],  # type: ignore[arg-type] # as read
)
def test_a_reading_that_is_no_point_is_the_plugins_failure(gives: object) -> None:
    points: list[Point] = []
    host = PluginHost(
        [foreign(gives), quick_puppet()], PluginContext(), on_points=points.extend, clock=utc_now
    )
    host.start()
    eventually(lambda: host.gather_failures and len(points) > 3)
    host.stop()
    assert {point.measurement for point in points} == {"puppet"}


def test_a_point_that_cannot_be_stored_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[Point] = []

    def deliver(points: list[Point]) -> None:
        for point in points:
            taken.extend([point] * len(point.tags))

    bad = Point("m", None, {"v": 1}, 0)  # type: ignore[arg-type] # as read
    host = PluginHost(
        [foreign([bad]), quick_puppet()], PluginContext(), on_points=deliver, clock=utc_now
    )
    host.start()
    eventually(lambda: len(taken) > 3)
    host.stop()
    assert "foreign" in caplog.text
