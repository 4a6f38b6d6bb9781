"""Forecasts of capacity, and network speeds, against figures computed by hand."""

from datetime import UTC, datetime, timedelta

import pytest

from core.clock import to_ns
from core.db import SessionFactory
from dash_app.reports.forecast import forecast
from dash_app.reports.report import ReportBy, ReportKind
from jobqueue.usage.measuring import Period
from tenants.models import Appliance
from tests.cast import NOON, Cast
from tests.unit.dash_app.reporting import HOUR, BuildReport, add_usage, row
from timeseries.points import Point
from timeseries.store import Store, write

DAY = timedelta(days=1)
GIB = 1024**3
MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = Period(MIDNIGHT - 7 * DAY, MIDNIGHT)


def test_a_straight_line_has_one_date() -> None:
    trend = forecast([0, 1, 2, 3, 4], [10, 12, 14, 16, 18], limit=30)
    assert trend is not None
    assert trend.per_day == 2
    assert [trend.at_limit, trend.earliest, trend.latest] == pytest.approx([10, 10, 10])


def test_the_interval_is_where_the_bounds_of_the_line_reach_the_limit() -> None:
    # Days 0 to 9 with residuals of +1 and -1 around 10 + 2 x day, which don't change the slope
    # when they are symmetric around the middle.
    residuals = [1, -1, -1, 1, 0, 0, 1, -1, -1, 1]
    values = [10 + 2 * day + residuals[day] for day in range(10)]
    trend = forecast(list(range(10)), values, limit=50)
    assert trend is not None
    assert trend.per_day == pytest.approx(2.0)
    assert trend.at_limit == pytest.approx(20.0)
    # 8 squared residuals of 1 over 8 degrees of freedom: the variance is 1. t(8) is 2.306, the
    # spread of the days 82.5, and the mean 19 at day 4.5: 31 are missing. Where the bounds are at
    # the limit: (2 d - 31)^2 = 2.306^2 (1/10 + d^2 / 82.5), at d = 13.72 and 17.79.
    assert [trend.earliest, trend.latest] == pytest.approx([4.5 + 13.7205, 4.5 + 17.787], abs=0.005)


def test_growth_that_is_not_certain_has_no_latest_date() -> None:
    trend = forecast([0, 1, 2, 3, 4], [1, 3, 2, 5, 4], limit=10)
    assert trend is not None
    assert trend.at_limit == pytest.approx(2 + (10 - 3) / 0.8)
    assert trend.earliest is not None
    assert trend.earliest < 2 + (10 - 3) / 0.8
    assert trend.latest is None
    falling = forecast([0, 1, 2, 3, 4], [9, 8, 7, 6, 5], limit=10)
    assert falling is not None
    assert (falling.at_limit, falling.latest) == (None, None)
    full = forecast([0, 1, 2, 3, 4], [10, 10, 10, 10, 10], limit=10)
    assert full is not None
    assert full.at_limit == 2
    assert forecast([0, 1, 2, 3], [1, 2, 3, 4], limit=10) is None


def test_gpu_capacity_is_forecast_from_the_ledger(
    sessions: SessionFactory, appliances: tuple[Appliance, Appliance], build_report: BuildReport
) -> None:
    lyon, porto = appliances
    with sessions.begin() as session:
        for appliance in (lyon, porto):
            session.merge(appliance).gpu_count = 1
        for day in range(7):
            at = WEEK.since + day * DAY + 3 * HOUR
            # 6, 8, ... 18 of 24 GPU-hours a day in Lyon; a third of them used.
            hours = 6 + 2 * day
            add_usage(
                session, lyon, f"u{day}", at=at, allocated=hours, used=hours / 3, idle=1, energy=0
            )
    report = build_report(ReportKind.GPU_CAPACITY, ReportBy.SITE, period=WEEK)
    in_lyon = row(report, "Lyon")
    assert (in_lyon["gpus"], in_lyon["gpu_hours_per_day"]) == (1, 24.0)
    assert in_lyon["allocated_gpu_hours_per_day"] == pytest.approx(12.0)
    assert in_lyon["used_gpu_hours_per_day"] == pytest.approx(4.0)
    assert in_lyon["allocated_percent"] == pytest.approx(50.0)
    assert in_lyon["growth_gpu_hours_per_day"] == pytest.approx(2.0)
    # 24 = 6 + 2 x 9: on the tenth day of the week's first, February 23.
    assert [in_lyon[name] for name in ("full_on", "earliest_on", "latest_on")] == ["2026-03-04"] * 3
    assert row(report, "Porto")["allocated_gpu_hours_per_day"] == 0.0
    assert row(report, "Porto")["full_on"] is None
    assert list(report.totals[1:3]) == [2, 48.0]


