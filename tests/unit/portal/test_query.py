"""Aggregates of samples by the API: as JSON and CSV, bounded, paged, of the own tenant only."""

import csv
import io
import itertools
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from core.clock import to_ns
from core.errors import InvalidInputError
from portal.context import portal
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries import sample_query
from timeseries.points import Point
from timeseries.store import Aggregate, RangeQuery, Store, write

PATH = "/api/v1/query"


@pytest.fixture
def _history(store: Store, cast: Cast, clock: FrozenClock) -> None:
    """Ten minutes of three of acme's GPUs, and of one of globex, a sample a minute."""
    for tenant, gpus in ((cast.acme, "012"), (cast.globex, "7")):
        points = [
            Point(
                "gpu",
                {"gpu": gpu, **({"job": "=train"} if gpu == "0" else {})},
                {"power_watts": 100.0 * int(gpu) + minute, "fan_percent": 50.0, "state": "on"},
                to_ns(clock.now - timedelta(minutes=minute)),
            )
            for gpu in gpus
            for minute in range(1, 11)
        ]
        write(store, points, identity={"tenant": tenant.id, "appliance": f"of {tenant.slug}"})


def ask(browser: Browser, *pairs: tuple[str, str], **query: str) -> TestResponse:
    parameters = {"measurement": "gpu", "fields": "power_watts", **query}
    return browser.get(f"{PATH}?{urlencode([*parameters.items(), *pairs])}")


def answer(browser: Browser, *pairs: tuple[str, str], **query: str) -> dict[str, Any]:
    response = ask(browser, *pairs, **query)
    assert response.status_code == 200, response.text
    assert isinstance(response.json, dict)
    return response.json


def errors(response: TestResponse) -> dict[str, list[str]]:
    assert response.status_code == 422, response.text
    assert response.json is not None
    named: dict[str, list[str]] = response.json["errors"]
    return named


@pytest.mark.usefixtures("_history")
def test_without_a_step_the_last_hour_is_one_value(bob: Browser, clock: FrozenClock) -> None:
    page = answer(bob, aggregate="max", fields="power_watts,fan_percent")

    since = f"{clock.now - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    assert page["items"] == [
        {"tags": {}, "times": [since], "values": {"power_watts": [210.0], "fan_percent": [50.0]}}
    ]
    assert (page["total"], page["next"], page["step_seconds"]) == (1, None, None)


