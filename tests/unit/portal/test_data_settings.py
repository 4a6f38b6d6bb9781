"""Data settings of a tenant on its page and by REST."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from datasets.models import DataConnection
from tenants.models import AuditEntry, Tenant
from tests.cast import Cast
from tests.unit.portal.conftest import Browser

DEFAULTS = {
    "results_connection_id": None,
    "results_retention_days": None,
    "allows_peers": False,
}


@pytest.fixture
def path(cast: Cast) -> str:
    return f"/api/v1/tenants/{cast.acme.id}/data-settings"


def add_connection(
    sessions: SessionFactory, tenant: Tenant, *, url: str = "s3://results", name: str = "bucket"
) -> str:
    with sessions.begin() as session:
        row = DataConnection(
            tenant_id=tenant.id, name=name, url=url, created_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        session.add(row)
        session.flush()
        return row.id


def test_an_admin_sets_them_by_rest_and_the_audit_log_has_it(
    alice: Browser, path: str, cast: Cast, sessions: SessionFactory
) -> None:
    ident = add_connection(sessions, cast.acme)
    wanted = {"results_connection_id": ident, "results_retention_days": 90, "allows_peers": True}

    assert alice.get(path).json == DEFAULTS
    assert alice.call("PUT", path, json=wanted).json == wanted
    assert alice.call("PATCH", path, json={"allows_peers": False}).json == {
        **wanted,
        "allows_peers": False,
    }
    with sessions() as session:
        kind = AuditEntry.target_kind == "data_settings"
        actions = session.scalars(select(AuditEntry.action).where(kind).order_by(AuditEntry.number))
        assert list(actions) == ["data_settings.changed", "data_settings.changed"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("results_retention_days", 0),
        ("results_retention_days", 4000),
        ("results_connection_id", "missing"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_field(
    alice: Browser, path: str, field: str, value: object
) -> None:
    answer = alice.call("PATCH", path, json={field: value})
    assert answer.status_code == 422
    assert answer.json is not None
    assert list(answer.json["errors"]) == [field]


def test_results_go_to_no_other_tenants_bucket_and_to_no_web_server(
    alice: Browser, path: str, cast: Cast, sessions: SessionFactory
) -> None:
    foreign = add_connection(sessions, cast.globex)
    web = add_connection(sessions, cast.acme, url="https://data.example", name="web")
    for ident in (foreign, web):
        answer = alice.call("PATCH", path, json={"results_connection_id": ident})
        assert answer.status_code == 422, answer.text
        assert "s3://results" not in answer.text
    page = alice.get("/datasets/settings").text
    assert foreign not in page
    assert web not in page


def test_a_member_sees_them_but_does_not_set_them(bob: Browser, path: str) -> None:
    assert bob.get(path).json == DEFAULTS
    assert bob.call("PATCH", path, json={"allows_peers": True}).status_code == 403
    assert bob.get("/datasets/settings").status_code == 403


def test_the_page_sets_them(
    alice: Browser, path: str, cast: Cast, sessions: SessionFactory
) -> None:
    ident = add_connection(sessions, cast.acme)
    form = {"allows_peers": "y", "results_connection_id": ident, "results_retention_days": "30"}

    assert alice.post("/datasets/settings", form).status_code == 302
    assert alice.get(path).json == {
        "results_connection_id": ident,
        "results_retention_days": 30,
        "allows_peers": True,
    }
    assert 'value="30"' in alice.get("/datasets/settings").text
    refused = alice.post("/datasets/settings", form | {"results_retention_days": "0"})
    assert refused.status_code == 422
