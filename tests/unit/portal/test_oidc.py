"""Sign-in through a real identity provider, and its failures."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from core.clock import utc_now
from core.db import SessionFactory
from core.errors import ConfigurationError
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.models import AuditEntry, OIDCIdentity, Role, User
from tests.cast import Cast, FrozenClock
from tests.fixtures.oidc_provider import CLIENT_ID, CLIENT_SECRET, ProviderProcess, oidc_provider
from tests.unit.portal.conftest import Browser
from timeseries.store import Store

START = "/login/oidc"
CALLBACK = "http://portal.example/login/oidc/callback"
DANA = "dana-1"

Go = Callable[..., TestResponse]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderProcess]:
    with oidc_provider(tmp_path_factory.mktemp("oidc"), token_seconds=60) as running:
        yield running


@pytest.fixture
def clock() -> FrozenClock:
    """The provider's clock is the real one."""
    return FrozenClock(utc_now())


@pytest.fixture
def settings(tmp_path: Path, provider: ProviderProcess) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path,
        public_url="http://portal.example",
        oidc_issuer=provider.issuer,
        oidc_client_id=CLIENT_ID,
        oidc_client_secret=CLIENT_SECRET,
        oidc_roles="gpu-users=acme:member,gpu-admins=acme:admin,ops=operator",
        oidc_label="Acme single sign-on",
    )


@pytest.fixture(autouse=True)
def dana(provider: ProviderProcess, cast: Cast) -> None:
    """Dana, whom only the provider knows, is one of acme's GPU users."""
    assert cast
    put(provider)


def put(provider: ProviderProcess, **changes: object) -> None:
    claims: dict[str, object] = {
        "email": "dana@acme.example",
        "email_verified": True,
        "name": "Dana",
        "groups": ["gpu-users"],
    }
    provider.put_user(DANA, **(claims | changes))


@pytest.fixture
def go(nobody: Browser, provider: ProviderProcess) -> Go:
    """Take a browser from the login page to the provider and back."""

    def through(subject: str = DANA, *, query: str = "") -> TestResponse:
        away = nobody.get(f"{START}{query}").headers["Location"]
        return nobody.get(back(provider.sign_in(away, subject)))

    return through


def back(location: str) -> str:
    """Return the callback's path and query, as the browser opens it."""
    assert location.startswith(f"{CALLBACK}?")
    return location.removeprefix("http://portal.example")


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def changed(path: str, **changes: str) -> str:
    return f"{urlsplit(path).path}?{urlencode(query_of(path) | changes)}"


def is_in(browser: Browser) -> bool:
    return browser.get("/jobs").status_code == 200


def test_the_login_page_has_the_button(nobody: Browser) -> None:
    text = nobody.get("/login?next=/jobs").text
    assert "Acme single sign-on" in text
    assert 'href="/login/oidc?next=/jobs"' in text


def test_a_first_sign_in_creates_the_user_and_continues_at_the_target(
    go: Go, nobody: Browser, sessions: SessionFactory
) -> None:
    answer = go(query="?next=/jobs?state%3Drunning")
    assert answer.headers["Location"] == "/jobs?state=running"
    me = nobody.get("/api/v1/me").json
    assert me is not None
    assert (me["email"], me["name"], me["role"]) == ("dana@acme.example", "Dana", "member")
    with sessions() as session:
        assert session.scalars(select(OIDCIdentity.subject)).all() == [DANA]


def test_wrong_passwords_of_others_do_not_block_the_provider_and_the_browser_is_known_then(
    app: Flask, go: Go, nobody: Browser
) -> None:
    other = Browser(app.test_client())
    for number in range(50):
        assert other.sign_in(f"{number}@acme.example", "wrong").status_code == 401
    assert go().status_code == 302
    assert nobody.client.get_cookie("vedette-device") is not None


def test_a_second_sign_in_finds_the_same_user(
    go: Go, nobody: Browser, sessions: SessionFactory
) -> None:
    for _ in range(2):
        assert go().status_code == 302
    with sessions() as session:
        users = session.scalars(select(User).where(User.email == "dana@acme.example")).all()
    assert len(users) == 1
    assert is_in(nobody)


def test_the_authorization_request_has_state_nonce_and_pkce(nobody: Browser) -> None:
    asked = query_of(nobody.get(START).headers["Location"])
    assert asked["response_type"] == "code"
    assert asked["redirect_uri"] == CALLBACK
    assert asked["scope"] == "openid email profile"
    assert asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    asked_later = query_of(nobody.get(START).headers["Location"])
    assert all(asked[name] != asked_later[name] for name in ("state", "nonce", "code_challenge"))


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example"])
def test_the_sign_in_never_continues_outside_the_portal(go: Go, target: str) -> None:
    assert go(query=f"?{urlencode({'next': target})}").headers["Location"] == "/"


