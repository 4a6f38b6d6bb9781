"""Sign-up: a confirmed email address becomes a tenant with its admin, and reveals nothing."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from core.db import SessionFactory
from core.settings import ServerSettings
from marketplace.models import Account
from marketplace.sign_ups import service
from marketplace.sign_ups.models import SignUp
from marketplace.states import AccountState
from tenants.models import AuditEntry, Role, Tenant, User
from tests.cast import Cast, FrozenClock
from tests.e2e.inboxes import MailServer
from tests.fixtures.shared_portal import Serve
from tests.unit.portal.conftest import Browser, usual_settings
from tests.unit.portal.letters import link_in, text_of, wait_for_letters, without_tokens

pytestmark = pytest.mark.usefixtures("cast", "mail")
DORA = "dora@initech.example"
FORM = {
    "organization": "Initech",
    "name": "Dora",
    "password": "staple battery horse",
    "repeated": "staple battery horse",
}


def ask(browser: Browser, email: str) -> str:
    text = browser.post("/market/sign-up", {"email": email}).text
    wait_for_letters()
    return without_tokens(text.replace(email, "ADDRESS"))


def link(browser: Browser, mail: MailServer, email: str = DORA) -> str:
    ask(browser, email)
    return link_in(text_of(mail.messages[-1]))


def tenants(sessions: SessionFactory) -> list[str]:
    with sessions() as session:
        return list(session.scalars(select(Tenant.slug).order_by(Tenant.slug)))


def test_the_link_of_the_email_creates_a_tenant_and_signs_in(
    *,
    nobody: Browser,
    olivia: Browser,
    mail: MailServer,
    sessions: SessionFactory,
) -> None:
    path = link(nobody, mail)
    assert mail.messages[-1]["To"] == DORA
    assert tenants(sessions) == ["acme", "globex"]
    assert DORA in nobody.get(path).text
    answer = nobody.post(path, FORM)
    assert answer.headers["Location"] == "/rent"
    page = nobody.get("/rent").text
    assert "Admission requested" in page
    with sessions() as session:
        user = session.scalars(select(User).where(User.email == DORA)).one()
        account = session.get_one(Account, user.memberships[0].tenant_id)
        assert user.memberships[0].role is Role.ADMIN
        assert account.customer_state is AccountState.REQUESTED
        assert (account.public_name, account.billing_email) == ("Initech", DORA)
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "user.created")).all()
        assert (entry[-1].actor_name, entry[-1].via) == (DORA, "sign-up")
    assert "Initech" in olivia.get("/console/market").text


def test_the_link_works_once(nobody: Browser, mail: MailServer) -> None:
    path = link(nobody, mail)
    nobody.post(path, FORM)
    nobody.post("/logout")
    answer = nobody.get(path)
    assert answer.status_code == 404
    assert "Sign up again" in answer.text


def test_the_link_expires_and_must_be_complete(
    nobody: Browser, mail: MailServer, clock: FrozenClock
) -> None:
    path = link(nobody, mail)
    assert nobody.get(path[:-3]).status_code == 404
    clock.advance(service.LIFETIME.total_seconds())
    assert nobody.post(path, FORM).status_code == 404


def test_a_link_of_another_purpose_is_refused(nobody: Browser, mail: MailServer) -> None:
    path = link(nobody, mail)
    token = path.rpartition("/")[2]
    assert nobody.get(f"/invitation/{token}").status_code == 404
    assert nobody.get(f"/password/reset/{token}").status_code == 404


def test_the_answer_is_the_same_whether_the_address_has_an_account_or_not(
    nobody: Browser, cast: Cast, mail: MailServer, sessions: SessionFactory
) -> None:
    assert len({ask(nobody, email) for email in (cast.bob.email, DORA)}) == 1
    subjects = [message["Subject"] for message in mail.messages]
    assert subjects == ["You already have a Vedette account", "Confirm your email address"]
    assert "/market/sign-up/" not in text_of(mail.messages[0])
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(SignUp)) == 2


def test_requests_are_limited_by_address(nobody: Browser, mail: MailServer) -> None:
    texts = [ask(nobody, DORA) for _ in range(6)]
    assert "Too many requests" in texts[-1]
    assert len(mail.messages) == 5


def test_while_many_ask_a_network_has_few_requests_and_another_one_its_own(
    nobody: Browser, mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CROWDED_PER_HOUR", 2)
    texts = [ask(nobody, f"dora{number}@initech.example") for number in range(8)]
    # Five of them after the first two, which were not many.
    assert ["Too many requests" in text for text in texts] == [False] * 7 + [True]
    nobody.client.environ_base["REMOTE_ADDR"] = "192.0.2.7"
    assert "Too many requests" not in ask(nobody, "dora8@initech.example")
    assert len(mail.messages) == 8


def test_all_sign_ups_of_an_hour_are_limited(
    *,
    nobody: Browser,
    mail: MailServer,
    sessions: SessionFactory,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MAX_PER_HOUR", 2)
    for number in range(3):
        ask(nobody, f"dora{number}@initech.example")
    assert len(mail.messages) == 2
    clock.advance(3600)
    ask(nobody, DORA)
    assert len(mail.messages) == 3
    clock.advance(timedelta(hours=25).total_seconds())
    ask(nobody, "late@initech.example")
    with sessions() as session:
        assert session.scalars(select(SignUp.email)).all() == ["late@initech.example"]


@pytest.mark.parametrize("email", ["", "dora", "dora@", "a@b@c"])
def test_what_is_no_address_is_refused(nobody: Browser, mail: MailServer, email: str) -> None:
    answer = nobody.post("/market/sign-up", {"email": email})
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.text
    assert mail.messages == []


@pytest.mark.parametrize(
    "changes",
    [
        {"organization": ""},
        {"name": " "},
        {"password": "short", "repeated": "short"},
        {"repeated": "x"},
    ],
)
def test_a_wrong_form_leaves_the_link_valid(
    nobody: Browser, mail: MailServer, changes: dict[str, str]
) -> None:
    path = link(nobody, mail)
    assert nobody.post(path, {**FORM, **changes}).status_code == 422
    assert nobody.post(path, FORM).status_code == 302


def test_equal_names_get_different_slugs(
    nobody: Browser, mail: MailServer, sessions: SessionFactory
) -> None:
    nobody.post(link(nobody, mail), {**FORM, "organization": "Acme"})
    nobody.post("/logout")
    nobody.post(link(nobody, mail, "eve@x.example"), {**FORM, "organization": "中"})
    slugs = tenants(sessions)
    assert len(slugs) == 4
    assert sum(slug.startswith("acme-") for slug in slugs) == 1
    assert sum(slug.startswith("tenant-") for slug in slugs) == 1


def test_an_address_that_has_an_account_by_now_signs_in_instead(
    nobody: Browser, mail: MailServer, sessions: SessionFactory
) -> None:
    first = link(nobody, mail)
    second = link(nobody, mail)
    nobody.post(first, FORM)
    nobody.post("/logout")
    answer = nobody.post(second, {**FORM, "organization": "Other"})
    assert answer.status_code == 409
    assert "has an account" in answer.text
    assert "other" not in tenants(sessions)


class TestAdmittedAtOnce:
    """Where the operator admits customers by a setting, and has terms of use."""

    @pytest.fixture
    def settings(self, tmp_path: Path, mail: MailServer) -> ServerSettings:
        return replace(
            usual_settings(tmp_path),
            smtp_url=mail.url,
            marketplace_admits_customers=True,
            marketplace_terms_url="https://portal.example/terms",
        )

    def test_a_customer_accepts_the_terms_and_rents_at_once(
        self, nobody: Browser, mail: MailServer
    ) -> None:
        path = link(nobody, mail)
        answer = nobody.post(path, FORM)
        assert answer.status_code == 422
        assert "Accept the terms of use" in answer.text
        nobody.post(path, {**FORM, "accepts_terms": "y"})
        assert "Admission requested" not in nobody.get("/rent").text


class TestWithoutMail:
    """Where no mail server is configured, or sign-up is off."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServerSettings:
        return usual_settings(tmp_path)

    def test_the_page_says_so(self, nobody: Browser) -> None:
        assert "can't send email" in nobody.get("/market/sign-up").text
        nobody.post("/market/sign-up", {"email": DORA})

    def test_without_the_setting_there_is_no_sign_up(self, tmp_path: Path, serve: Serve) -> None:
        closed = replace(usual_settings(tmp_path), marketplace_sign_up=False)
        browser = Browser(serve(closed).test_client())
        assert browser.get("/market/sign-up").status_code == 404
        assert 'href="/market/sign-up"' not in browser.get("/market").text
