"""The speed test on a line whose speed the test decides."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from plugins.base import PluginContext, PluginError, PluginUnavailableError
from plugins.speedtest.reader import SpeedtestConfig, SpeedtestPlugin, measure
from tests.unit.plugins.conftest import FIRST_AT

KIB, MIB = 1024, 2**20
AT_ONCE = SpeedtestConfig(first_test_within_seconds=0)


@dataclass
class SteadyLine:
    """Moves bytes at a fixed speed, by a clock of its own; fails when told to."""

    bytes_per_second: float = 1e9
    fault: Exception | None = None
    now_seconds: float = 0.0
    moved: list[tuple[str, int]] = field(default_factory=list)
    closed: int = 0

    def download(self, size_bytes: int) -> None:
        self._move("down", size_bytes)

    def upload(self, size_bytes: int) -> None:
        self._move("up", size_bytes)

    def close(self) -> None:
        self.closed += 1

    def seconds(self) -> float:
        return self.now_seconds

    def _move(self, direction: str, size_bytes: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.moved.append((direction, size_bytes))
        self.now_seconds += size_bytes / self.bytes_per_second


def test_both_directions_are_timed_after_a_warm_up() -> None:
    line = SteadyLine(bytes_per_second=50 * MIB)
    speeds = measure(line, download_bytes=4 * MIB, upload_bytes=2 * MIB, seconds=line.seconds)
    assert line.moved == [
        ("down", 1),
        ("down", 256 * KIB),
        ("down", 4 * MIB),
        ("up", 256 * KIB),
        ("up", 2 * MIB),
    ]
    assert speeds.download_bytes_per_second == pytest.approx(50 * MIB)
    assert speeds.upload_bytes_per_second == pytest.approx(50 * MIB)
    assert speeds.transferred_bytes == sum(size for _, size in line.moved)


def test_a_slow_line_is_timed_with_what_it_moves_in_ten_seconds() -> None:
    line = SteadyLine(bytes_per_second=100_000)
    measure(line, download_bytes=4 * MIB, upload_bytes=0, seconds=line.seconds)
    direction, size_bytes = line.moved[-1]
    assert direction == "down"
    assert size_bytes == pytest.approx(1_000_000, abs=1)


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_direction_of_0_bytes_is_skipped(direction: str) -> None:
    line = SteadyLine()
    sizes = {"down": 0, "up": 0, direction: MIB}
    speeds = measure(
        line, download_bytes=sizes["down"], upload_bytes=sizes["up"], seconds=line.seconds
    )
    assert (speeds.download_bytes_per_second is None) == (direction == "up")
    assert (speeds.upload_bytes_per_second is None) == (direction == "down")


def test_less_than_the_warm_up_moves_no_more_than_twice_that() -> None:
    line = SteadyLine()
    measure(line, download_bytes=1000, upload_bytes=0, seconds=line.seconds)
    assert line.moved == [("down", 1), ("down", 1000), ("down", 1000)]


def plugin_on(line: SteadyLine, config: SpeedtestConfig = AT_ONCE) -> SpeedtestPlugin:
    return SpeedtestPlugin(config, PluginContext(transfer=line))


def test_a_test_gives_one_point_and_lets_the_connection_go() -> None:
    line = SteadyLine()
    (point,) = plugin_on(line).gather(FIRST_AT)
    assert point.measurement == "speedtest"
    assert set(point.fields) == {
        "download_bytes_per_second",
        "upload_bytes_per_second",
        "transferred_bytes",
    }
    assert point.fields["transferred_bytes"] == 1 + 2 * (256 * KIB + 4 * MIB)
    assert line.closed == 1


def readings(plugin: SpeedtestPlugin, *seconds: float) -> list[bool]:
    return [bool(list(plugin.gather(FIRST_AT + timedelta(seconds=second)))) for second in seconds]


def test_the_next_test_comes_six_hours_later() -> None:
    assert readings(plugin_on(SteadyLine()), 0, 60, 6 * 3600 - 1, 6 * 3600) == [
        True,
        False,
        False,
        True,
    ]


def test_the_first_test_comes_at_some_time_within_the_delay() -> None:
    plugins = [plugin_on(SteadyLine(), SpeedtestConfig()) for _ in range(30)]
    tested_at = [readings(plugin, *range(0, 901, 60)).index(True) for plugin in plugins]
    assert len(set(tested_at)) > 1
    assert max(tested_at) <= 15


def test_a_test_that_fails_is_due_at_the_next_reading() -> None:
    line = SteadyLine(fault=PluginError("busy"))
    plugin = plugin_on(line)
    with pytest.raises(PluginError, match="busy"):
        list(plugin.gather(FIRST_AT))
    line.fault = None
    assert line.closed == 1
    assert readings(plugin, 60) == [True]


def test_a_clock_that_was_set_back_does_not_put_the_test_off() -> None:
    assert readings(plugin_on(SteadyLine()), 0, -7 * 86400) == [True, True]


def test_without_a_portal_there_is_nothing_to_test() -> None:
    with pytest.raises(PluginUnavailableError, match="no portal"):
        list(SpeedtestPlugin(AT_ONCE, PluginContext()).gather(FIRST_AT))
