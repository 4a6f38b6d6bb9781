"""`vedette agent`: enroll this appliance, and run its agent."""

import logging
import signal
import threading
from pathlib import Path
from queue import SimpleQueue

import click

from cli.agent_check import check, once
from cli.agent_enroll import CONFIG_NAME, data_dir_option, enroll
from cli.agent_service import uninstall, unit, wait
from cli.agent_update import update
from cli.supervision import stop_event, stop_with_parent
from collector.agent import Agent
from collector.config import load_agent_config
from collector.data_dir import Identity, load_identity, lock_data_dir, secure_data_dir
from collector.errors import EnrollmentError
from collector.health.gpus import accept_present_gpus
from core.errors import VedetteError
from core.logs import configure_logging
from core.structs import describe_structs

log = logging.getLogger(__name__)


@click.group()
def agent() -> None:
    """Enroll this appliance and run its agent."""


agent.add_command(enroll)
agent.add_command(check)
agent.add_command(once)
agent.add_command(unit)
agent.add_command(wait)
agent.add_command(update)
agent.add_command(uninstall)


@agent.command()
@data_dir_option
@click.option(
    "--updates",
    type=click.Path(path_type=Path),
    help="Folder of the update service, if the portal may update this agent.",
)
def run(data_dir: Path, *, updates: Path | None) -> None:
    """Run the agent until SIGTERM or Ctrl-C. SIGHUP reloads agent.toml."""
    stop, reloads = stop_event(), SimpleQueue[None]()
    # A signal handler must not wait for locks: a thread does the reload.
    signal.signal(signal.SIGHUP, lambda *_: reloads.put(None))
    config = load_agent_config(data_dir / CONFIG_NAME, data_dir=data_dir)
    configure_logging(config.log_level, process="agent")
    identity = _require_identity(data_dir) if config.influxdb is None else None
    stop_with_parent()
    secure_data_dir(config.data_dir)
    describe_structs()
    with lock_data_dir(config.data_dir):
        worker = Agent(config, identity, update_service_dir=updates)
        arguments = (worker, data_dir, reloads)
        threading.Thread(target=_reload_forever, args=arguments, daemon=True).start()
        worker.run(stop)


@agent.command("accept-gpus")
@data_dir_option
def accept_gpus(data_dir: Path) -> None:
    """Accept the GPUs present now as the expected ones, and clear their recorded XID errors.

    Use it after removing GPUs for good, or after resetting a GPU without a reboot. The change takes
    effect at the agent's next heartbeat.
    """
    _require_identity(data_dir)
    try:
        removed = accept_present_gpus(data_dir)
    except OSError as error:
        raise EnrollmentError(
            f"Can't write to {data_dir}: {error.strerror}. Run this as the agent's user."
        ) from error
    for gpu in removed:
        click.echo(f"Removed GPU {gpu.index} ({gpu.model or 'unknown model'}, {gpu.uuid}).")
    click.echo("The agent accepts the present GPUs at its next heartbeat.")


def _reload_forever(worker: Agent, data_dir: Path, reloads: "SimpleQueue[None]") -> None:
    """Reload the configuration for each item in the queue; ignore an invalid file."""
    path = data_dir / CONFIG_NAME
    while True:
        reloads.get()
        try:
            config = load_agent_config(path, data_dir=data_dir)
            worker.reload(config)
        except VedetteError as error:
            log.error("%s\nThe old configuration stays in effect.", error.message)  # noqa: TRY400 - no traceback
        except Exception:
            log.exception("can't read %s; the old configuration stays in effect", path)
        else:
            configure_logging(config.log_level, process="agent")


def _require_identity(data_dir: Path) -> Identity:
    identity = load_identity(data_dir)
    if identity is None:
        raise EnrollmentError(
            f"This appliance is not enrolled: {data_dir} has no identity. Create a token on the "
            "portal's Appliances page, then run: "
            f"vedette agent enroll PORTAL_URL TOKEN --data-dir {data_dir}"
        )
    return identity