def test_disks_are_forecast_from_their_samples(
    appliances: tuple[Appliance, Appliance], cast: Cast, store: Store, build_report: BuildReport
) -> None:
    lyon, _ = appliances
    assert not write(
        store,
        [
            Point(
                "disk",
                {"mount": mount},
                {"used_bytes": float(used * GIB), "total_bytes": float(100 * GIB)},
                to_ns(WEEK.since + day * DAY),
            )
            for day in range(7)
            for mount, used in (("/", 40), ("/data", 50 + 4 * day))
        ],
        identity={"tenant": cast.acme.id, "appliance": lyon.id},
    )
    report = build_report(ReportKind.DISK_CAPACITY, ReportBy.FILE_SYSTEM, period=WEEK)
    assert [cells[0] for cells in report.rows] == ["dgx-01 /data", "dgx-01 /"]
    data = row(report, "dgx-01 /data")
    assert (data["used_bytes"], data["used_percent"]) == (74 * GIB, 74.0)
    assert data["growth_bytes_per_day"] == pytest.approx(4 * GIB)
    # 100 = 50 + 4 x 12.5: at noon of the thirteenth day.
    assert data["full_on"] == "2026-03-07"
    assert row(report, "dgx-01 /")["full_on"] is None
    assert list(report.totals[1:4]) == [200 * GIB, 114 * GIB, 57.0]


def test_network_speeds_add_the_interfaces_of_an_appliance(
    appliances: tuple[Appliance, Appliance], cast: Cast, store: Store, build_report: BuildReport
) -> None:
    points = [
        Point(
            "network",
            {"interface": interface},
            {"received_bytes_per_second": received, "sent_bytes_per_second": 10.0},
            to_ns(NOON) + second * 10**9,
        )
        for interface, speeds in (("eth0", (100.0, 300.0)), ("eth1", (50.0, 70.0)))
        for second, received in enumerate(speeds)
    ]
    for appliance in appliances:
        identity = {"tenant": cast.acme.id, "appliance": appliance.id}
        assert not write(store, points, identity=identity)
    report = build_report(ReportKind.NETWORK, ReportBy.APPLIANCE)
    # Means of 200 and 60, and the fastest sample.
    assert list(row(report, "dgx-01").values())[1:] == [260.0, 20.0, 300.0, 10.0]
    assert list(report.totals[1:]) == [520.0, 40.0, 300.0, 10.0]
    by_day = build_report(ReportKind.NETWORK, ReportBy.DAY, appliances="porto")
    assert [tuple(cells) for cells in by_day.rows] == [("2026-03-02", 260.0, 20.0, 300.0, 10.0)]


def test_network_speeds_have_the_same_totals_whatever_the_grouping(
    appliances: tuple[Appliance, Appliance], cast: Cast, store: Store, build_report: BuildReport
) -> None:
    def points(interface: str, received: float, hours: range) -> list[Point]:
        fields = {"received_bytes_per_second": received, "sent_bytes_per_second": 10.0}
        return [
            Point("network", {"interface": interface}, fields, to_ns(WEEK.since + hour * HOUR))
            for hour in hours
        ]

    lyon, porto = ({"tenant": cast.acme.id, "appliance": appliance.id} for appliance in appliances)
    # An interface that is up for a quarter of the time of the other.
    assert not write(store, points("eth0", 100.0, range(40)), identity=lyon)
    assert not write(store, points("eth1", 400.0, range(30, 40)), identity=lyon)
    assert not write(store, points("eth0", 60.0, range(20)), identity=porto)
    by_appliance = build_report(ReportKind.NETWORK, ReportBy.APPLIANCE, period=WEEK)
    assert list(row(by_appliance, "dgx-01").values())[1:] == [200.0, 12.5, 400.0, 10.0]
    expected = [260.0, 22.5, 400.0, 10.0]
    for by in (ReportBy.APPLIANCE, ReportBy.SITE, ReportBy.DAY):
        report = build_report(ReportKind.NETWORK, by, period=WEEK)
        assert list(report.totals[1:]) == expected, by
