"""Members, by page and by REST: roles, lock-out, removal; and who looks at which tenant."""

import pytest

from core.db import SessionFactory
from tenants.models import Membership, Role
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser, SignIn


@pytest.fixture
def bob_of_both(
    cast: Cast, sessions: SessionFactory, clock: FrozenClock, sign_in: SignIn
) -> Browser:
    with sessions.begin() as session:
        session.add(
            Membership(
                user_id=cast.bob.id,
                tenant_id=cast.globex.id,
                role=Role.ADMIN,
                created_at=clock.advance(1),
            )
        )
    return sign_in(cast.bob)


def me(browser: Browser) -> tuple[str | None, str]:
    me = browser.get("/api/v1/me").json
    assert me is not None
    return me["tenant_id"], me["role"]


def test_alice_changes_bobs_role(alice: Browser, bob: Browser, cast: Cast) -> None:
    page = f"/users/{cast.bob.id}"
    assert 'value="member" selected' in _spaceless(alice.get(page).text)
    alice.post(f"{page}/role", {"role": "viewer", "next": page})
    assert me(bob) == (cast.acme.id, "viewer")


def test_a_role_that_there_is_not_is_refused(alice: Browser, cast: Cast) -> None:
    assert alice.post(f"/users/{cast.bob.id}/role", {"role": "operator"}).status_code == 422


def test_the_last_admin_is_not_demoted_by_the_operator(olivia: Browser, cast: Cast) -> None:
    olivia.post(f"/users/{cast.alice.id}/role", {"role": "viewer", "tenant_id": cast.acme.id})
    page = olivia.get(f"/users/{cast.alice.id}?tenant_id={cast.acme.id}").text
    assert "is the last admin of Acme" in page


def test_a_removed_member_loses_access_immediately(
    alice: Browser, bob: Browser, cast: Cast
) -> None:
    alice.post(f"/users/{cast.bob.id}/remove")
    assert bob.get("/jobs").status_code == 302
    assert cast.bob.email not in alice.get("/api/v1/users").text


def test_alice_does_not_remove_herself(alice: Browser, cast: Cast) -> None:
    alice.post(f"/users/{cast.alice.id}/remove")
    assert alice.get("/users").status_code == 200


def test_bob_sees_himself_alone(bob: Browser, cast: Cast) -> None:
    assert bob.get(f"/users/{cast.bob.id}").status_code == 200
    assert bob.get(f"/users/{cast.alice.id}").status_code == 403


def test_roles_are_changed_and_members_removed_by_rest(alice: Browser, cast: Cast) -> None:
    path = f"/api/v1/users/{cast.bob.id}"
    changed = alice.call("PATCH", path, {"role": "admin"})
    assert changed.json is not None
    assert changed.json["role"] == "admin"
    assert alice.call("DELETE", path).status_code == 204
    assert alice.get(path).status_code == 404


def test_rest_keeps_the_last_admin(olivia: Browser, cast: Cast) -> None:
    path = f"/api/v1/users/{cast.alice.id}"
    for answer in (
        olivia.call("PATCH", path, {"role": "member", "tenant_id": cast.acme.id}),
        olivia.call("DELETE", f"{path}?tenant_id={cast.acme.id}"),
        olivia.call("POST", f"{path}/deactivate"),
    ):
        assert answer.status_code == 409
        assert answer.json is not None
        assert answer.json["code"] == "last_admin"


def test_only_the_operator_adds_a_user_with_a_password(
    alice: Browser, olivia: Browser, cast: Cast
) -> None:
    body = {"email": "dora@example.com", "name": "Dora", "password": "staple battery"}
    assert alice.call("POST", "/api/v1/users", body).status_code == 403
    made = olivia.call("POST", "/api/v1/users", {**body, "tenant_id": cast.acme.id})
    assert made.status_code == 201


def test_an_admin_learns_of_no_account_elsewhere(alice: Browser, cast: Cast) -> None:
    answers = set()
    for email in (cast.charlie.email, "nobody@globex.example"):
        body = {"email": email, "name": "X", "password": "staple battery"}
        added = alice.call("POST", "/api/v1/users", body)
        invited = alice.call("POST", "/api/v1/invitations", {"email": email})
        assert invited.json is not None
        answers.add((added.status_code, added.text, invited.status_code, *sorted(invited.json)))
    assert len(answers) == 1


def test_bob_switches_between_his_tenants(bob_of_both: Browser, cast: Cast) -> None:
    assert me(bob_of_both) == (cast.acme.id, "member")
    assert f'value="{cast.globex.id}"' in bob_of_both.get("/jobs").text
    bob_of_both.post("/switch-tenant", {"tenant_id": cast.globex.id})
    assert me(bob_of_both) == (cast.globex.id, "admin")
    bob_of_both.post("/switch-tenant", {"tenant_id": cast.acme.id})
    assert me(bob_of_both) == (cast.acme.id, "member")


def test_each_browser_shows_the_tenant_that_it_switched_to(
    bob_of_both: Browser, sign_in: SignIn, cast: Cast
) -> None:
    other = sign_in(cast.bob)
    bob_of_both.post("/switch-tenant", {"tenant_id": cast.globex.id})
    assert me(other) == (cast.acme.id, "member")


def test_a_user_with_one_tenant_is_offered_no_other(bob: Browser, cast: Cast) -> None:
    assert "/switch-tenant" not in bob.get("/jobs").text
    assert bob.post("/switch-tenant", {"tenant_id": cast.globex.id}).status_code == 404
    assert bob.post("/switch-tenant", {"tenant_id": ""}).status_code == 404


def test_an_operator_who_is_a_member_switches_to_the_tenant_and_back(
    olivia: Browser, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        session.add(
            Membership(
                user_id=cast.olivia.id,
                tenant_id=cast.acme.id,
                role=Role.VIEWER,
                created_at=clock.now,
            )
        )
    assert me(olivia) == (None, "operator")
    olivia.post("/switch-tenant", {"tenant_id": cast.acme.id})
    assert me(olivia) == (cast.acme.id, "viewer")
    assert "All tenants" in olivia.get("/jobs").text
    olivia.post("/switch-tenant", {"tenant_id": ""})
    assert me(olivia) == (None, "operator")


def _spaceless(text: str) -> str:
    return text.replace('selected value="member"', 'value="member" selected')