def test_an_account_that_has_the_verified_address_is_linked(
    go: Go, nobody: Browser, provider: ProviderProcess, cast: Cast
) -> None:
    put(provider, email="bob@acme.example", groups=[])
    go()
    me = nobody.get("/api/v1/me").json
    assert me is not None
    assert me["id"] == cast.bob.id


def test_a_wrong_state_is_refused(nobody: Browser, provider: ProviderProcess) -> None:
    path = back(provider.sign_in(nobody.get(START).headers["Location"], DANA))
    answer = nobody.get(changed(path, state="x" * 48))
    assert answer.status_code == 401
    assert "another browser" in answer.text
    assert not is_in(nobody)


def test_a_callback_of_another_browser_is_refused(
    app: Flask, nobody: Browser, provider: ProviderProcess
) -> None:
    """Charlie can't sign Bob's browser in as Charlie by a link."""
    other = Browser(app.test_client())
    path = back(provider.sign_in(other.get(START).headers["Location"], DANA))
    assert nobody.get(path).status_code == 401
    nobody.get(START)
    assert nobody.get(path).status_code == 401
    assert not is_in(nobody)


def test_a_code_of_another_sign_in_is_refused(
    app: Flask, nobody: Browser, provider: ProviderProcess
) -> None:
    """A stolen code put into the thief's own sign-in fails: nonce and PKCE are the owner's."""
    owner = Browser(app.test_client())
    stolen = query_of(provider.sign_in(owner.get(START).headers["Location"], DANA))["code"]
    path = back(provider.sign_in(nobody.get(START).headers["Location"], "eve"))
    answer = nobody.get(changed(path, code=stolen))
    assert answer.status_code == 401
    assert "invalid" in answer.text
    assert not is_in(nobody)


def test_a_callback_works_once(nobody: Browser, provider: ProviderProcess) -> None:
    path = back(provider.sign_in(nobody.get(START).headers["Location"], DANA))
    assert nobody.get(path).status_code == 302
    assert nobody.get(path).status_code == 401


def test_an_expired_id_token_is_refused(
    nobody: Browser, provider: ProviderProcess, clock: FrozenClock
) -> None:
    path = back(provider.sign_in(nobody.get(START).headers["Location"], DANA))
    clock.advance(5 * 60)
    answer = nobody.get(path)
    assert answer.status_code == 401
    assert "expired" in answer.text
    assert not is_in(nobody)


def test_a_callback_after_the_timeout_is_refused(
    nobody: Browser, provider: ProviderProcess, clock: FrozenClock
) -> None:
    path = back(provider.sign_in(nobody.get(START).headers["Location"], DANA))
    clock.advance(timedelta(minutes=10).total_seconds())
    answer = nobody.get(path)
    assert answer.status_code == 401
    assert "timed out" in answer.text


def test_an_unverified_address_is_refused_and_creates_no_user(
    go: Go, nobody: Browser, provider: ProviderProcess, sessions: SessionFactory
) -> None:
    for claims in ({"email_verified": False}, {"email_verified": "false"}, {"email": ""}):
        put(provider, **claims)
        answer = go()
        assert answer.status_code == 401
        assert "not verified your email address" in answer.text
    assert not is_in(nobody)
    with sessions() as session:
        assert session.scalars(select(OIDCIdentity)).all() == []


def test_a_trusted_provider_may_omit_email_verified(
    settings: ServerSettings,
    provider: ProviderProcess,
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
) -> None:
    put(provider, email_verified=None)
    trusting = replace(settings, oidc_trust_email=True)
    app = create_portal(trusting, sessions=sessions, store=store, clock=clock)
    browser = Browser(app.test_client())
    browser.get(back(provider.sign_in(browser.get(START).headers["Location"], DANA)))
    assert is_in(browser)


def test_a_user_without_a_mapped_group_is_refused_with_the_reason(
    go: Go, nobody: Browser, provider: ProviderProcess
) -> None:
    put(provider, groups=["chess"])
    answer = go()
    assert answer.status_code == 401
    assert "none of your groups grants one" in answer.text
    assert 'href="/login/oidc"' in answer.text
    assert not is_in(nobody)


def test_removing_a_group_removes_membership_and_sessions(
    app: Flask, go: Go, nobody: Browser, provider: ProviderProcess
) -> None:
    go()
    assert is_in(nobody)
    put(provider, groups=[])
    other = Browser(app.test_client())
    answer = other.get(back(provider.sign_in(other.get(START).headers["Location"], DANA)))
    assert answer.status_code == 401
    assert "belongs to no tenant" in answer.text
    assert not is_in(other)
    assert not is_in(nobody)


