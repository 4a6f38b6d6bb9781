"""The API that InfluxDB's clients read: what Grafana sends, errors, and how a token may come."""

import base64
from typing import Any

from flask import Flask

from core.clock import NS_PER_SECOND, to_ns
from tests.cast import NOON, Cast
from tests.unit.portal.conftest import Browser, MakeToken
from tests.unit.portal.world import World
from timeseries.points import Point
from timeseries.store import Store, write

URL = "/api/v1/influxdb/query"
CASES: list[tuple[str, int, str]] = [
    ("", 400, 'missing required parameter "q"'),
    ("q=SELECT", 400, "Found the end at column 7"),
    ("q=DROP DATABASE x", 400, "Only SELECT and SHOW"),
    ("q=SELECT x INTO y FROM z", 400, "'INTO' at column 10, not FROM"),
    ("q=SELECT x FROM (SELECT y FROM z", 400, "Found the end at column 31"),
    ("q=SELECT x FROM z WHERE a = 'b", 400, "column 27"),
    ("q=SHOW DATABASES&epoch=fortnight", 400, "'fortnight'"),
    ("q=SHOW TAG KEYS WHERE " + "(" * 50, 400, "nested more than 40 deep"),
    ("q=SELECT x" + "*2" * 200, 400, "more than 100 operators"),
    (f"q={'SHOW DATABASES;' * 101}", 400, "more than 100 statements"),
]


def test_errors_have_influxdb_s_form(alice: Browser, world: World) -> None:
    assert world
    for parameters, status, message in CASES:
        answer = alice.get(f"{URL}?{parameters}")
        assert answer.status_code == status, parameters
        assert answer.json is not None
        assert answer.json.keys() == {"error"}
        assert message in answer.json["error"], (parameters, answer.json)


def test_a_statement_s_error_is_its_own(alice: Browser, world: World) -> None:
    assert world
    text = "SHOW DATABASES;SELECT nope(x) FROM y;SHOW DATABASES"
    answer = alice.client.get(URL, query_string={"q": text})
    assert answer.status_code == 200
    assert answer.json is not None
    first, second, third = answer.json["results"]
    assert first["series"][0]["values"] == [["vedette"]]
    assert "nope() is not supported" in second["error"]
    assert third["error"] == "not executed"


def test_a_token_may_come_in_each_way_that_clients_send_it(
    app: Flask, cast: Cast, make_token: MakeToken
) -> None:
    secret = make_token(cast.alice)
    client = app.test_client()
    basic = base64.b64encode(f"grafana:{secret}".encode()).decode()
    for header in (f"Bearer {secret}", f"Token {secret}", f"Basic {basic}"):
        answer = client.post(URL, data={"q": "SHOW DATABASES"}, headers={"Authorization": header})
        assert answer.status_code == 200, header
        assert answer.headers["X-Influxdb-Version"] == "1.8.10"
    parameters = {"q": "SHOW DATABASES", "u": "grafana", "p": secret}
    assert client.get(URL, query_string=parameters).status_code == 200
    assert client.post(URL, data=parameters).status_code == 200
    assert client.get("/api/v1/me", query_string={"p": secret}).status_code == 401

    for refused in ({"p": "vdt_wrong"}, {"p": ""}, {}):
        answer = client.get(URL, query_string={"q": "SHOW DATABASES", **refused})
        assert answer.status_code == 401
        assert answer.json is not None
        assert "token" in answer.json["error"]
        assert answer.headers["WWW-Authenticate"].startswith("Basic")


def test_grafana_s_statements_are_answered(
    alice: Browser, world: World, cast: Cast, store: Store
) -> None:
    """Its editor's statements, recorded from Grafana 9 to 11 with the data source in InfluxQL."""
    now_ms = to_ns(NOON) // 1_000_000
    for tenant, appliance, watts in (
        (cast.acme.id, world.ids["appliance_id"], 300.0),
        (cast.globex.id, "other", 900.0),
    ):
        points = [
            Point(
                "gpu",
                {"gpu": gpu},
                {"power_watts": watts + int(gpu), "name": "H100"},
                to_ns(NOON) - seconds * NS_PER_SECOND,
            )
            for seconds in (10, 30)
            for gpu in ("0", "1")
        ]
        write(store, points, identity={"tenant": tenant, "appliance": appliance})
    name = world_name(alice, world)
    times = f"time >= {now_ms - 60_000}ms and time <= {now_ms}ms"
    where = f'WHERE ("appliance"::tag =~ /^{name}$/) AND {times}'

    def asked(text: str) -> Any:  # noqa: ANN401 - JSON
        form = {"db": "vedette", "q": text, "epoch": "ms", "csrf_token": alice.token()}
        answer = alice.client.post(URL, data=form)
        assert answer.status_code == 200, answer.text
        assert answer.json is not None
        return answer.json["results"][0].get("series")

    columns = ["name", "duration", "shardGroupDuration", "replicaN", "default"]
    assert asked('SHOW RETENTION POLICIES on "vedette"')[0]["columns"] == columns
    listed = asked("SHOW MEASUREMENTS WITH MEASUREMENT =~ /(?i)GPU/ LIMIT 100")
    assert listed[0]["values"] == [["gpu"]]
    assert asked('SHOW FIELD KEYS FROM "gpu"')[0]["values"] == [["power_watts", "float"]]
    keys = asked('SHOW TAG KEYS FROM "autogen"."gpu"')[0]["values"]
    assert keys == [["appliance"], ["gpu"]]
    values = asked(f'SHOW TAG VALUES FROM "gpu" WITH KEY = "appliance" WHERE {times}')
    assert values[0]["values"] == [["appliance", name]]
    (series,) = asked(
        f'SELECT mean("power_watts") AS "watts" FROM "gpu" {where} '
        'GROUP BY time(20s), "appliance"::tag fill(null) ORDER BY time ASC'
    )
    assert (series["tags"], series["columns"]) == ({"appliance": name}, ["time", "watts"])
    assert series["values"] == [
        [now_ms - 60_000, None],
        [now_ms - 40_000, 300.5],
        [now_ms - 20_000, 300.5],
        [now_ms, None],
    ]
    newest = asked(f'SELECT last("power_watts") FROM "gpu" {where} AND "gpu" = \'1\'')
    assert newest[0]["values"] == [[now_ms - 10_000, 301]]
    assert asked(f'SELECT "power_watts" FROM "gpu" {where} LIMIT 1')[0]["values"] == [
        [now_ms - 30_000, 300]
    ]


def world_name(alice: Browser, world: World) -> str:
    """Return the name of the appliance that the samples are of."""
    shown = alice.get(f"/api/v1/appliances/{world.ids['appliance_id']}").json
    assert shown is not None
    return str(shown["name"])
