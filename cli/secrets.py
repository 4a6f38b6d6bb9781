"""`vedette secrets`: rotate the key that encrypts secrets in the database."""

from collections.abc import Callable
from pathlib import Path

import click
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from cli.database import open_session
from cli.keys import ENCRYPTED
from cli.privileges import acting_as_owner
from core.atomic_files import replace_file
from core.clock import utc_now
from core.secretbox import KEY_FILE, SecretBox, new_key
from core.settings import load_server_settings
from tenants.auditing.recording import record


@click.group()
def secrets() -> None:
    """Rotate the key that encrypts secrets in this server's database."""


@secrets.command("new-key")
def new_key_command() -> None:
    """Create a new key: the first step of a key rotation.

    A key file in the data directory is updated in place. If the setting `encryption_keys` is used,
    the new key is printed.
    """
    settings = load_server_settings()
    if settings.encryption_keys:
        click.echo(new_key())
        click.echo("Put it first in encryption_keys, before the old keys.", err=True)
    else:
        with open_session(settings):
            SecretBox.of(settings)
        path = settings.data_dir / KEY_FILE
        _write_keys(path, [new_key(), *path.read_text(encoding="utf-8").split()])
        click.echo(f"Added a new key to {path}, before the old keys.", err=True)
    click.echo("Restart all servers, then run: vedette secrets rotate", err=True)


@secrets.command()
@click.option("--drop-old-keys", is_flag=True, help="Then remove old keys from the data directory.")
def rotate(*, drop_old_keys: bool) -> None:
    """Re-encrypt all secrets with the first key, in one transaction."""
    settings = load_server_settings()
    with open_session(settings) as session:
        counts = rotate_secrets(session, SecretBox.of(settings), report=click.echo)
        record(
            session,
            action="secrets.rotated",
            target_name="encryption key",
            tenant_id=None,
            after=counts,
            now=utc_now(),
        )
    path = settings.data_dir / KEY_FILE
    if not drop_old_keys:
        click.echo("Done. You can remove the old keys now.")
    elif settings.encryption_keys:
        click.echo("Done. Remove the old keys from the setting encryption_keys yourself.")
    else:
        _write_keys(path, path.read_text(encoding="utf-8").split()[:1])
        click.echo(f"Done. Removed the old keys from {path}.")


def rotate_secrets(
    session: Session, box: SecretBox, *, report: Callable[[str], object]
) -> dict[str, int]:
    """Re-encrypt all secrets with the box's first key; return the number of each kind.

    Raises:
        UnavailableError: a secret's key is missing; nothing is changed.
    """
    counts = {}
    for kind, (model, column) in ENCRYPTED.items():
        filled = select(model.id, column).where(column.is_not(None), column != "")
        rows = session.execute(filled.order_by(model.id).with_for_update()).all()
        for ident, stored in rows:
            values = {column.key: box.rotate(stored)}
            session.execute(update(model).where(model.id == ident).values(values))
        counts[kind] = len(rows)
        report(f"{kind}: {len(rows)} re-encrypted")
    return counts


def _write_keys(path: Path, keys: list[str]) -> None:
    with acting_as_owner(path.parent):
        replace_file(path, "".join(f"{key}\n" for key in keys).encode())