def test_groups_set_the_role_at_each_sign_in(
    go: Go, nobody: Browser, provider: ProviderProcess
) -> None:
    for groups, role in ((["gpu-admins"], Role.ADMIN), (["gpu-users"], Role.MEMBER)):
        put(provider, groups=groups)
        go()
        me = nobody.get("/api/v1/me").json
        assert me is not None
        assert me["role"] == role


def test_a_group_makes_an_operator(go: Go, nobody: Browser, provider: ProviderProcess) -> None:
    put(provider, groups="ops")
    go()
    assert nobody.get("/tenants").status_code == 200


def test_a_denied_consent_does_not_sign_in(nobody: Browser, provider: ProviderProcess) -> None:
    asked = nobody.get(START).headers["Location"]
    # This provider leaves the state out of a refusal, which RFC 6749, 4.1.2.1, asks for.
    path = changed(
        back(provider.sign_in(asked, DANA, action="deny")), state=query_of(asked)["state"]
    )
    answer = nobody.get(path)
    assert answer.status_code == 401
    assert "denied access" in answer.text
    assert not is_in(nobody)


def test_error_text_in_the_callback_url_is_not_shown(nobody: Browser) -> None:
    state = query_of(nobody.get(START).headers["Location"])["state"]
    answer = nobody.get(
        f"/login/oidc/callback?state={state}&error=x&error_description=call+%2B1+900+SCAM"
    )
    assert answer.status_code == 401
    assert "SCAM" not in answer.text


def test_a_callback_of_another_issuer_is_refused(
    nobody: Browser, provider: ProviderProcess
) -> None:
    path = back(provider.sign_in(nobody.get(START).headers["Location"], DANA))
    answer = nobody.get(changed(path, iss="https://evil.example"))
    assert answer.status_code == 401
    assert "another identity provider" in answer.text


def test_the_sign_in_replaces_the_previous_session(
    go: Go, nobody: Browser, cast: Cast, provider: ProviderProcess
) -> None:
    assert provider
    nobody.sign_in(cast.alice.email)
    go()
    me = nobody.get("/api/v1/me").json
    assert me is not None
    assert me["email"] == "dana@acme.example"


def test_the_second_factor_is_required_too(
    go: Go, nobody: Browser, clock: FrozenClock, sessions: SessionFactory
) -> None:
    go()
    with sessions.begin() as session:
        dana = session.scalars(select(User).where(User.email == "dana@acme.example")).one()
        dana.totp_secret, dana.totp_confirmed_at = "encrypted", clock.now
    assert go().headers["Location"] == "/login/second-factor"
    assert not is_in(nobody)


def test_an_unavailable_provider_shows_an_error_page(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> None:
    nowhere = replace(settings, oidc_issuer="http://127.0.0.1:9")
    app = create_portal(nowhere, sessions=sessions, store=store, clock=clock)
    answer = app.test_client().get(START)
    assert answer.status_code == 503
    assert "does not respond" in answer.text
    assert 'href="/login"' in answer.text


def test_a_wrong_client_secret_shows_an_error_page(
    settings: ServerSettings,
    provider: ProviderProcess,
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
) -> None:
    wrong = replace(settings, oidc_client_secret="wrong")
    app = create_portal(wrong, sessions=sessions, store=store, clock=clock)
    browser = Browser(app.test_client())
    answer = browser.get(back(provider.sign_in(browser.get(START).headers["Location"], DANA)))
    assert answer.status_code == 401
    assert "invalid" in answer.text


def test_without_a_provider_there_is_no_button_and_no_route(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> None:
    alone = replace(settings, oidc_issuer="")
    client = create_portal(alone, sessions=sessions, store=store, clock=clock).test_client()
    assert "/login/oidc" not in client.get("/login").text
    for path in (START, "/login/oidc/callback"):
        assert client.get(path).status_code == 404


def test_all_settings_errors_are_reported_at_startup(
    settings: ServerSettings, sessions: SessionFactory, store: Store
) -> None:
    faulty = replace(
        settings,
        oidc_issuer="http://id.example",
        oidc_client_id="",
        oidc_scopes="email",
        oidc_roles="gpu-users",
    )
    with pytest.raises(ConfigurationError) as caught:
        create_portal(faulty, sessions=sessions, store=store)
    assert len(caught.value.problems) == 4


def test_the_audit_log_records_sign_ins_and_refusals(
    go: Go, provider: ProviderProcess, sessions: SessionFactory
) -> None:
    go()
    put(provider, groups=[])
    go()
    with sessions() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.at)).all()
    by_provider = [entry for entry in entries if entry.via == "identity provider"]
    assert {entry.actor_name for entry in by_provider} == {"dana@acme.example"}
    actions = [entry.action for entry in by_provider]
    assert {"user.created", "identity.linked", "membership.created"} <= set(actions)
    assert "membership.deleted" in actions
    assert actions[-1] == "session.failed"
    assert "belongs to no tenant" in by_provider[-1].reason
