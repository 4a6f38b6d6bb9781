"""Quotas of what users make: jobs that wait, rules, receivers, schedules and dashboards."""

from collections.abc import Callable
from typing import Any

import pytest

from core.db import SessionFactory
from tenants import quotas
from tenants.quotas import Limits, set_limits
from tests.cast import Cast, scope_of
from tests.unit.portal.conftest import Browser

JOB = {"name": "train", "image": "acme/train:1"}
RULE = {
    "measurement": "gpu",
    "field": "temperature_celsius",
    "aggregate": "avg",
    "critical_threshold": 85,
}
PANEL = {"title": "Power", "chart": "band", "measurement": "gpu", "fields": ["power_watts"]}
Body = Callable[[int], dict[str, Any]]
KINDS: dict[str, tuple[str, Body]] = {
    "waiting_jobs": ("/jobs", lambda _: JOB),
    "rules": ("/rules", lambda n: {**RULE, "name": f"rule {n}"}),
    "receivers": (
        "/receivers",
        lambda n: {"name": f"mail {n}", "kind": "email", "target": "ops@acme.example"},
    ),
    "schedules": (
        "/job-schedules",
        lambda n: {"name": f"nightly {n}", "schedule": "0 3 * * *", "job": JOB},
    ),
    "dashboards": ("/dashboards", lambda n: {"name": f"board {n}", "panels": [PANEL]}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add(browser: Browser, kind: str, number: int) -> tuple[int, str]:
    """Return the status of the answer, and its code if it is an error."""
    path, body = KINDS[kind]
    answer = browser.call("POST", f"/api/v1{path}", body(number))
    assert answer.json is not None
    assert answer.status_code in {201, 409}, answer.json
    return answer.status_code, str(answer.json.get("code", ""))


def test_the_operator_limits_what_a_tenant_has(
    alice: Browser, sessions: SessionFactory, cast: Cast, kind: str
) -> None:
    with sessions.begin() as session:
        limits: dict[str, int] = {f"max_{kind}": 1}
        set_limits(session, scope_of(cast.olivia), cast.acme.id, Limits(**limits))
    assert add(alice, kind, 1) == (201, "")
    assert add(alice, kind, 2) == (409, "quota_reached")


def test_a_default_applies_and_leaves_what_is_there(
    alice: Browser, charlie: Browser, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert add(alice, kind, 1) == (201, "")
    assert add(alice, kind, 2) == (201, "")
    monkeypatch.setitem(quotas.DEFAULTS, kind, 1)
    assert add(alice, kind, 3) == (409, "quota_reached")
    path, _ = KINDS[kind]
    answer = alice.get(f"/api/v1{path}")
    assert answer.json is not None
    assert len(answer.json["items"]) >= 2
    assert add(charlie, kind, 1) == (201, "")


def test_a_file_of_rules_above_the_quota_is_refused_as_a_whole(
    alice: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(quotas.DEFAULTS, "rules", 2)
    rules = [
        {"name": f"rule {n}", "expression": f"avg(gpu.power_watts) over 5m > {n}"} for n in range(3)
    ]
    assert alice.call("POST", "/api/v1/rules/apply", {"rules": rules}).status_code == 409
    answer = alice.get("/api/v1/rules")
    assert answer.json is not None
    assert answer.json["total"] == 0


def test_every_task_of_an_array_counts(alice: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(quotas.DEFAULTS, "waiting_jobs", 5)
    refused = alice.call("POST", "/api/v1/jobs", {**JOB, "array": "0-5"})
    assert refused.status_code == 409
    assert alice.call("POST", "/api/v1/jobs", {**JOB, "array": "0-4"}).status_code == 201


def test_pages_show_use_and_defaults(alice: Browser, olivia: Browser, cast: Cast) -> None:
    add(alice, "rules", 1)
    usage = alice.get("/usage").text
    form = olivia.get(f"/tenants/{cast.acme.id}/quotas").text
    for name in ("Waiting jobs", "Rules", "Receivers", "Schedules", "Dashboards"):
        assert name in usage
        assert name in form
    assert "default: 10,000" in form
