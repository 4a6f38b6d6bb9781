"""The REST API: lists, resources and the OpenAPI document."""

import re

import pytest

from core.clock import to_ns
from portal.api.streams import PATHS as STREAMS
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries.points import Point
from timeseries.store import Store, write


@pytest.mark.usefixtures("cast")
def test_lists_share_one_envelope(bob: Browser) -> None:
    for name in ("appliances", "rules", "alerts", "receivers", "tenants", "metrics"):
        answer = bob.get(f"/api/v1/{name}").json
        assert answer is not None
        assert set(answer) == {"items", "total", "page", "page_size"}, name


def test_paging_returns_the_requested_page(alice: Browser, cast: Cast) -> None:
    first = alice.get("/api/v1/users?page_size=1").json
    second = alice.get("/api/v1/users?page_size=1&page=2").json
    assert first is not None
    assert second is not None
    assert first["total"] == second["total"] == 2
    assert first["items"][0]["email"] == cast.alice.email
    assert second["items"][0]["email"] == cast.bob.email


@pytest.mark.usefixtures("world")
def test_no_response_contains_a_secret(alice: Browser) -> None:
    for name in ("users", "appliances", "tokens", "receivers", "me"):
        text = alice.get(f"/api/v1/{name}").text
        assert not re.search(r"secret|password|hash", text), name


@pytest.mark.usefixtures("world")
def test_a_job_is_submitted_followed_and_stopped(bob: Browser) -> None:
    made = bob.call("POST", "/api/v1/jobs", {"name": "eval", "image": "a/b:1", "gpus": 2})
    assert made.status_code == 201
    assert made.json is not None
    path = f"/api/v1/jobs/{made.json['id']}"
    assert made.json["state"] == "submitted"
    stopped = bob.call("POST", f"{path}/stop").json
    assert stopped is not None
    assert stopped["state"] == "stopped"
    events = bob.get(f"{path}/events").json
    assert events is not None
    assert [event["state"] for event in events["items"]] == ["submitted", "stopped"]
    assert bob.call("POST", f"{path}/stop").status_code == 409


def test_an_enrollment_token_comes_with_its_command(alice: Browser) -> None:
    made = alice.call("POST", "/api/v1/enrollment-tokens", {"site": "Oslo", "uses": 3}).json
    assert made is not None
    assert made["command"] == f"vedette agent enroll http://portal.example {made['token']}"
    assert made["uses_left"] == 3


def test_the_catalog_names_fields_units_and_tags(
    bob: Browser, charlie: Browser, cast: Cast, store: Store, clock: FrozenClock
) -> None:
    point = Point("gpu", {"gpu": "0"}, {"power_watts": 300.0}, to_ns(clock.now))
    write(store, [point], identity={"tenant": cast.acme.id, "appliance": "x"})
    assert bob.get("/api/v1/metrics").json["items"] == [{"name": "gpu"}]  # type: ignore[index] # JSON
    assert bob.get("/api/v1/metrics/gpu").json == {
        "name": "gpu",
        "fields": [{"name": "power_watts", "type": "float", "unit": "W"}],
        "tags": ["tenant", "appliance", "gpu"],
    }
    assert charlie.get("/api/v1/metrics/gpu").status_code == 404


@pytest.mark.usefixtures("cast")
def test_rules_are_created_replaced_previewed_and_deleted(bob: Browser) -> None:
    body = {
        "name": "Hot",
        "measurement": "gpu",
        "field": "temperature_celsius",
        "warning_threshold": 85,
    }
    made = bob.call("POST", "/api/v1/rules", body).json
    assert made is not None
    assert made["expression"].startswith("avg(gpu.temperature_celsius) over 5m by appliance > 85")
    path = f"/api/v1/rules/{made['id']}"
    changed = bob.call("PATCH", path, {**body, "critical_threshold": 95}).json
    assert changed is not None
    assert changed["critical_threshold"] == 95.0
    disabled = bob.call("POST", f"{path}/disable").json
    assert disabled is not None
    assert disabled["is_enabled"] is False
    preview = bob.call("POST", "/api/v1/rules/preview", body).json
    assert preview is not None
    assert preview["items"] == []
    assert bob.call("DELETE", path).status_code == 204
    assert bob.get(path).status_code == 404


@pytest.mark.usefixtures("cast")
def test_a_rule_is_given_as_an_expression_or_as_fields(bob: Browser) -> None:
    body = {"name": "Hot", "expression": "max(gpu.power_watts) by gpu > 600 reset 550 for 2m"}
    made = bob.call("POST", "/api/v1/rules", body).json
    assert made is not None
    assert (made["aggregate"], made["warning_reset"], made["for_seconds"]) == ("max", 550, 120)
    assert made["group_by"] == ["gpu"]
    assert made["expression"] == (
        "max(gpu.power_watts) over 5m by appliance, gpu > 600 W reset 550 W for 2m"
    )
    for wrong, fields in (
        ({"expression": "avg(gpu.x) > hot", "receiver_ids": 1}, {"expression", "receiver_ids"}),
        ({"expression": body["expression"], "comparison": "<"}, {"comparison"}),
        ({"is_enabled": "perhaps"}, {"measurement", "field", "is_enabled"}),
    ):
        answer = bob.call("POST", "/api/v1/rules", {"name": "x", **wrong})
        assert answer.status_code == 422
        assert answer.json is not None
        assert set(answer.json["errors"]) == fields


def test_the_description_names_every_operation(nobody: Browser) -> None:
    described = nobody.get("/api/v1/openapi.json").json
    assert described is not None
    routes = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(route))
        for route in nobody.client.application.url_map.iter_rules()
        if str(route).startswith("/api/v1/")
        # Their reference is that of Prometheus and InfluxDB.
        and not str(route).startswith(("/api/v1/prometheus/", "/api/v1/influxdb/"))
    }
    schemas = {"/api/v1/job.schema.json", "/api/v1/dashboard.schema.json"}
    documents = {"/api/v1/openapi.json", "/api/v1/operator-openapi.json", "/api/v1/docs", *schemas}
    assert set(described["paths"]) == (routes | set(STREAMS)) - documents
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                assert operation["summary"], (method, path)


def test_the_api_docs_load_nothing_from_other_hosts(alice: Browser) -> None:
    text = alice.get("/api/v1/docs").text
    sources = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert sources
    assert all(source.startswith("/") for source in sources)


def test_health_is_public(nobody: Browser) -> None:
    assert nobody.get("/health").json == {"name": "vedette", "status": "pass"}
