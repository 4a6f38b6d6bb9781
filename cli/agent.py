"""`vedette agent`: enrol this appliance, and run its agent.

The folder given by `--data-dir` holds the identity, the configuration (`agent.toml`), and what is
not delivered yet.
"""

import signal
import socket
import sys
import threading
from pathlib import Path

import click

from cli.parentage import stop_with_parent
from collector.agent import Agent
from collector.config import load_agent_config
from collector.enrolment import enroll as enroll_appliance
from collector.errors import EnrolmentError
from collector.identity import Identity, load_identity
from collector.inventory import host_inventory
from core.logs import configure_logging

DEFAULT_DATA_DIR = Path("/var/lib/vedette")
CONFIG_NAME = "agent.toml"
STANDARD_INPUT = "-"

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Where identity, configuration and undelivered samples are kept.",
)


@click.group()
def agent() -> None:
    """Enrol this appliance and run its agent."""


@agent.command()
@click.argument("portal_url")
@click.argument("token")
@click.option("--name", default=socket.gethostname, help="The appliance's name; its host name.")
@data_dir_option
def enroll(portal_url: str, token: str, *, name: str, data_dir: Path) -> None:
    """Join the portal at PORTAL_URL with a one-time TOKEN.

    A TOKEN of "-" is read from standard input, so that no list of processes shows it.
    """
    if load_identity(data_dir) is not None:
        raise EnrolmentError(
            f"This appliance is enrolled already. To start anew, remove {data_dir}/identity.json."
        )
    secret = read_token() if token == STANDARD_INPUT else token
    identity = enrol_here(portal_url, secret, name=name, data_dir=data_dir)
    click.echo(f"Enrolled as {name} ({identity.appliance_id}).")
    click.echo(f"Start the agent with: vedette agent run --data-dir {data_dir}")


@agent.command()
@data_dir_option
def run(data_dir: Path) -> None:
    """Run the agent until SIGTERM or Ctrl-C."""
    config = load_agent_config(data_dir / CONFIG_NAME)
    configure_logging(config.log_level, process="agent")
    identity = require_identity(data_dir)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop_with_parent()
    Agent(config, identity).run(stop)


@agent.command()
@click.argument("config_file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@data_dir_option
def check(config_file: Path | None, data_dir: Path) -> None:
    """Check CONFIG_FILE, or the agent.toml in the data folder, and name all its faults."""
    path = config_file or data_dir / CONFIG_NAME
    load_agent_config(path)
    click.echo(f"{path} is in order.")


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


def enrol_here(portal_url: str, token: str, *, name: str, data_dir: Path) -> Identity:
    """Enrol this host and write a first configuration where there is none."""
    identity = enroll_appliance(
        portal_url=portal_url,
        token=token,
        name=name,
        inventory=host_inventory(),
        data_dir=data_dir,
    )
    write_config(data_dir, portal_url)
    return identity


def write_config(data_dir: Path, portal_url: str, *, interval_seconds: float = 10.0) -> None:
    """Write `agent.toml`, unless there is one."""
    path = data_dir / CONFIG_NAME
    if path.exists():
        return
    path.write_text(
        f'portal_urls = ["{portal_url}"]\n'
        f'data_dir = "{data_dir.resolve()}"\n'
        f"interval_seconds = {interval_seconds:g}\n"
        f"flush_interval_seconds = {min(5.0, interval_seconds):g}\n",
        encoding="utf-8",
    )


def require_identity(data_dir: Path) -> Identity:
    """Return the identity, or say how to get one.

    Raises:
        EnrolmentError: this appliance was not enrolled.
    """
    identity = load_identity(data_dir)
    if identity is None:
        raise EnrolmentError(
            f"{data_dir} holds no identity. Make a token on the portal's appliances page, then "
            f"run: vedette agent enroll PORTAL_URL TOKEN --data-dir {data_dir}"
        )
    return identity
