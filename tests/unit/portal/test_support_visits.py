"""A support visit shows what a user sees, changes nothing, and is told in both logs."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from core.db import SessionFactory
from tenants.models import PLATFORM_CHAIN, AuditEntry, LoginSession, Membership, Tenant, TenantState
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import World

BANNER = 'class="alert alert-warning vd-support"'
REASON = "Ticket 4711: bob's jobs stay queued"


@pytest.fixture
def visiting(olivia: Browser, cast: Cast) -> Browser:
    """Olivia's browser, looking at acme as bob."""
    answer = olivia.post(f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support", {"reason": REASON})
    assert answer.status_code == 302
    return olivia


def entries(sessions: SessionFactory, action: str) -> list[AuditEntry]:
    with sessions() as session:
        statement = select(AuditEntry).filter_by(action=action).order_by(AuditEntry.chain)
        return list(session.scalars(statement))


def test_the_operators_page_of_a_tenant_offers_support_sessions(
    olivia: Browser, cast: Cast
) -> None:
    path = f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support"
    assert path in olivia.get(f"/tenants/{cast.acme.id}").text
    assert "30 minutes" in olivia.get(path).text


def test_a_support_session_shows_the_users_pages_with_a_banner(
    visiting: Browser, cast: Cast
) -> None:
    for path in ("/jobs", "/appliances", "/rules"):
        page = visiting.get(path).text
        assert BANNER in page
        assert cast.bob.email in page
        assert "bob&#39;s jobs stay queued" in page
    assert visiting.get("/api/v1/me").json["email"] == cast.bob.email  # type: ignore[index] # JSON


def test_both_audit_logs_have_the_reason(
    visiting: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    del visiting
    started = entries(sessions, "support_session.started")
    assert {entry.chain for entry in started} == {cast.acme.id, PLATFORM_CHAIN}
    for entry in started:
        assert (entry.reason, entry.actor_name) == (REASON, cast.olivia.email)
        assert entry.target_name == cast.bob.email


def test_a_support_session_has_no_operator_rights(visiting: Browser) -> None:
    for path in ("/tenants", "/api/v1/tenants?page=1", "/audit"):
        answer = visiting.get(path)
        assert answer.status_code in {200, 403, 404}, path
        assert "Globex" not in answer.text, path
    assert visiting.get("/audit").status_code == 403


def test_nothing_can_be_changed(visiting: Browser, world: World) -> None:
    token = visiting.csrf_token("/jobs")
    headers = {"X-CSRFToken": token}
    for method, path in (
        ("POST", f"/api/v1/jobs/{world.ids['job_id']}/stop"),
        ("DELETE", f"/api/v1/rules/{world.ids['rule_id']}"),
        ("POST", "/receivers"),
        ("POST", f"/jobs/{world.ids['job_id']}/stop"),
    ):
        answer = visiting.client.open(path, method=method, headers=headers, json={})
        assert answer.status_code == 403, path
        assert "read-only" in answer.text, path


def test_the_users_personal_settings_are_not_shown(visiting: Browser) -> None:
    pages = ("settings", "settings/second-factor")
    for path in (*pages, "api/v1/tokens", "api/v1/sessions", "api/v1/me/second-factor"):
        assert visiting.get(f"/{path}").status_code == 403, path


def test_dashboards_are_shown(visiting: Browser) -> None:
    assert BANNER in visiting.get("/dashboards/").text
    answer = visiting.client.post(
        "/dashboards/_dash-update-component",
        json={},
        headers={"X-CSRFToken": visiting.csrf_token("/jobs")},
    )
    assert "only looks" not in answer.text


def test_ending_it_restores_the_operators_rights_and_is_logged(
    visiting: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    token = visiting.csrf_token("/jobs")
    answer = visiting.client.post("/support/end", data={"csrf_token": token})
    assert answer.headers["Location"].endswith(f"/tenants/{cast.acme.id}")
    assert BANNER not in visiting.get("/tenants").text
    ended = entries(sessions, "support_session.ended")
    assert {entry.chain for entry in ended} == {cast.acme.id, PLATFORM_CHAIN}
    assert {entry.actor_name for entry in ended} == {cast.olivia.email}


def test_it_expires_after_half_an_hour(visiting: Browser, clock: FrozenClock) -> None:
    clock.advance(timedelta(minutes=30).total_seconds())
    page = visiting.get("/tenants").text
    assert "Globex" in page
    assert BANNER not in page


def test_it_ends_when_the_user_moves_to_another_tenant(
    visiting: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        membership = session.scalars(select(Membership).filter_by(user_id=cast.bob.id)).one()
        session.add(
            Membership(
                user_id=cast.bob.id,
                tenant_id=cast.globex.id,
                role=membership.role,
                created_at=clock.now,
            )
        )
        membership.is_active = False
    assert BANNER not in visiting.get("/tenants").text


def test_it_ends_when_the_operator_loses_the_role(
    visiting: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        session.merge(cast.olivia).is_operator = False
    assert visiting.get("/jobs").status_code == 302


@pytest.mark.parametrize("reason", ["", "   help    ", "x" * 501])
def test_a_support_session_requires_a_reason(
    olivia: Browser, sessions: SessionFactory, cast: Cast, reason: str
) -> None:
    path = f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support"
    assert olivia.post(path, {"reason": reason}).status_code == 422
    with sessions() as session:
        assert set(session.scalars(select(LoginSession.support_session_id))) == {None}


def test_no_support_session_starts_as_a_user_of_another_or_a_suspended_tenant(
    olivia: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    foreign = f"/tenants/{cast.globex.id}/users/{cast.bob.id}/support"
    assert olivia.post(foreign, {"reason": REASON}).status_code == 404
    with sessions.begin() as session:
        session.get_one(Tenant, cast.acme.id).state = TenantState.SUSPENDED
    own = f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support"
    assert olivia.post(own, {"reason": REASON}).status_code == 409


def test_a_tenant_admin_starts_no_support_session(alice: Browser, cast: Cast) -> None:
    path = f"/tenants/{cast.acme.id}/users/{cast.bob.id}/support"
    assert alice.get(path).status_code == 403
    assert alice.post(path, {"reason": REASON}).status_code == 403


def test_signing_out_in_a_support_session_signs_the_operator_out(
    visiting: Browser, sessions: SessionFactory, cast: Cast
) -> None:
    token = visiting.csrf_token("/jobs")
    visiting.client.post("/logout", data={"csrf_token": token})
    (entry,) = entries(sessions, "session.ended")
    assert (entry.target_name, entry.chain) == (cast.olivia.email, PLATFORM_CHAIN)
