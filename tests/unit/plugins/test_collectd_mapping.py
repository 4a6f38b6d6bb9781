"""From value lists to points: names, tags, and rates by collectd's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.base import PluginError
from plugins.collectd.mapping import MAX_PLUGINS, MAX_SERIES, PointMapper
from plugins.collectd.types_db import parse_types
from plugins.collectd.values import Identity, Notification, Number, Severity, ValueList
from timeseries.duckdb.hot.ingest import point_error
from timeseries.duckdb.schema import Table
from timeseries.lineprotocol.encode import encode
from timeseries.lineprotocol.parser import parse
from timeseries.points import Point
from timeseries.validation import name_error

TYPES, _ = parse_types(
    """
    gauge value:GAUGE:U:U
    percent value:GAUGE:0:100
    derive value:DERIVE:0:U
    signed value:DERIVE:U:U
    capped value:DERIVE:0:50
    counter value:COUNTER:U:U
    absolute value:ABSOLUTE:0:U
    if_octets rx:DERIVE:0:U tx:DERIVE:0:U
    mixed used:GAUGE:0:U hits-total:COUNTER:0:U
    """
)
SECOND = 10**9


class Readings:
    """One series, read at seconds of its own clock."""

    def __init__(self, kind: str, **names: str) -> None:
        self._mapper = PointMapper(TYPES, host="dgx-1")
        self._identity = Identity(plugin="spam", type=kind, **names)

    def at(self, second: float, *values: Number | None, interval: float = 10.0) -> Point | None:
        values_list = ValueList(
            identity=self._identity, values=values, time_ns=round(second * SECOND)
        )
        return self._mapper.point(values_list, now_ns=0, interval_seconds=interval)

    def fields(self, second: float, *values: Number | None) -> dict[str, object]:
        point = self.at(second, *values)
        return dict(point.fields) if point else {}


def test_a_gauge_keeps_its_value_under_a_measurement_of_its_own() -> None:
    readings = Readings("gauge", plugin_instance="eggs", type_instance="ham", host="dgx-1")
    assert readings.at(5, 42.5) == Point(
        "collectd_spam",
        {"instance": "eggs", "type": "gauge", "type_instance": "ham"},
        {"value": 42.5},
        5 * SECOND,
    )


def test_a_whole_gauge_is_a_float_so_that_the_field_keeps_one_type() -> None:
    point = Readings("gauge").at(5, 42)
    assert point is not None
    assert isinstance(point.fields["value"], float)


def test_a_gauge_above_the_bound_is_stored_as_in_collectd() -> None:
    assert Readings("percent").fields(5, 500.0) == {"value": 500.0}


def test_an_unknown_gauge_is_no_reading() -> None:
    assert Readings("gauge").at(5, None) is None
    assert Readings("gauge").at(5, float("nan")) is None


def test_a_derive_is_its_growth_per_second() -> None:
    readings = Readings("if_octets")
    assert readings.at(100, 1000, 5000) is None
    assert readings.fields(110, 3000, 5000) == {"rx_per_second": 200.0, "tx_per_second": 0.0}


def test_a_decreasing_derive_with_minimum_0_is_omitted() -> None:
    readings = Readings("derive")
    readings.at(100, 1000)
    assert readings.fields(110, 10) == {}
    assert readings.fields(120, 30) == {"value_per_second": 2.0}


def test_a_derive_without_bounds_may_fall() -> None:
    readings = Readings("signed")
    readings.at(100, 1000)
    assert readings.fields(110, 900) == {"value_per_second": -10.0}


def test_a_rate_above_the_maximum_of_its_type_is_omitted() -> None:
    readings = Readings("capped")
    readings.at(100, 0)
    assert readings.fields(110, 501) == {}


def test_a_counter_that_wraps_at_32_bits_goes_on() -> None:
    readings = Readings("counter")
    readings.at(100, 2**32 - 100)
    assert readings.fields(110, 400) == {"value_per_second": 50.0}


def test_a_counter_that_wraps_at_64_bits_goes_on() -> None:
    readings = Readings("counter")
    readings.at(100, 2**64 - 100)
    assert readings.fields(110, 400) == {"value_per_second": 50.0}


def test_an_absolute_counts_since_the_last_reading() -> None:
    readings = Readings("absolute")
    assert readings.fields(100, 50) == {"value_per_second": 5.0}  # over the interval of 10 s
    assert readings.fields(105, 50) == {"value_per_second": 10.0}


def test_a_counter_with_a_gap_begins_again_behind_it() -> None:
    readings = Readings("if_octets")
    readings.at(100, 1000, 1000)
    assert readings.fields(110, None, 2000) == {"tx_per_second": 100.0}
    assert readings.fields(120, 5000, 3000) == {"tx_per_second": 100.0}
    assert readings.fields(130, 6000, 4000) == {"rx_per_second": 100.0, "tx_per_second": 100.0}


def test_a_counter_from_the_past_changes_nothing() -> None:
    readings = Readings("derive")
    readings.at(100, 1000)
    assert readings.fields(90, 5) == {}
    assert readings.fields(100, 7) == {}
    assert readings.fields(110, 1100) == {"value_per_second": 10.0}


def test_one_type_can_have_gauges_and_rates() -> None:
    readings = Readings("mixed")
    assert readings.fields(100, 7, 0) == {"used": 7.0}
    assert readings.fields(110, 8, 50) == {"used": 8.0, "hits_total_per_second": 5.0}


@pytest.mark.parametrize("host", ["", "localhost", "dgx-1", "DGX-1.example.com"])
def test_this_host_is_no_tag(host: str) -> None:
    point = Readings("gauge", host=host).at(5, 1)
    assert point is not None
    assert "host" not in point.tags


@pytest.mark.parametrize(
    ("own", "other"), [("r1.foo.local", "r1.bar.local"), ("10.0.0.5", "10.7.7.7")]
)
def test_a_host_of_another_domain_or_address_is_a_tag(own: str, other: str) -> None:
    mapper = PointMapper(TYPES, host=own)
    values = ValueList(identity=Identity(plugin="spam", type="gauge", host=other), values=(1,))
    point = mapper.point(values, now_ns=9, interval_seconds=10.0)
    assert point is not None
    assert point.tags["host"] == other


def test_another_host_is_a_tag() -> None:
    point = Readings("gauge", host="switch-7.example.com").at(5, 1)
    assert point is not None
    assert point.tags["host"] == "switch-7.example.com"


def test_a_foreign_plugin_never_writes_into_a_measurement_of_vedettes_own() -> None:
    mapper = PointMapper(TYPES, host="h")
    for plugin in ("cpu", "GPU", "collectd"):
        identity = Identity(plugin=plugin, type="gauge")
        values = ValueList(identity=identity, values=(1.0,), time_ns=1)
        point = mapper.point(values, now_ns=1, interval_seconds=10)
        assert point is not None
        assert point.measurement == f"collectd_{plugin.lower()}"


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(PluginError, match=r"spam/nope: type 'nope' is not in any types.db"):
        Readings("nope").at(5, 1)


def test_too_many_plugin_names_are_rejected() -> None:
    mapper = PointMapper(TYPES, host="h")

    def send(number: int) -> None:
        identity = Identity(plugin=f"p{number}", type="gauge")
        values = ValueList(identity=identity, values=(1.0,), time_ns=1)
        mapper.point(values, now_ns=1, interval_seconds=10)

    for number in range(MAX_PLUGINS):
        send(number)
    with pytest.raises(PluginError, match=r"more than .* plugin names"):
        send(MAX_PLUGINS)
    send(0)


def test_series_that_are_read_no_more_are_forgotten() -> None:
    mapper = PointMapper(TYPES, host="h")

    def send(instance: int, second: int, value: int) -> Point | None:
        identity = Identity(plugin="p", plugin_instance=str(instance), type="derive")
        values = ValueList(identity=identity, values=(value,), time_ns=second * SECOND)
        return mapper.point(values, now_ns=1, interval_seconds=10)

    for instance in range(MAX_SERIES + 1):
        send(instance, 100, 0)
    assert send(0, 110, 10) is None  # it begins afresh
    assert send(MAX_SERIES, 110, 10) is not None


def test_a_notification_is_an_event_with_its_severity() -> None:
    identity = Identity(plugin="ups", plugin_instance="1")
    fire = Notification(identity=identity, severity=Severity.FAILURE, message="fire", time_ns=7)
    point = PointMapper(TYPES, host="h").notification(fire, now_ns=9)
    tags = {"severity": "failure", "plugin": "ups", "instance": "1"}
    assert point == Point("notification", tags, {"events": 1}, 7)


names = st.text(min_size=1, max_size=30)


@given(plugin=names, instance=names, type_instance=names, host=names)
def test_any_name_makes_a_point_that_line_protocol_and_store_take(
    plugin: str, instance: str, type_instance: str, host: str
) -> None:
    identity = Identity(
        host=host,
        plugin=plugin,
        plugin_instance=instance,
        type="mixed",
        type_instance=type_instance,
    )
    values = ValueList(identity=identity, values=(1.0, 5), time_ns=1)
    mapper = PointMapper(TYPES, host="h")
    point = mapper.point(values, now_ns=1, interval_seconds=10)
    assert point is not None
    assert parse(encode([point]), default_time_ns=0).points == [point]
    assert name_error("measurement", point.measurement) is None
    assert point_error(point, {"tenant": "t", "appliance": "a"}, Table()) is None
