"""`vedette ca`: the authority that signs agents' certificates, as the proxy in front needs it.

These commands work on this server's database; run them where its settings are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from sqlalchemy.orm import Session

from cli.ca_server import server_certificate
from cli.database import open_database
from core.clock import utc_now
from core.db import transaction
from core.secretbox import SecretBox
from core.settings import ServerSettings, load_server_settings
from tenants.entry.authority import (
    authorities_pem,
    rotate_authority,
    signing_authority,
    trusted_authorities,
)
from tenants.entry.signing import revocation_lists_pem
from tenants.models import CertificateAuthority

AUTHORITIES_NAME = "agents-ca.pem"


@click.group()
def ca() -> None:
    """Show, rotate and use the authority that signs agents' certificates."""


@ca.command()
@click.option("--output", type=click.Path(path_type=Path), help="A file in place of the terminal.")
def show(output: Path | None) -> None:
    """Print the certificates that a proxy in front must trust (PEM).

    Lines that begin with # say what they are. The authority is made here where there is none yet.
    """
    with _opened() as (session, settings):
        box, now = SecretBox.of(settings), utc_now()
        signing = signing_authority(session, box, now=now)
        trusted = trusted_authorities(session, now=now)
        text = "".join(_described(one, is_signing=one.id == signing.id) for one in trusted)
    _put(text, output)


@ca.command()
@click.option("--output", type=click.Path(path_type=Path), help="A file in place of the terminal.")
def crl(output: Path | None) -> None:
    """Print the lists of revoked certificates (PEM), good for a week.

    The portal looks at its own records and needs none; this is for others who verify.
    """
    with _opened() as (session, settings):
        box, now = SecretBox.of(settings), utc_now()
        signing_authority(session, box, now=now)
        text = revocation_lists_pem(session, box, now=now)
    _put(text, output)


@ca.command()
@click.option(
    "--overlap-hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="How long until the new one signs: so long there is to tell the proxies of it.",
)
def rotate(overlap_hours: float) -> None:
    """Make a new authority. The old one stays trusted until it runs out."""
    with _opened() as (session, settings):
        box, now = SecretBox.of(settings), utc_now()
        overlap = timedelta(hours=overlap_hours)
        made = rotate_authority(session, box, overlap=overlap, now=now)
        if settings.tls_certificate_file is not None:
            write_authorities(session, settings)
    click.echo(f"A new authority signs from {made.not_before:%Y-%m-%d %H:%M} UTC.")
    click.echo("Before then, give every proxy in front what `vedette ca show` prints.")


ca.add_command(server_certificate)


def write_authorities(session: Session, settings: ServerSettings) -> Path:
    """Write whom the server itself trusts, where it ends TLS; return the file."""
    path, partial = settings.data_dir / AUTHORITIES_NAME, settings.data_dir / "agents-ca.partial"
    now = utc_now()
    signing_authority(session, SecretBox.of(settings), now=now)
    partial.write_text(authorities_pem(session, now=now), encoding="utf-8")
    partial.replace(path)
    return path


@contextmanager
def _opened() -> Iterator[tuple[Session, ServerSettings]]:
    settings = load_server_settings()
    with open_database(settings) as (_engine, sessions), transaction(sessions) as session:
        yield session, settings


def _described(authority: CertificateAuthority, *, is_signing: bool) -> str:
    certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":")
    when = "signs now" if is_signing else f"signs from {authority.not_before:%Y-%m-%d %H:%M} UTC"
    if authority.retired_at is not None and not is_signing:
        when = "signs no more"
    return (
        f"# {certificate.subject.rfc4514_string()}: {when}, trusted until "
        f"{authority.not_after:%Y-%m-%d}\n# SHA-256 {fingerprint}\n{authority.certificate}"
    )


def _put(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    click.echo(f"Wrote {output}.", err=True)
