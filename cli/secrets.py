"""`vedette secrets`: the key by which secrets are encrypted in the database, and its change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from sqlalchemy import select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from alerting.models import Receiver
from alerting.sealing import seal_plain_secrets
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.secretbox import KEY_FILE, SecretBox, new_key
from core.settings import ServerSettings, load_server_settings
from tenants.audit import record
from tenants.models import CertificateAuthority, User

# Every column that holds something encrypted, with what people call it.
ENCRYPTED: dict[str, tuple[type[Any], InstrumentedAttribute[Any]]] = {
    "webhook signing keys": (Receiver, Receiver.secret),
    "second factors": (User, User.totp_secret),
    "keys of the certificate authority": (CertificateAuthority, CertificateAuthority.private_key),
}


@click.group()
def secrets() -> None:
    """Change the key that encrypts secrets in this server's database."""


@secrets.command("new-key")
def new_key_command() -> None:
    """Make a new key: the first step of a change of keys.

    A key that is kept in the data folder is put in place at once; one for the setting
    `encryption_keys` is printed, to be put first there.
    """
    settings = load_server_settings()
    if settings.encryption_keys:
        click.echo(new_key())
        click.echo("Put it first in encryption_keys and leave the old ones after it.", err=True)
    else:
        SecretBox.of(settings)
        path = settings.data_dir / KEY_FILE
        _write_keys(path, [new_key(), *path.read_text(encoding="utf-8").split()])
        click.echo(f"{path} has a new key, before the old ones.", err=True)
    click.echo("Start every server again, and then run: vedette secrets rotate", err=True)


@secrets.command()
@click.option(
    "--drop-old-keys", is_flag=True, help="Remove the old ones then, from the data folder."
)
def rotate(*, drop_old_keys: bool) -> None:
    """Encrypt all secrets anew with the first key, in one transaction."""
    settings = load_server_settings()
    box = SecretBox.of(settings)
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        counts = rotate_secrets(session, box, tell=click.echo)
        record(
            session, action="secrets.rotated", target_kind="secrets", target_id=None,
            target_name="encryption key", tenant_id=None, after=counts, now=utc_now(),
        )  # fmt: skip
    click.echo("Done. " + ("" if drop_old_keys else "The old keys may go now."))
    if drop_old_keys:
        _drop_old_keys(settings)


def rotate_secrets(
    session: Session, box: SecretBox, *, tell: Callable[[str], object]
) -> dict[str, int]:
    """Encrypt everything anew with the box's first key; return how many of each there are.

    Raises:
        UnavailableError: one was encrypted with a key that is gone; nothing is changed then.
    """
    seal_plain_secrets(session, box)
    counts = {}
    for what, (model, column) in ENCRYPTED.items():
        filled = select(model.id, column).where(column.is_not(None), column != "")
        rows = session.execute(filled.order_by(model.id).with_for_update()).all()
        for ident, stored in rows:
            values = {column.key: box.rotate(stored)}
            session.execute(update(model).where(model.id == ident).values(values))
        counts[what] = len(rows)
        tell(f"{what}: {len(rows)} encrypted anew")
    return counts


def _drop_old_keys(settings: ServerSettings) -> None:
    if settings.encryption_keys:
        click.echo("Remove the old ones from encryption_keys yourself.", err=True)
        return
    path = settings.data_dir / KEY_FILE
    _write_keys(path, path.read_text(encoding="utf-8").split()[:1])
    click.echo(f"{path} holds the new key alone.", err=True)


def _write_keys(path: Path, keys: list[str]) -> None:
    """Replace the file as a whole: a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
    new.replace(path)
