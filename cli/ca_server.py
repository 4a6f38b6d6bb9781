"""`vedette ca server-certificate`: a certificate for the portal itself, of its own authority.

For installations that no public authority signs for. Agents are told of the authority by the
command that enrols them; browsers warn until somebody has them trust it.
"""

import os
from datetime import timedelta
from pathlib import Path

import click
from cryptography.hazmat.primitives import serialization

from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.secretbox import SecretBox
from core.settings import ServerSettings, load_server_settings
from tenants.entry.authority import signing_authority
from tenants.entry.signing import sign_server
from tenants.entry.x509_parts import new_key

CERTIFICATE_NAME, KEY_NAME = "server.pem", "server.key"
# The most that browsers take.
MAX_DAYS = 397
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")


@click.command("server-certificate")
@click.argument("names", nargs=-1, required=True)
@click.option("--days", type=click.IntRange(1, MAX_DAYS), default=MAX_DAYS, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="A folder; the data folder.")
def server_certificate(names: tuple[str, ...], *, days: int, output: Path | None) -> None:
    """Make a certificate for the portal, by which it is reached under NAMES.

    Names and addresses; this host's own are always added. Run it again before the certificate
    ends: a running server takes the new one up by itself.
    """
    settings = load_server_settings()
    folder = output or settings.data_dir
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        box, key, now = SecretBox.of(settings), new_key(), utc_now()
        authority = signing_authority(session, box, now=now)
        every_name = tuple(dict.fromkeys((*names, *ALWAYS_NAMED)))
        signed = sign_server(
            authority, box, key.public_key(), every_name, lifetime=timedelta(days=days), now=now
        )
        pem = signed.public_bytes(serialization.Encoding.PEM).decode() + authority.certificate
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / KEY_NAME, secret.decode(), mode=0o600)
    _write(folder / CERTIFICATE_NAME, pem, mode=0o644)
    click.echo(f"Wrote {folder / CERTIFICATE_NAME} and {folder / KEY_NAME}, good for {days} days.")
    if settings.tls_certificate_file is None:
        click.echo(_advice(settings, folder, names[0]))


def _write(path: Path, text: str, *, mode: int) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def _advice(settings: ServerSettings, folder: Path, name: str) -> str:
    host = f"[{name}]" if ":" in name else name
    return (
        "Have the server use them:\n"
        f"  VEDETTE_TLS_CERTIFICATE_FILE={(folder / CERTIFICATE_NAME).resolve()}\n"
        f"  VEDETTE_TLS_KEY_FILE={(folder / KEY_NAME).resolve()}\n"
        f"  VEDETTE_PUBLIC_URL=https://{host}:{settings.port}"
    )
