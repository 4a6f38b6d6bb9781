"""`vedette audit` and `vedette secrets` on a server's own database."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, delete, select

from alerting.models import Receiver
from alerting.notification.receivers import signing_key
from alerting.states import ReceiverKind
from cli.audit import audit
from cli.database import open_database
from cli.keys import ENCRYPTED
from cli.secrets import secrets
from cli.tenant import tenant
from core.db import Base, SessionFactory
from core.secretbox import KEY_FILE, SecretBox
from core.settings import ServerSettings
from tenants.models import AuditEntry, Tenant, TenantState, User
from tests.cast import NOON
from tests.fixtures.migrated import copy_migrated

SIGNING_KEY = "vdw_a-signing-key-of-an-older-version"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    """A server whose data folder the commands find."""
    monkeypatch.setenv("VEDETTE_DATA_DIR", str(tmp_path))
    copy_migrated(tmp_path / "vedette.db")
    return ServerSettings(data_dir=tmp_path)


@pytest.fixture
def opened_database(settings: ServerSettings) -> Iterator[tuple[Engine, SessionFactory]]:
    with open_database(settings) as parts:
        yield parts


@pytest.fixture
def sessions(opened_database: tuple[Engine, SessionFactory]) -> SessionFactory:
    return opened_database[1]


def run(*arguments: str) -> Result:
    group = {"audit": audit, "secrets": secrets, "tenant": tenant}[arguments[0]]
    return CliRunner().invoke(group, list(arguments[1:]), catch_exceptions=False)


def test_changes_by_the_command_line_are_audited_and_verified(
    sessions: SessionFactory, tmp_path: Path
) -> None:
    assert run("tenant", "add", "Acme").exit_code == 0
    answer = run("audit", "verify")
    assert answer.exit_code == 0, answer.output
    assert "2 of 2 chains are intact" in answer.stderr
    with sessions() as session:
        (entry,) = session.scalars(select(AuditEntry).filter_by(chain="platform"))
    assert (entry.action, entry.actor_name) == ("tenant.created", "command line")
    assert f"platform 1 {entry.hash}" in answer.stdout.splitlines()
    heads = tmp_path / "kept"
    heads.write_text(answer.stdout)
    assert run("tenant", "add", "Globex").exit_code == 0
    assert run("audit", "verify", "--known", str(heads)).exit_code == 0
    with sessions.begin() as session:
        session.execute(delete(AuditEntry).filter_by(chain="platform", number=1))
    answer = run("audit", "verify", "--known", str(heads))
    assert answer.exit_code == 1
    assert "platform: Entry 1 is missing." in answer.stderr


def test_the_log_is_exported_newest_first_with_the_export_itself(
    sessions: SessionFactory, tmp_path: Path
) -> None:
    del sessions
    run("tenant", "add", "Acme")
    path = tmp_path / "audit.jsonl"
    assert run("audit", "export", str(path)).exit_code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["action"] == "audit.exported"
    assert {line["action"] for line in lines} == {"audit.exported", "tenant.created"}
    assert (
        run("audit", "export", str(path), "--format", "csv", "--chain", "platform").exit_code == 0
    )
    assert path.read_text().startswith("chain,number,at,")


def test_a_file_that_is_called_csv_is_csv(sessions: SessionFactory, tmp_path: Path) -> None:
    del sessions
    path = tmp_path / "audit.csv"
    assert run("audit", "export", str(path)).exit_code == 0
    assert path.read_text().startswith("chain,number,at,")
    assert run("audit", "export", str(path), "--format", "jsonl").exit_code == 0
    assert json.loads(path.read_text().splitlines()[0])["action"] == "audit.exported"


def add_receiver(sessions: SessionFactory, box: SecretBox) -> str:
    with sessions.begin() as session:
        acme = Tenant(slug="acme", name="Acme", state=TenantState.ACTIVE, created_at=NOON)
        session.add(acme)
        session.flush()
        receiver = Receiver(
            tenant_id=acme.id,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target="https://h",
            secret=box.encrypt(SIGNING_KEY),
            created_at=NOON,
        )
        session.add(receiver)
        session.flush()
        return receiver.id


def stored(sessions: SessionFactory, ident: str) -> Receiver:
    with sessions() as session:
        return session.get_one(Receiver, ident)


def test_keys_are_changed_by_new_key_and_rotate(
    settings: ServerSettings, sessions: SessionFactory
) -> None:
    old = SecretBox.of(settings)
    ident = add_receiver(sessions, old)
    first = stored(sessions, ident)
    assert SIGNING_KEY not in first.secret
    assert signing_key(first, old) == SIGNING_KEY

    assert run("secrets", "new-key").exit_code == 0
    path = settings.data_dir / KEY_FILE
    assert len(path.read_text().split()) == 2
    assert path.stat().st_mode & 0o077 == 0
    answer = run("secrets", "rotate", "--drop-old-keys")
    assert "webhook signing keys: 1 re-encrypted" in answer.output
    assert SIGNING_KEY not in answer.output
    assert len(path.read_text().split()) == 1

    second = stored(sessions, ident)
    assert second.secret != first.secret
    assert signing_key(second, SecretBox.of(settings)) == SIGNING_KEY
    with sessions() as session:
        entry = session.scalars(select(AuditEntry).filter_by(action="secrets.rotated")).one()
    assert entry.after is not None
    assert entry.after["webhook signing keys"] == 1


def test_a_key_that_is_missing_leaves_everything_as_it_was(
    settings: ServerSettings, sessions: SessionFactory
) -> None:
    ident = add_receiver(sessions, SecretBox.of(settings))
    with sessions.begin() as session:
        user = User(email="a@b.example", name="A", totp_secret="gAAAAAnonsense", created_at=NOON)
        session.add(user)
    before = stored(sessions, ident).secret
    answer = CliRunner().invoke(secrets, ["rotate"])
    assert answer.exit_code != 0
    assert "Add the old key" in str(answer.exception)
    assert stored(sessions, ident).secret == before


def test_every_column_that_holds_a_secret_is_rotated() -> None:
    held = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if any(word in column.name for word in ("secret", "private_key"))
        and not column.name.endswith(("hash", "names"))
    } | {"log_forwards.token"}
    rotated = {f"{column.class_.__tablename__}.{column.key}" for _, column in ENCRYPTED.values()}
    assert held == rotated
