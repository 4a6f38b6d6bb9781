"""Commands for the server's database refuse to make a new one where there is none."""

from pathlib import Path

import pytest

from tests.fixtures.in_process import run_vedette

PASSWORD = ("--password", "correct horse battery")
COMMANDS = (
    ("tenant", "list"),
    ("tenant", "add", "Acme"),
    ("tenant", "add-user", "a@example.com", "--role", "operator", *PASSWORD),
    ("tenant", "password-link", "a@example.com"),
    ("tenant", "suspend", "acme"),
    ("tenant", "remove", "acme", "--name", "Acme"),
    ("ca", "show"),
    ("ca", "crl"),
    ("ca", "rotate"),
    ("ca", "server-certificate", "portal.example"),
    ("secrets", "new-key"),
    ("secrets", "rotate"),
    ("audit", "verify"),
    ("audit", "export", "log.csv"),
    ("db", "check"),
    ("db", "recompute-usage"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_nothing_is_made_in_a_folder_without_a_server(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run_vedette(*arguments)

    assert result.returncode == 1
    assert f"There is no database of Vedette at {tmp_path}/var/vedette.db" in result.stderr
    assert "vedette server init" in result.stderr
    assert "VEDETTE_DATA_DIR" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    url = f"sqlite:///{tmp_path}/empty.db"

    result = run_vedette("tenant", "add", "Acme", environ={"DATABASE_URL": url})

    assert result.returncode == 1
    assert f"There is no database of Vedette at {url}" in result.stderr


@pytest.mark.usefixtures("real_migrations")
def test_an_upgrade_creates_the_database(tmp_path: Path) -> None:
    environ = {"VEDETTE_DATA_DIR": str(tmp_path / "server")}

    assert run_vedette("db", "upgrade", environ=environ).returncode == 0
    assert run_vedette("tenant", "add", "Acme", environ=environ).returncode == 0
    assert "acme" in run_vedette("tenant", "list", environ=environ).stdout
