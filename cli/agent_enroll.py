"""`vedette agent enroll`: trade a one-time token for this appliance's identity."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from cli.agent_options import CONFIG_NAME, data_dir_option
from collector.authority_lookup import learn_authority
from collector.certificates.portal_authority import trusted_files
from collector.config import load_agent_config
from collector.configuring.tls_files import TLSFiles, tls_faults
from collector.enrolment import enroll as enroll_appliance
from collector.errors import EnrolmentError
from collector.identity import Identity, load_identity
from collector.inventory import host_inventory
from collector.sending.tls import TLSContexts
from core.errors import ConfigurationError

STANDARD_INPUT = "-"


@click.command()
@click.argument("portal_url")
@click.argument("token")
@click.option("--name", default=socket.gethostname, help="The appliance's name; its host name.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="Trusted authorities (PEM).")
@click.option("--ca-sha256", default="", help="Of the portal's own authority, to be got and kept.")
@click.option("--client-certificate", type=click.Path(path_type=Path), help="To show (PEM).")
@click.option("--client-key", type=click.Path(path_type=Path), help="Its key (PEM).")
@click.option("--again", is_flag=True, help="Take a new identity in place of the present one.")
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
    again: bool,
    data_dir: Path,
) -> None:
    """Join the portal at PORTAL_URL with a one-time TOKEN.

    A TOKEN of "-" is read from standard input, so that no list of processes shows it. Certificates
    are those of the agent.toml in the data folder, where there is one and no option names others.
    With --ca-sha256, which the portal's command has where systems don't know who signed for the
    portal, that authority is fetched, compared and trusted from then on.
    """
    if not again and load_identity(data_dir) is not None:
        raise EnrolmentError(
            "This appliance is enrolled already. To give it a new identity, add --again."
        )
    files = choose_tls_files(TLSFiles(ca_file, client_certificate, client_key), data_dir)
    secret = read_token() if token == STANDARD_INPUT else token
    if ca_sha256:
        learn_authority(portal_url, ca_sha256, data_dir=data_dir)
    identity = enrol_here(portal_url, secret, name=name, data_dir=data_dir, files=files)
    click.echo(f"Enrolled as {name} ({identity.appliance_id}).")
    click.echo(f"Start the agent with: vedette agent run --data-dir {data_dir}")


def choose_tls_files(given: TLSFiles, data_dir: Path) -> TLSFiles:
    """Return the files of the command line, or else those of the agent's configuration.

    Raises:
        ConfigurationError: a file can't be used, or the configuration has faults.
    """
    path = data_dir / CONFIG_NAME
    if not given.paths and path.exists():
        config = load_agent_config(path)
        return TLSFiles(config.ca_file, config.client_certificate_file, config.client_key_file)
    if faults := tls_faults(given):
        raise ConfigurationError(faults, source="The command line")
    return given


def read_token() -> str:
    """Return the token that standard input holds.

    Raises:
        EnrolmentError: standard input is empty.
    """
    token = sys.stdin.readline().strip()
    if not token:
        raise EnrolmentError(
            "Standard input holds no token. Write the token to it, or give it in place of the -."
        )
    return token


def enrol_here(
    portal_url: str, token: str, *, name: str, data_dir: Path, files: TLSFiles | None = None
) -> Identity:
    """Enrol this host and write a first configuration where there is none."""
    identity = enroll_appliance(
        portal_url=portal_url,
        token=token,
        name=name,
        inventory=host_inventory(),
        data_dir=data_dir,
        tls=TLSContexts(replace(files or TLSFiles(), also_trusted=trusted_files(data_dir))),
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
    """Write `agent.toml`, unless there is one."""
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
    # JSON's strings, numbers and lists are TOML's too.
    lines = (
        f"{key} = {msgspec.json.encode(value, enc_hook=_path_text).decode()}\n"
        for key, value in settings.items()
        if value is not None
    )
    path.write_text("".join(lines), encoding="utf-8")


def _path_text(value: object) -> str:
    return str(Path(str(value)).resolve())
