"""Shares of CPU time, on captures of `/proc/stat`."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest

from core.clock import to_ns
from plugins.cpu.reader import CPUConfig, CPUPlugin, shares
from tests.unit.plugins.conftest import FIRST_AT, SECOND_AT, CapturedHost
from timeseries.points import FieldValue, Point

# A share is rounded to two decimals.
ROUNDING = 0.00501
BUSY_KINDS = ("user", "nice", "system", "irq", "softirq", "steal", "guest")


def read_twice(host: CapturedHost, plugin: CPUPlugin) -> list[Point]:
    host.use("proc_a")
    assert plugin.gather(FIRST_AT) == []
    host.use("proc_b")
    return list(plugin.gather(SECOND_AT))


def with_cores(stat: str, count: int) -> str:
    """Return `/proc/stat` of a host that has copies of the capture's two cores, in turn."""
    total, cpu0, cpu1, *other_lines = stat.splitlines(keepends=True)
    pairs = count // 2
    columns = [str(pairs * int(ticks)) for ticks in total.split()[1:]]
    lines = [
        f"cpu{core} {(cpu0, cpu1)[core % 2].split(maxsplit=1)[1]}" for core in range(2 * pairs)
    ]
    return "".join([f"cpu  {' '.join(columns)}\n", *lines, *other_lines])


def cores(points: Iterable[Point]) -> list[str]:
    return [point.tags["core"] for point in points if point.measurement == "cpu_core"]


def total_of(fields: Mapping[str, FieldValue]) -> float:
    kinds = (*BUSY_KINDS, "iowait", "idle")
    return sum(float(fields[f"{kind}_percent"]) for kind in kinds)


def test_shares_are_those_of_the_time_between_two_readings(host: CapturedHost) -> None:
    point, *_ = read_twice(host, CPUPlugin(CPUConfig(), host.context))
    # Ticks between the captures: user 897, system 123, softirq 5, iowait 32, idle 927.
    total = 897 + 123 + 5 + 32 + 927
    assert (point.measurement, point.tags, point.time_ns) == ("cpu", {}, to_ns(SECOND_AT))
    assert point.fields == pytest.approx(
        {
            "usage_percent": 100 * (897 + 123 + 5) / total,
            "user_percent": 100 * 897 / total,
            "nice_percent": 0,
            "system_percent": 100 * 123 / total,
            "iowait_percent": 100 * 32 / total,
            "irq_percent": 0,
            "softirq_percent": 100 * 5 / total,
            "steal_percent": 0,
            "guest_percent": 0,
            "idle_percent": 100 * 927 / total,
        },
        abs=ROUNDING,
    )


def test_each_core_has_its_own_shares(host: CapturedHost) -> None:
    _, first, second = read_twice(host, CPUPlugin(CPUConfig(), host.context))
    assert (first.measurement, first.tags, second.tags) == (
        "cpu_core",
        {"core": "0"},
        {"core": "1"},
    )
    # Core 0: user 150, system 36, softirq 2, idle 807; core 1: 748, 88, 3, 120 and iowait 31.
    assert first.fields["user_percent"] == pytest.approx(100 * 150 / 995, abs=ROUNDING)
    assert second.fields["iowait_percent"] == pytest.approx(100 * 31 / 990, abs=ROUNDING)


def test_cores_can_be_skipped(host: CapturedHost) -> None:
    points = read_twice(host, CPUPlugin(CPUConfig(per_core=False), host.context))
    assert [point.measurement for point in points] == ["cpu"]


def test_guest_time_is_subtracted_from_user_and_nice() -> None:
    before = [0] * 10
    # user 60 of which guest 40, nice 20 of which guest_nice 5.
    fields = shares(before, [60, 20, 10, 50, 10, 1, 2, 7, 40, 5])
    assert fields is not None
    total = 60 + 20 + 10 + 50 + 10 + 1 + 2 + 7
    assert fields["user_percent"] == pytest.approx(100 * 20 / total, abs=ROUNDING)
    assert fields["nice_percent"] == pytest.approx(100 * 15 / total, abs=ROUNDING)
    assert fields["guest_percent"] == pytest.approx(100 * 45 / total, abs=ROUNDING)
    assert total_of(fields) == pytest.approx(100, abs=10 * ROUNDING)
    assert fields["usage_percent"] == pytest.approx(100 * (total - 60) / total, abs=ROUNDING)


def test_a_host_of_96_cores_has_a_point_for_each(host: CapturedHost) -> None:
    plugin = CPUPlugin(CPUConfig(), host.context)
    host.use("proc_a")
    host.write("stat", with_cores(host.read("stat"), 96))
    plugin.gather(FIRST_AT)
    host.use("proc_b")
    host.write("stat", with_cores(host.read("stat"), 96))
    points = list(plugin.gather(SECOND_AT))
    assert cores(points) == [str(core) for core in range(96)]
    total, core0 = points[:2]
    assert points[95].fields == core0.fields
    # 48 times the time of the two-core capture: the same shares.
    assert total.fields["user_percent"] == pytest.approx(100 * 897 / 1984, abs=ROUNDING)


def test_an_offline_core_is_skipped_and_starts_afresh(host: CapturedHost) -> None:
    plugin = CPUPlugin(CPUConfig(), host.context)
    host.use("proc_a")
    host.write("stat", with_cores(host.read("stat"), 4))
    plugin.gather(FIRST_AT)
    host.use("proc_b")
    assert cores(plugin.gather(SECOND_AT)) == ["0", "1"]
    third_at, fourth_at = (SECOND_AT + timedelta(seconds=10 * number) for number in (1, 2))
    host.use("proc_a")
    host.write("stat", with_cores(host.read("stat"), 4))
    assert "2" not in cores(plugin.gather(third_at))
    host.use("proc_b")
    host.write("stat", with_cores(host.read("stat"), 4))
    assert cores(plugin.gather(fourth_at)) == ["0", "1", "2", "3"]


def test_iowait_that_the_kernel_corrected_downwards_counts_as_none() -> None:
    fields = shares([100, 0, 0, 100, 50, 0, 0, 0, 0, 0], [150, 0, 0, 150, 49, 0, 0, 0, 0, 0])
    assert fields is not None
    assert (fields["user_percent"], fields["iowait_percent"]) == (50, 0)


def test_counters_that_all_went_back_give_no_reading() -> None:
    assert shares([100, 9, 9, 100, 50, 9, 9, 9, 9, 9], [1, 0, 1, 2, 0, 0, 0, 0, 0, 0]) is None


def test_no_time_passed_gives_no_reading(host: CapturedHost) -> None:
    plugin = CPUPlugin(CPUConfig(), host.context)
    host.use("proc_a")
    assert plugin.gather(FIRST_AT) == []
    assert plugin.gather(SECOND_AT) == []
