"""`vedette login` against a real portal: password, second factor, and the token that is kept."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyotp
import pytest
from click.testing import CliRunner, Result
from werkzeug.serving import make_server

from cli.client import PortalClient, load_credentials
from cli.login import login
from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings
from portal.app import create_portal
from tenants.people.second_factor import begin_setup, confirm_setup
from tests.cast import PASSWORD, Cast, FrozenClock
from timeseries.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path / "data")


@pytest.fixture
def url(
    settings: ServerSettings, sessions: SessionFactory, store: Store, clock: FrozenClock
) -> Iterator[str]:
    app = create_portal(settings, sessions=sessions, store=store, clock=clock)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


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
    client = PortalClient(load_credentials())
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
    client = PortalClient(load_credentials())
    tokens = client.get("/tokens", sort="created_at")["items"]
    client.close()
    assert [token["revoked_at"] is None for token in tokens] == [False, True]
    assert load_credentials().token != older.token


def test_the_code_is_asked_for_where_there_is_a_second_factor(
    url: str, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    result = run(url, cast, typed=f"{totp.at(clock.now)}\n")
    assert "Code of your authenticator app" in result.output
    assert result.exit_code == 0, result.output
    assert who_am_i() == cast.bob.email


def test_a_code_given_as_an_option_is_not_asked_for(
    url: str, cast: Cast, totp: pyotp.TOTP, clock: FrozenClock
) -> None:
    result = run(url, cast, "--code", totp.at(clock.now))
    assert result.exit_code == 0, result.output
    assert "Code of your authenticator app" not in result.output


def test_a_wrong_code_keeps_no_token(url: str, cast: Cast, totp: pyotp.TOTP) -> None:
    assert totp
    result = run(url, cast, "--code", "000000")
    assert result.exit_code != 0
    assert "wrong or was used already" in str(result.exception)
