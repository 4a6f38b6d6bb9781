"""`vedette agent enroll`: trade a one-time token for this appliance's identity."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from collector.certificates import portal_authority_files
from collector.config import load_agent_config
from collector.data_dir import Identity, load_identity
from collector.enrollment import enroll as enroll_appliance
from collector.enrollment import fetch_authority
from collector.errors import EnrollmentError
from collector.inventory import host_inventory
from collector.tls import TLSContexts, TLSFiles, tls_errors
from core.errors import ConfigurationError

DEFAULT_DATA_DIR = Path("/var/lib/vedette")
CONFIG_NAME = "agent.toml"
STANDARD_INPUT = "-"

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Directory of the identity, agent.toml and the sample buffer.",
)


@click.command()
@click.argument("portal_url")
@click.argument("token")
@click.option(
    "--name", default=socket.gethostname, help="Appliance name. Defaults to the host name."
)
@click.option("--ca-file", type=click.Path(path_type=Path), help="CA certificates to trust (PEM).")
@click.option("--ca-sha256", default="", help="SHA-256 fingerprint of the portal's own CA.")
@click.option(
    "--client-certificate", type=click.Path(path_type=Path), help="Client certificate (PEM)."
)
@click.option("--client-key", type=click.Path(path_type=Path), help="Private key of it (PEM).")
@click.option("--again", "is_repeated", is_flag=True, help="Replace the existing identity.")
@data_dir_option
def enroll(
    portal_url: str,
    token: str,
    *,
    name: str,
    ca_file: Path | None,
    ca_sha256: str,
    client_certificate: Path | None,
    client_key: Path | None,
    is_repeated: bool,
    data_dir: Path,
) -> None:
    """Enroll this appliance at PORTAL_URL with a one-time TOKEN.

    Pass "-" as TOKEN to read it from standard input, which keeps it out of the process list.
    Without TLS options, those of agent.toml apply. With --ca-sha256 (part of the command that the
    portal shows when it uses its own CA), the CA certificate is downloaded, compared with the
    fingerprint, and trusted from then on.
    """
    if not is_repeated and load_identity(data_dir) is not None:
        raise EnrollmentError(
            "This appliance is already enrolled. To replace its identity, add --again."
        )
    files = _tls_files(TLSFiles(ca_file, client_certificate, client_key), data_dir)
    secret = _read_token() if token == STANDARD_INPUT else token
    if ca_sha256:
        fetch_authority(portal_url, ca_sha256, data_dir=data_dir)
    identity = enroll_host(portal_url, secret, name=name, data_dir=data_dir, files=files)
    click.echo(f"Enrolled as {name} ({identity.appliance_id}).")
    click.echo(f"Start the agent with: vedette agent run --data-dir {data_dir}")


def enroll_host(
    portal_url: str, token: str, *, name: str, data_dir: Path, files: TLSFiles | None = None
) -> Identity:
    """Enroll this host, and write `agent.toml` if there is none."""
    identity = enroll_appliance(
        portal_url=portal_url,
        token=token,
        name=name,
        inventory=host_inventory(),
        data_dir=data_dir,
        tls=TLSContexts(
            replace(files or TLSFiles(), also_trusted=portal_authority_files(data_dir))
        ),
    )
    write_config(data_dir, portal_url, files=files)
    return identity


def write_config(
    data_dir: Path,
    portal_url: str,
    *,
    interval_seconds: float = 10.0,
    files: TLSFiles | None = None,
) -> None:
    """Write `agent.toml` if there is none."""
    path = data_dir / CONFIG_NAME
    if path.exists():
        return
    files = files or TLSFiles()
    settings = {
        "portal_urls": [portal_url],
        "data_dir": data_dir,
        "interval_seconds": interval_seconds,
        "flush_interval_seconds": min(5.0, interval_seconds),
        "ca_file": files.ca_file,
        "client_certificate_file": files.certificate_file,
        "client_key_file": files.key_file,
    }
    # JSON strings, numbers and arrays are valid TOML.
    encoder = msgspec.json.Encoder(enc_hook=lambda path: str(path.resolve()))
    lines = (
        f"{key} = {encoder.encode(value).decode()}\n"
        for key, value in settings.items()
        if value is not None
    )
    path.write_text("".join(lines), encoding="utf-8")


def _tls_files(files: TLSFiles, data_dir: Path) -> TLSFiles:
    """Return the files named on the command line, else those of the agent's configuration."""
    path = data_dir / CONFIG_NAME
    if not files.paths and path.exists():
        config = load_agent_config(path)
        return TLSFiles(config.ca_file, config.client_certificate_file, config.client_key_file)
    if faults := tls_errors(files):
        raise ConfigurationError(faults, source="The command line")
    return files


def _read_token() -> str:
    token = sys.stdin.readline().strip()
    if not token:
        raise EnrollmentError(
            "No token on standard input. Pipe the token in, or pass it instead of the -."
        )
    return token
