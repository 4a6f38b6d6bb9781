"""`vedette tenant password-link` on a server's own database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.database import open_database
from cli.tenant import tenant
from core.clock import utc_now
from core.db import SessionFactory
from core.errors import InvalidInputError
from core.settings import ServerSettings, secret_key
from tenants.users.resets import Purpose, find_reset, read_link
from tests.fixtures.migrated import copy_migrated

EMAIL = "olivia@vedette.example"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    monkeypatch.setenv("VEDETTE_DATA_DIR", str(tmp_path))
    copy_migrated(tmp_path / "vedette.db")
    monkeypatch.setenv("VEDETTE_PUBLIC_URL", "https://portal.example")
    return ServerSettings(data_dir=tmp_path)


@pytest.fixture
def sessions(settings: ServerSettings) -> Iterator[SessionFactory]:
    with open_database(settings) as (_engine, sessions):
        yield sessions


def run(*arguments: str) -> str:
    return CliRunner().invoke(tenant, list(arguments), catch_exceptions=False).output


def test_the_link_is_one_that_the_portal_takes(
    settings: ServerSettings, sessions: SessionFactory
) -> None:
    run("add-user", EMAIL, "--role", "operator", "--password", "staple battery horse")
    address, _, token = run("password-link", EMAIL).strip().rpartition("/")
    assert address == "https://portal.example/password/reset"
    secret = read_link(Purpose.PASSWORD, token, key=secret_key(settings))
    with sessions() as session:
        assert find_reset(session, secret, now=utc_now()).email == EMAIL


@pytest.mark.usefixtures("sessions")
def test_an_address_that_nobody_has_is_named() -> None:
    with pytest.raises(InvalidInputError, match="nobody@vedette"):
        run("password-link", "nobody@vedette.example")
