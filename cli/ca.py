"""`vedette ca`: the certificate authority (CA) that signs the certificates of agents.

These commands work on this server's database: run them with the server's settings.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from sqlalchemy.orm import Session

from cli.database import open_session, require_database
from cli.local_time import local_minutes
from core.atomic_files import replace_file
from core.background import repeated
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.errors import DatabaseUnavailableError
from core.secretbox import SecretBox
from core.settings import ServerSettings, load_server_settings
from tenants.models import CertificateAuthority
from tenants.pki.authority import (
    authorities_pem,
    new_key,
    rotate_authority,
    server_authority,
    signing_authority,
    trusted_authorities,
)
from tenants.pki.signing import revocation_lists_pem, sign_server

log = logging.getLogger(__name__)

AUTHORITIES_NAME = "agents-ca.pem"
AUTHORITIES_SECONDS = 60.0
CERTIFICATE_NAME, KEY_NAME = "server.pem", "server.key"
# The longest lifetime that browsers accept.
MAX_DAYS = 397
_MAX_LISTED = 10
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

output_option = click.option(
    "--output", type=click.Path(path_type=Path), help="Write to this file. Defaults to stdout."
)


@click.group()
def ca() -> None:
    """Show and rotate the CA that signs agent certificates."""


@ca.command()
@output_option
def show(output: Path | None) -> None:
    """Print the CA certificates that a reverse proxy must trust (PEM).

    Lines that start with # are comments. Creates the CA if there is none.
    """
    settings, now = load_server_settings(), utc_now()
    with open_session(settings) as session:
        signing = signing_authority(session, SecretBox.of(settings), now=now)
        trusted = trusted_authorities(session, now=now)
        text = "".join(
            _described(authority, is_signing=authority.id == signing.id) for authority in trusted
        )
    _output(text, output)


@ca.command()
@output_option
def crl(output: Path | None) -> None:
    """Print the certificate revocation lists (PEM), valid for a week.

    The portal checks its own database instead. This is for other programs that verify agents.
    """
    settings, now = load_server_settings(), utc_now()
    with open_session(settings) as session:
        box = SecretBox.of(settings)
        signing_authority(session, box, now=now)
        text = revocation_lists_pem(session, box, now=now)
    _output(text, output)


@ca.command()
@click.option(
    "--overlap-hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="Hours until the new CA signs. Configure it on reverse proxies in this time.",
)
def rotate(overlap_hours: float) -> None:
    """Create a new CA. The old one stays trusted until it expires."""
    settings = load_server_settings()
    overlap = timedelta(hours=overlap_hours)
    with open_session(settings) as session:
        made = rotate_authority(session, SecretBox.of(settings), overlap=overlap, now=utc_now())
        if settings.tls_certificate_file is not None:
            write_authorities(session, settings)
    click.echo(f"The new CA signs from {local_minutes(made.not_before)}.")
    click.echo("Before then, configure reverse proxies with the output of `vedette ca show`.")


@ca.command("server-certificate")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    default=MAX_DAYS,
    show_default=True,
    help="Lifetime of the certificate.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Directory. Defaults to the data directory."
)
@click.option(
    "--newest", "is_newest", is_flag=True, help="By the newest CA, whatever agents know of it."
)
def server_certificate(
    names: tuple[str, ...], *, days: int, output: Path | None, is_newest: bool
) -> None:
    """Create a server certificate for the portal, signed by its own CA.

    NAMES are the host names and IP addresses of the portal; localhost is always added. Use it
    where no public CA signs. Agents learn the CA when they enroll; browsers warn until you add
    it to their trust store. Run the command again before the certificate expires: a running
    server loads the new one by itself.

    After a rotation of the CA, the old one signs until all agents know the new one.
    """
    settings = load_server_settings()
    folder = output or settings.data_dir
    lagging = write_server_certificate(
        settings, names, days=days, folder=folder, is_newest=is_newest
    )
    certificate_path, key_path = folder / CERTIFICATE_NAME, folder / KEY_NAME
    click.echo(f"Wrote {certificate_path} and {key_path}, valid for {days} days.")
    if lagging:
        _print_lagging(lagging, is_newest=is_newest)
    if settings.tls_certificate_file is None:
        host = f"[{names[0]}]" if ":" in names[0] else names[0]
        click.echo(
            "Set these for the server:\n"
            f"  VEDETTE_TLS_CERTIFICATE_FILE={certificate_path.resolve()}\n"
            f"  VEDETTE_TLS_KEY_FILE={key_path.resolve()}\n"
            f"  VEDETTE_PUBLIC_URL=https://{host}:{settings.port}"
        )


def write_server_certificate(
    settings: ServerSettings,
    names: Sequence[str],
    *,
    days: int = MAX_DAYS,
    folder: Path,
    is_newest: bool = False,
) -> list[str]:
    """Write a certificate of the portal's CA, with its chain, and its key to a folder.

    Returns the names of the appliances that don't know the newest CA yet.
    """
    require_database(settings)
    box, key, now = SecretBox.of(settings), new_key(), utc_now()
    with open_session(settings) as session:
        authority, lagging = server_authority(session, box, now=now)
        if is_newest:
            authority = signing_authority(session, box, now=now)
        all_names = tuple(dict.fromkeys((*names, *LOCAL_NAMES)))
        signed = sign_server(
            authority, box, key.public_key(), all_names, lifetime=timedelta(days=days), now=now
        )
        pem = signed.public_bytes(serialization.Encoding.PEM).decode() + authority.certificate
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    replace_file(folder / KEY_NAME, secret)
    replace_file(folder / CERTIFICATE_NAME, pem.encode())
    return lagging


def _print_lagging(names: list[str], *, is_newest: bool) -> None:
    listed = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    if is_newest:
        text = (
            f"{len(names)} appliances do not know the new CA and can't connect until they are "
            f"enrolled again: {listed}."
        )
    else:
        text = (
            f"{len(names)} appliances do not know the new CA yet, so the old one has signed: "
            f"{listed}. They learn of it with their next certificate; run the command again then."
        )
    click.echo(text)


def write_authorities(session: Session, settings: ServerSettings) -> Path:
    """Write the CA certificates that the server trusts when it terminates TLS; return the file."""
    path, now = settings.data_dir / AUTHORITIES_NAME, utc_now()
    signing_authority(session, SecretBox.of(settings), now=now)
    content = authorities_pem(session, now=now).encode()
    if not path.exists() or path.read_bytes() != content:
        replace_file(path, content)
    return path


@contextmanager
def authorities_written(sessions: SessionFactory, settings: ServerSettings) -> Iterator[None]:
    """Follow rotations, which may be made on another host, during the block."""

    def write() -> None:
        try:
            with transaction(sessions) as session:
                write_authorities(session, settings)
        except DatabaseUnavailableError:
            log.debug("%s was not compared with the database", AUTHORITIES_NAME)
        except Exception:
            log.exception("%s was not written", AUTHORITIES_NAME)

    if settings.tls_certificate_file is None:
        yield
        return
    with repeated(write, every_seconds=AUTHORITIES_SECONDS, name="authorities"):
        yield


def _described(authority: CertificateAuthority, *, is_signing: bool) -> str:
    certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":")
    if is_signing:
        status = "signing"
    elif authority.retired_at is not None:
        status = "retired"
    else:
        status = f"signs from {local_minutes(authority.not_before)}"
    return (
        f"# {certificate.subject.rfc4514_string()}: {status}, trusted until "
        f"{authority.not_after:%Y-%m-%d}\n# SHA-256 {fingerprint}\n{authority.certificate}"
    )


def _output(text: str, path: Path | None) -> None:
    if path is None:
        click.echo(text, nl=False)
        return
    path.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {path}.", err=True)
