"""Invitations by email: sent, sent again, revoked and accepted in the browser."""

import re

import pytest

from core.db import SessionFactory
from tenants.models import User
from tests.cast import PASSWORD, Cast, FrozenClock
from tests.e2e.inboxes import MailServer
from tests.unit.portal.conftest import Browser
from tests.unit.portal.letters import link_in, text_of, without_tokens

pytestmark = pytest.mark.usefixtures("mail")
DORA = "dora@example.com"
NEW_PASSWORD = "staple battery horse"


def invite(browser: Browser, email: str = DORA, role: str = "member", page: str = "/users") -> int:
    return browser.post(page, {"email": email, "role": role}).status_code


def link_of(mail: MailServer) -> str:
    return link_in(text_of(mail.messages[-1]))


def accept(browser: Browser, path: str, **changes: str) -> int:
    form = {"name": "Dora", "password": NEW_PASSWORD, "repeated": NEW_PASSWORD, **changes}
    form["csrf_token"] = browser.csrf_token(path)
    return browser.client.post(path, data=form).status_code


def join(browser: Browser, path: str, password: str | None = None) -> int:
    form = {"csrf_token": browser.csrf_token(path)}
    if password is not None:
        form["known_password"] = password
    return browser.client.post(f"{path}/join", data=form).status_code


def test_olivia_invites_the_first_admin_of_a_tenant_who_comes(
    olivia: Browser, nobody: Browser, mail: MailServer
) -> None:
    page = olivia.post("/tenants", {"name": "Initech", "slug": ""}).headers["Location"]
    assert invite(olivia, role="admin", page=page) == 302
    assert DORA in olivia.get(page).text
    assert mail.messages[-1]["Subject"] == "Invitation to Initech"
    assert accept(nobody, link_of(mail)) == 302
    assert "Initech" in nobody.get("/users").text


def test_olivia_invites_an_operator(olivia: Browser, nobody: Browser, mail: MailServer) -> None:
    assert invite(olivia, role="operator") == 302
    assert accept(nobody, link_of(mail)) == 302
    assert nobody.get("/tenants").status_code == 200


@pytest.mark.usefixtures("cast")
def test_alice_invites_no_operator(alice: Browser) -> None:
    assert invite(alice, role="operator") == 422


def test_a_known_person_joins_by_their_password(
    alice: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    invite(alice, cast.charlie.email)
    assert join(nobody, link_of(mail), "wrong") == 401
    assert join(nobody, link_of(mail), PASSWORD) == 302
    assert cast.acme.name in nobody.get("/jobs").text


def test_a_signed_in_user_joins_and_switches_to_the_new_tenant(
    alice: Browser, charlie: Browser, cast: Cast, mail: MailServer
) -> None:
    invite(alice, cast.charlie.email)
    assert "Join as Charlie" in charlie.get(link_of(mail)).text
    assert join(charlie, link_of(mail)) == 302
    me = charlie.get("/api/v1/me").json
    assert me is not None
    assert (me["tenant_id"], me["role"]) == (cast.acme.id, "member")


def test_somebody_else_who_is_signed_in_does_not_join(
    alice: Browser, charlie: Browser, mail: MailServer
) -> None:
    invite(alice)
    assert "Sign out" in charlie.get(link_of(mail)).text
    assert join(charlie, link_of(mail)) == 403


def test_a_former_member_without_a_tenant_comes_back_by_their_password(
    alice: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    alice.post(f"/users/{cast.bob.id}/remove")
    assert nobody.sign_in(cast.bob.email).status_code == 401
    invite(alice, cast.bob.email)
    assert join(nobody, link_of(mail), PASSWORD) == 302
    assert nobody.get("/jobs").status_code == 200


def test_the_page_of_a_link_does_not_reveal_whether_an_account_exists(
    alice: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    seen = set()
    for email in (cast.charlie.email, DORA):
        invite(alice, email)
        path = link_of(mail)
        text = nobody.get(path).text.replace(email, "EMAIL").replace(path, "PATH")
        seen.add(without_tokens(text))
    assert len(seen) == 1


def test_a_link_makes_no_second_account_for_an_address(
    alice: Browser, nobody: Browser, cast: Cast, mail: MailServer, sessions: SessionFactory
) -> None:
    invite(alice, cast.charlie.email)
    assert accept(nobody, link_of(mail)) == 409
    with sessions() as session:
        assert session.get_one(User, cast.charlie.id).password_hash == cast.charlie.password_hash
    assert join(nobody, link_of(mail), PASSWORD) == 302


@pytest.mark.usefixtures("cast")
def test_bad_fields_are_said_and_the_link_stays_good(
    alice: Browser, nobody: Browser, mail: MailServer
) -> None:
    invite(alice)
    for bad in ({"password": "short", "repeated": "short"}, {"repeated": "x"}, {"name": ""}):
        assert accept(nobody, link_of(mail), **bad) == 422
    assert accept(nobody, link_of(mail)) == 302


@pytest.mark.usefixtures("cast")
def test_a_link_works_once(alice: Browser, nobody: Browser, mail: MailServer) -> None:
    invite(alice)
    accept(nobody, link_of(mail))
    answer = nobody.get(link_of(mail))
    assert answer.status_code == 404
    assert "no longer valid" in answer.text


@pytest.mark.usefixtures("cast")
def test_sending_again_makes_a_new_link(
    alice: Browser, nobody: Browser, mail: MailServer, clock: FrozenClock
) -> None:
    invite(alice)
    first = link_of(mail)
    clock.advance(8 * 24 * 3600)
    alice.sign_in("alice@acme.example")
    assert "expired" in alice.get("/users").text
    (action,) = re.findall(r'action="(/invitations/[^"]+/resend)"', alice.get("/users").text)
    alice.post(action)
    assert nobody.get(first).status_code == 404
    assert nobody.get(link_of(mail)).status_code == 200


@pytest.mark.usefixtures("cast")
def test_a_revoked_link_works_no_more(alice: Browser, nobody: Browser, mail: MailServer) -> None:
    invite(alice)
    (action,) = re.findall(r'action="(/invitations/[^"]+/revoke)"', alice.get("/users").text)
    alice.post(action)
    assert nobody.get(link_of(mail)).status_code == 404
    assert 'class="vd-empty"' in alice.get("/invitations").text


def test_a_member_and_somebody_invited_are_named_beside_the_field(
    alice: Browser, cast: Cast
) -> None:
    assert invite(alice, cast.bob.email) == 409
    assert invite(alice) == 302
    answer = alice.post("/users", {"email": DORA, "role": "viewer"})
    assert "invited" in answer.text


@pytest.mark.usefixtures("cast")
def test_bob_invites_nobody(bob: Browser) -> None:
    assert invite(bob) == 403
    assert bob.get("/invitations").status_code == 403
