"""`vedette login` against a real portal: password, second factor, and the token that is kept."""

from pathlib import Path

import pyotp
import pytest
from click.testing import CliRunner, Result

from cli.login import login
from cli.main import vedette
from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings
from tenants.users.second_factor import begin_setup, confirm_setup
from tests.cast import PASSWORD, Cast, FrozenClock
from vedette.client import Client
from vedette.credentials import load_credentials
from vedette.errors import PortalError


@pytest.fixture
def totp(
    sessions: SessionFactory, settings: ServerSettings, cast: Cast, clock: FrozenClock
) -> pyotp.TOTP:
    """Bob's authenticator app; its next code is one that was not used yet."""
    box = SecretBox.of(settings)
    with sessions.begin() as session:
        app = pyotp.TOTP(begin_setup(session, cast.bob.id, box=box).secret)
        confirm_setup(session, cast.bob.id, app.at(clock.now), box=box, now=clock.now)
    clock.advance(30)
    return app


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VEDETTE_URL", raising=False)
    monkeypatch.delenv("VEDETTE_TOKEN", raising=False)


def run(url: str, cast: Cast, *options: str, typed: str = "") -> Result:
    arguments = [url, "--email", cast.bob.email, "--password", PASSWORD, *options]
    return CliRunner().invoke(login, arguments, input=typed)


def who_am_i() -> str:
    client = Client()
    try:
        return str(client.get("/me")["email"])
    finally:
        client.close()


def test_email_and_password_are_enough_without_a_second_factor(url: str, cast: Cast) -> None:
    result = run(url, cast)
    assert result.exit_code == 0, result.output
    assert who_am_i() == cast.bob.email


def test_signing_in_again_takes_the_place_of_this_hosts_older_token(url: str, cast: Cast) -> None:
    run(url, cast)
    older = load_credentials()
    run(url, cast)
    client = Client()
    tokens = client.get("/tokens", sort="created_at")["items"]
    client.close()
    assert [token["revoked_at"] is None for token in tokens] == [False, True]
    assert load_credentials().token != older.token


def test_login_prompts_for_the_second_factor_code(
    url: str, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    result = run(url, cast, typed=f"{totp.at(clock.now)}\n")
    assert "authenticator app" in result.output
    assert result.exit_code == 0, result.output
    assert who_am_i() == cast.bob.email


def test_a_code_option_needs_no_prompt(
    url: str, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    result = run(url, cast, "--code", totp.at(clock.now))
    assert result.exit_code == 0, result.output
    assert "authenticator app" not in result.output


def test_a_wrong_code_stores_no_token(url: str, cast: Cast, totp: pyotp.TOTP) -> None:
    assert totp
    result = run(url, cast, "--code", "000000")
    assert result.exit_code != 0
    assert "wrong or was already used" in str(result.exception)


def test_whoami_names_the_user_and_logout_revokes_the_token(url: str, cast: Cast) -> None:
    run(url, cast)
    token = load_credentials().token
    shown = CliRunner().invoke(vedette, ["whoami"])
    assert shown.output == f"{cast.bob.email} (member) at {url}\n"

    assert "Signed out" in CliRunner().invoke(vedette, ["logout"]).output
    with Client(url, token) as client, pytest.raises(PortalError, match="revoked"):
        client.get("/me")
    assert "not signed in" in CliRunner().invoke(vedette, ["logout"]).output
    assert CliRunner().invoke(vedette, ["whoami"]).exit_code != 0
