"""`vedette agent`: enrol this appliance, and run its agent.

The folder given by `--data-dir` holds the identity, the configuration (`agent.toml`), and what is
not delivered yet.
"""

import logging
import signal
import threading
from pathlib import Path
from queue import SimpleQueue

import click

from cli.agent_check import check
from cli.agent_enroll import enroll
from cli.agent_once import once
from cli.agent_options import CONFIG_NAME, data_dir_option
from cli.parentage import stop_with_parent
from collector.agent import Agent
from collector.config import load_agent_config
from collector.data_lock import sole_agent
from collector.errors import EnrolmentError
from collector.health.known_gpus import accept_present_gpus
from collector.identity import Identity, load_identity
from core.errors import VedetteError
from core.logs import configure_logging

log = logging.getLogger(__name__)


@click.group()
def agent() -> None:
    """Enrol this appliance and run its agent."""


@agent.command()
@data_dir_option
def run(data_dir: Path) -> None:
    """Run the agent until SIGTERM or Ctrl-C; SIGHUP reads agent.toml again."""
    stop, hang_ups = threading.Event(), SimpleQueue[None]()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    # A handler may interrupt anything: it only leaves a note for a thread that may wait for locks.
    signal.signal(signal.SIGHUP, lambda *_: hang_ups.put(None))
    config = load_agent_config(data_dir / CONFIG_NAME)
    configure_logging(config.log_level, process="agent")
    identity = require_identity(data_dir) if config.influxdb is None else None
    stop_with_parent()
    with sole_agent(config.data_dir):
        worker = Agent(config, identity)
        threading.Thread(
            target=reload_forever, args=(worker, data_dir / CONFIG_NAME, hang_ups), daemon=True
        ).start()
        worker.run(stop)


@agent.command("accept-gpus")
@data_dir_option
def accept_gpus(data_dir: Path) -> None:
    """Take the GPUs that are here for all that there are, and forget the XIDs they had.

    For GPUs that were taken out for good, or were reset without a reboot. The agent does it at its
    next heartbeat.
    """
    require_identity(data_dir)
    try:
        forgotten = accept_present_gpus(data_dir)
    except OSError as error:
        raise EnrolmentError(
            f"{data_dir} can't be written: {error.strerror}. Run this as the agent's user."
        ) from error
    for gpu in forgotten:
        click.echo(f"GPU {gpu.index} ({gpu.model or 'model unknown'}, {gpu.uuid}) is forgotten.")
    click.echo("The agent takes the other GPUs as they are at its next heartbeat.")


agent.add_command(enroll)
agent.add_command(check)
agent.add_command(once)


def reload_forever(worker: Agent, path: Path, hang_ups: "SimpleQueue[None]") -> None:
    """Take over the file for each note in the queue; a bad file is told and changes nothing."""
    while True:
        hang_ups.get()
        try:
            config = load_agent_config(path)
            worker.reload(config)
        except VedetteError as error:
            log.error("%s\nThe old configuration stays.", error.message)  # noqa: TRY400 - told whole
        except Exception:
            log.exception("%s could not be read; the old configuration stays", path)
        else:
            configure_logging(config.log_level, process="agent")


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
