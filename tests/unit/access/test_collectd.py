"""POST /collectd: value lists and notifications in collectd's JSON and Command formats."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from access.ingest.collectd import read_batch
from access.ingest.collectd_formats import sources_of
from access.ingest.collectd_values import PointMaker
from core.clock import to_ns
from tests.cast import NOON
from tests.unit.access.conftest import AgentAPI
from timeseries.points import FieldValue
from timeseries.store import LatestQuery, Store

NOON_SECONDS = to_ns(NOON) // 10**9
TYPES_DB = Path("/usr/share/collectd/types.db")
TAGS = ("instance", "type", "type_instance", "host", "severity", "plugin", "alert")
INTERFACE: dict[str, Any] = {
    "values": [421465, 479194],
    "dstypes": ["derive", "derive"],
    "dsnames": ["rx", "tx"],
    "time": NOON_SECONDS + 0.25,
    "interval": 10.0,
    "host": "dgx-01.acme.example",
    "plugin": "interface",
    "plugin_instance": "eth0",
    "type": "if_octets",
    "type_instance": "",
    "meta": {"network:received": True},
}
LOAD = INTERFACE | {
    "values": [0.5, None, 0.25],
    "dstypes": ["gauge"] * 3,
    "dsnames": ["shortterm", "midterm", "longterm"],
    "plugin": "load",
    "plugin_instance": "",
    "type": "load",
}
ALERT = {
    "labels": {
        "alertname": "collectd_df_percent_bytes",
        "instance": "dgx-01",
        "df": "root",
        "type": "free",
        "severity": "FAILURE",
        "service": "collectd",
    },
    "annotations": {"summary": "Host dgx-01: 2% are left.", "current": "2.0"},
    "startsAt": "2026-03-02T12:00:00.000000000Z",
}


def push_json(api: AgentAPI, *items: object, **params: str) -> Any:  # noqa: ANN401
    return api.request("POST", "/collectd", json=items, params=params)


def push_lines(api: AgentAPI, *lines: str, **params: str) -> Any:  # noqa: ANN401
    headers = {"Content-Type": "text/plain"}
    body = "".join(f"{line}\r\n" for line in lines)
    return api.request("POST", "/collectd", data=body, headers=headers, params=params)


def stored(
    store: Store, measurement: str
) -> list[tuple[dict[str, str], int, dict[str, FieldValue]]]:
    """Return tags, time and fields of the newest points."""
    fields = tuple(store.fields(measurement, tenants=None))
    rows = store.latest(
        LatestQuery(measurement=measurement, fields=fields, since_ns=0, tenants=None, group_by=TAGS)
    )
    return [
        ({k: v for k, v in row.tags.items() if v}, row.time_ns, dict(row.values)) for row in rows
    ]


def test_a_value_list_in_json_keeps_its_names_and_its_counters(api: AgentAPI, store: Store) -> None:
    assert push_json(api, INTERFACE).status_code == 200
    assert stored(store, "collectd_interface") == [
        (
            {"instance": "eth0", "type": "if_octets"},
            to_ns(NOON) + 250_000_000,
            {"rx_total": 421465.0, "tx_total": 479194.0},
        )
    ]


def test_rates_are_named_as_such_where_collectd_makes_them(api: AgentAPI, store: Store) -> None:
    rates = INTERFACE | {"values": [12.5, 0]}
    assert push_json(api, rates, LOAD, rates="true").status_code == 200
    [(_, _, fields)] = stored(store, "collectd_interface")
    assert fields == {"rx_per_second": 12.5, "tx_per_second": 0.0}
    assert "shortterm" in stored(store, "collectd_load")[0][2]


def test_an_absolute_is_what_came_since_the_last_reading(api: AgentAPI, store: Store) -> None:
    item = INTERFACE | {"values": [50], "dstypes": ["absolute"], "dsnames": ["value"]}
    push_json(api, item)
    assert stored(store, "collectd_interface")[0][2] == {"value_per_second": 5.0}


def test_a_number_that_is_not_known_is_absent(api: AgentAPI, store: Store) -> None:
    assert push_json(api, LOAD).status_code == 200
    assert stored(store, "collectd_load")[0][2] == {"shortterm": 0.5, "longterm": 0.25}
    assert push_json(api, LOAD | {"values": [None] * 3}).status_code == 200


def test_readings_of_another_host_are_distinguished(api: AgentAPI, store: Store) -> None:
    push_json(api, LOAD | {"host": "switch-7"}, LOAD | {"host": "DGX-01"})
    assert [tags for tags, _, _ in stored(store, "collectd_load")] == [
        {"type": "load"},
        {"type": "load", "host": "switch-7"},
    ]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"values": [1]}, "there are 1 values, 2 dsnames and 2 dstypes"),
        ({"values": ["1", 2]}, "Expected float | null, got str - at $.values[0]"),
        ({"dstypes": ["gauge", "guess"]}, "dstype 'guess' is unknown"),
        ({"plugin": ""}, "plugin or type is empty"),
        ({"time": 1e30}, "the time 1e+30 is out of range"),
        ({"time": 1}, "retention of 14 days"),
    ],
)
def test_a_bad_item_is_named_and_the_good_ones_are_stored(
    api: AgentAPI, store: Store, fault: dict[str, object], says: str
) -> None:
    response = push_json(api, INTERFACE | fault, LOAD)
    body = response.json()
    assert (response.status_code, body["line"]) == (400, 1)
    assert body["message"].startswith("1 of 2 items was not stored: item 1: ")
    assert says in body["errors"][0]["reason"]
    assert stored(store, "collectd_load") != []


@pytest.mark.parametrize("item", [7, None, {}, {"name": "kairosdb", "value": 1}])
def test_what_is_no_value_list_is_named(api: AgentAPI, item: object) -> None:
    assert push_json(api, item).status_code == 400


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"{}", "application/json", 400),
        (b"\x00", "application/octet-stream", 415),
        (b"[", "text/plain", 400),
    ],
)
def test_another_format_is_refused(
    api: AgentAPI, body: bytes, media_type: str, status: int
) -> None:
    response = api.request("POST", "/collectd", data=body, headers={"Content-Type": media_type})
    assert response.status_code == status


@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_a_notification_is_an_event(api: AgentAPI, store: Store, media_type: str) -> None:
    headers = {"Content-Type": media_type}
    body = json.dumps([ALERT])
    assert api.request("POST", "/collectd", data=body, headers=headers).status_code == 200
    tags = {"alert": "df_percent_bytes", "instance": "root", "plugin": "df", "severity": "failure"}
    assert stored(store, "notification") == [
        (
            tags | {"type_instance": "free"},
            to_ns(NOON),
            {"events": 1, "message": "Host dgx-01: 2% are left."},
        )
    ]


def test_commands_give_the_same_points_as_json(api: AgentAPI, store: Store) -> None:
    response = push_lines(
        api,
        f"PUTVAL dgx-01/interface-eth0/if_octets interval=10.000 {NOON_SECONDS}.250:421465:479194",
        f"PUTVAL dgx-01/load/load interval=10.000 {NOON_SECONDS}.250:0.5:nan:0.25",
    )
    assert response.status_code == 200
    written_at_ns = to_ns(NOON) + 250_000_000
    assert stored(store, "collectd_interface") == [
        (
            {"instance": "eth0", "type": "if_octets"},
            written_at_ns,
            {"rx_total": 421465.0, "tx_total": 479194.0},
        )
    ]
    assert stored(store, "collectd_load") == [
        ({"type": "load"}, written_at_ns, {"shortterm": 0.5, "longterm": 0.25})
    ]


def test_a_quoted_identifier_may_hold_spaces(api: AgentAPI, store: Store) -> None:
    push_lines(api, r'PUTVAL "dgx-01/df-my \"disk\"/df_complex-free" interval=10 N:5')
    [(tags, time_ns, fields)] = stored(store, "collectd_df")
    assert tags == {"instance": 'my "disk"', "type": "df_complex", "type_instance": "free"}
    assert (time_ns, fields) == (to_ns(NOON), {"value": 5.0})


def test_an_unknown_types_numbers_are_named_by_their_place(api: AgentAPI, store: Store) -> None:
    push_lines(api, "PUTVAL dgx-01/ups/ours N:1:2", "PUTVAL dgx-01/fan/theirs N:3")
    assert stored(store, "collectd_ups")[0][2] == {"value1": 1.0, "value2": 2.0}
    assert stored(store, "collectd_fan")[0][2] == {"value": 3.0}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("FLUSH", "'FLUSH' is not a command; expected PUTVAL"),
        ("PUTVAL", "'' is not an identifier"),
        ("PUTVAL dgx-01/load N:1", "expected host/plugin-instance/type-instance"),
        ("PUTVAL dgx-01/load/load interval=10", "no values after the identifier"),
        ("PUTVAL dgx-01/load/load N:a", "'a' is not a number"),
        ("PUTVAL dgx-01/load/load soon:1", "'soon' is not a number"),
        ("PUTVAL dgx-01/load/load N", "'N' is not a reading; expected TIME:VALUE"),
    ],
)
def test_a_bad_line_is_named_and_the_good_ones_are_stored(
    api: AgentAPI, store: Store, line: str, says: str
) -> None:
    response = push_lines(api, "PUTVAL dgx-01/users/users N:3", line)
    body = response.json()
    assert (response.status_code, body["line"]) == (400, 2)
    assert says in body["errors"][0]["reason"]
    assert stored(store, "collectd_users")[0][2] == {"value": 3.0}


@pytest.mark.skipif(
    not TYPES_DB.exists(), reason="types.db is missing: install the Debian package collectd-core"
)
def test_the_types_are_those_of_collectd() -> None:
    lines = TYPES_DB.read_text(encoding="utf-8").splitlines()
    for name, *sources in (re.split(r"[\s,]+", line.strip()) for line in lines if line[:1] != "#"):
        expected = tuple(tuple(source.lower().split(":")[:2]) for source in sources)
        if name:
            assert sources_of(name, count=len(expected)) == expected


def push_text(api: AgentAPI, body: str) -> Any:  # noqa: ANN401
    headers = {"Content-Type": "application/json"}
    return api.request("POST", "/collectd", data=body.encode(), headers=headers)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_bare_constant_is_an_unknown_value_and_the_rest_is_stored(
    api: AgentAPI, store: Store, constant: str
) -> None:
    body = json.dumps([LOAD, INTERFACE]).replace("0.5", constant)
    assert push_text(api, body).status_code == 200
    assert stored(store, "collectd_load")[0][2] == {"longterm": 0.25}
    assert stored(store, "collectd_interface")[0][2]["rx_total"] == 421465.0


@pytest.mark.parametrize(("right", "wrong"), [("}]", "}"), ("shortterm", "\\ud800")])
def test_a_bare_constant_excuses_no_other_error(api: AgentAPI, right: str, wrong: str) -> None:
    body = json.dumps([LOAD]).replace("0.5", "NaN").replace(right, wrong)
    response = push_text(api, body)
    assert (response.status_code, response.json()["code"]) == (400, "bad_json")


def test_a_byte_order_mark_is_no_part_of_the_body(api: AgentAPI, store: Store) -> None:
    assert push_text(api, "\ufeff" + json.dumps([LOAD])).status_code == 200
    assert stored(store, "collectd_load")[0][2]["longterm"] == 0.25


@pytest.mark.parametrize(
    "hosts", [("r1.foo.local", "r1.bar.local"), ("10.0.0.5", "10.7.7.7"), ("10", "fe80::1")]
)
def test_hosts_of_two_domains_and_addresses_are_distinguished(
    hosts: tuple[str, str],
) -> None:
    own, other = hosts
    maker = PointMaker(own)
    batch, errors = read_batch(
        json.dumps([LOAD | {"host": own}, LOAD | {"host": other}]).encode(),
        maker,
        is_json=True,
        now_ns=to_ns(NOON),
    )
    assert errors == {}
    assert [point.tags.get("host") for point in batch.points()] == [None, other]