@pytest.mark.usefixtures("_history")
def test_windows_and_groups_come_as_columns_with_null_for_what_is_missing(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    late = Point("gpu", {"gpu": "2"}, {"fan_percent": 9.0}, to_ns(clock.now) - 1)
    write(store, [late], identity={"tenant": cast.acme.id, "appliance": "of acme"})

    page = answer(
        bob,
        ("filter", "gpu=1"),
        ("filter", "gpu=2"),
        fields="power_watts,fan_percent",
        since=f"{clock.now - timedelta(minutes=2):%Y-%m-%dT%H:%M:%S+00:00}",
        until="now",
        step="1m",
        group_by="gpu,job",
    )

    first, second = page["items"]
    assert first["tags"] == {"gpu": "1", "job": ""}
    assert first["values"] == {"power_watts": [102.0, 101.0], "fan_percent": [50.0, 50.0]}
    assert second["values"]["fan_percent"] == [50.0, 29.5]
    assert first["times"] == ["2026-03-02T11:58:00Z", "2026-03-02T11:59:00Z"]
    only_fan = answer(bob, fields="power_watts,fan_percent", since="-5s", group_by="gpu")
    assert only_fan["items"][0]["values"] == {"power_watts": [None], "fan_percent": [9.0]}


@pytest.mark.usefixtures("_history")
@pytest.mark.parametrize("step", [{}, {"step": "1m"}])
def test_pages_have_each_group_once_and_absolute_times(
    bob: Browser, clock: FrozenClock, step: dict[str, str]
) -> None:
    response = ask(
        bob, ("filter", "gpu=0"), ("filter", "gpu=2"), group_by="gpu", page_size="1", **step
    )
    assert response.json is not None
    first = response.json
    clock.advance(300)

    assert response.headers["Link"] == f'<{first["next"]}>; rel="next"'
    second = bob.get(first["next"]).json

    assert second is not None
    assert (first["total"], second["total"]) == (2, 2)
    assert [page["items"][0]["tags"] for page in (first, second)] == [{"gpu": "0"}, {"gpu": "2"}]
    assert (second["since"], second["until"]) == (first["since"], first["until"])
    assert second["next"] is None
    assert answer(bob, group_by="gpu", page="9")["items"] == []


@pytest.mark.usefixtures("_history")
@pytest.mark.parametrize(
    ("query", "accept"),
    [({"format": "csv"}, "application/json"), ({}, "text/csv"), ({}, "text/csv, */*;q=0.1")],
)
def test_csv_has_a_row_for_each_group_and_window_and_no_formulas(
    bob: Browser, query: dict[str, str], accept: str
) -> None:
    asked = {"measurement": "gpu", "fields": "power_watts,fan_percent", "step": "1h", **query}
    path = f"{PATH}?{urlencode({**asked, 'group_by': 'gpu,job', 'aggregate': 'min'})}"

    response = bob.get(path, headers={"Accept": accept})

    assert response.content_type == "text/csv; charset=utf-8"
    rows = list(csv.reader(io.StringIO(response.text, newline="")))
    assert rows == [
        ["time", "gpu", "job", "power_watts", "fan_percent"],
        ["2026-03-02T11:00:00Z", "0", "'=train", "1.0", "50.0"],
        ["2026-03-02T11:00:00Z", "1", "", "101.0", "50.0"],
        ["2026-03-02T11:00:00Z", "2", "", "201.0", "50.0"],
    ]


def test_csv_columns_with_the_same_name_are_distinguished(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    odd = Point("m", {"time": "t", "x": "y"}, {"time": 1.0, "x": 2.0}, to_ns(clock.now) - 1)
    write(store, [odd], identity={"tenant": cast.acme.id, "appliance": "a"})

    response = ask(bob, measurement="m", fields="time,x", group_by="time,x", format="csv")

    assert response.text.splitlines()[0] == "time,tag_time,x,field_time,field_x"


@pytest.mark.usefixtures("_history")
def test_each_user_sees_the_groups_of_their_tenant(
    bob: Browser, charlie: Browser, olivia: Browser
) -> None:
    seen = {
        browser: [item["tags"]["gpu"] for item in answer(browser, group_by="gpu")["items"]]
        for browser in (bob, charlie, olivia)
    }

    assert seen == {bob: ["0", "1", "2"], charlie: ["7"], olivia: ["0", "1", "2", "7"]}
    acme = answer(olivia, group_by="tenant")["items"][0]["tags"]["tenant"]
    assert answer(charlie, ("filter", f"tenant={acme}"))["items"] == []


@pytest.mark.usefixtures("_history")
def test_unknown_names_are_reported_together_with_suggestions_from_the_tenant(
    bob: Browser, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    secret = Point("gpus", {"gpv": "0"}, {"power_wats": 1.0}, to_ns(clock.now) - 1)
    write(store, [secret], identity={"tenant": cast.globex.id, "appliance": "x"})

    reported = errors(
        ask(bob, ("filter", "jobb=x"), fields="power_wats,state", group_by="gpv", step="1s")
    )
    foreign = errors(ask(bob, measurement="gpus"))

    assert "Did you mean 'power_watts'?" in reported["fields"][0]
    assert "Did you mean 'gpu'?" in reported["group_by"][0]
    assert "Did you mean 'job'?" in reported["filter"][0]
    assert "'state' is text" in reported["aggregate"][0]
    assert foreign["measurement"] == ["Unknown measurement 'gpus'. Did you mean 'gpu'?"]
    assert "appliance, gpu, job" in errors(ask(bob, group_by="zzz"))["group_by"][0]
    assert errors(ask(bob, measurement="zzz"))["measurement"][0].endswith("Use one of gpu.")


def test_an_invalid_query_reports_its_field(bob: Browser) -> None:
    for query, field in (
        ("fields=x", "measurement"),
        ("measurement=gpu", "fields"),
        ("measurement=gpu&fields=", "fields"),
        ("measurement=gpu&fields=x&format=xlsx", "format"),
        ("measurement=gpu&fields=x&steps=5m", "steps"),
        ("measurement=gpu&fields=x&step=5", "step"),
        ("measurement=gpu&fields=x&step=0m", "step"),
        ("measurement=gpu&fields=x&filter=gpu", "filter.0"),
        ("measurement=gpu&fields=x&aggregate=median", "aggregate"),
        ("measurement=gpu&fields=x&since=yesterday", "since"),
        ("measurement=gpu&fields=x&since=-999999d", "since"),
        ("measurement=gpu&fields=x&since=2026-13-01T00:00:00Z", "since"),
        ("measurement=gpu&fields=x&since=now&until=-1h", "since"),
        ("measurement=gpu&fields=x&since=-733d", "since"),
        ("measurement=gpu&fields=x&since=-3h&step=1s", "step"),
        (f"measurement=gpu&group_by={','.join('abcdefghi')}&fields=x", "group_by"),
    ):
        assert field in errors(bob.get(f"{PATH}?{query}"))


@pytest.mark.usefixtures("_history")
def test_responses_are_bounded_and_the_error_suggests_a_step(
    bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_query, "MAX_VALUES", 30)
    too_fine = errors(ask(bob, group_by="gpu", step="1m"))["page_size"][0]
    monkeypatch.setattr(sample_query, "MAX_GROUPS", 2)
    too_many = errors(ask(bob, group_by="gpu", step="30m"))["group_by"][0]

    assert "180 values (groups: 3, fields: 1, windows: 60)" in too_fine
    assert "a step of at least 7m" in too_fine
    assert "3 groups, more than 2" in too_many
    monkeypatch.undo()
    assert answer(bob, group_by="gpu", step="7m")["total"] == 3


def test_a_long_range_is_read_in_parts_that_give_the_same_answer(
    store: Store, clock: FrozenClock
) -> None:
    end_ns = to_ns(clock.now) - 7 * 10**9
    points = [Point("gpu", {}, {"x": float(at)}, end_ns - at * 600 * 10**9) for at in range(1, 600)]
    write(store, points, identity={"tenant": "t", "appliance": "a"})
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=end_ns - 4 * 86_400 * 10**9,
        end_ns=end_ns,
        step_ns=3600 * 10**9,
        aggregate=Aggregate.P95,
        tenants=("t",),
    )

    ((group,), total) = sample_query.query_groups(store, query, page=1, page_size=1)

    (expected,) = store.query_range(query)
    assert total == 1
    assert (group.times_ns, group.values["x"]) == (expected.times_ns, expected.values)
    assert len(group.times_ns) > 90


def test_a_query_that_takes_too_long_is_given_up(store: Store, clock: FrozenClock) -> None:
    end_ns = to_ns(clock.now)
    write(
        store,
        [Point("gpu", {}, {"x": 1.0}, end_ns - 1)],
        identity={"tenant": "t", "appliance": "a"},
    )
    query = RangeQuery(
        measurement="gpu",
        fields=("x",),
        start_ns=end_ns - 4 * 86_400 * 10**9,
        end_ns=end_ns,
        step_ns=3600 * 10**9,
        tenants=("t",),
    )
    readings = itertools.count(step=11.0)

    with pytest.raises(InvalidInputError, match="longer than 30 s"):
        sample_query.query_groups(store, query, page=1, page_size=1, seconds=lambda: next(readings))

    assert next(readings) == 44.0


@pytest.mark.usefixtures("_history")
def test_one_tenants_concurrent_queries_are_bounded_and_leave_room_for_others(
    app: Flask, bob: Browser, charlie: Browser, cast: Cast
) -> None:
    with app.app_context():
        limit = portal().queries
    with limit.running(cast.acme.id), limit.running(cast.acme.id):
        refused = ask(bob)
        others = ask(charlie)

    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert others.status_code == 200
    assert ask(bob).status_code == 200


def test_all_formats_are_documented(nobody: Browser) -> None:
    described = nobody.get("/api/v1/openapi.json").json
    assert described is not None

    operation = described["paths"][PATH]["get"]

    content = {"application/json", "text/csv", "application/vnd.apache.arrow.stream"}
    assert set(operation["responses"]["200"]["content"]) == content
    parameters = {parameter["name"]: parameter for parameter in operation["parameters"]}
    assert parameters["fields"]["explode"] is False
    assert parameters["since"]["schema"]["pattern"].startswith("^(now|-")
    assert {name for name in parameters if parameters[name].get("required")} == {
        "measurement",
        "fields",
    }
