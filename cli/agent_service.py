"""`vedette agent unit`, `wait` and `uninstall`: the agent as a service of this host.

The script that the portal serves at `/install` and the Ansible role call them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click

from cli.agent_enroll import CONFIG_NAME, data_dir_option
from cli.systemd import (
    LINK,
    UNIT_DIR,
    call,
    quoted,
    rendered_unit,
    this_program,
    user_exists,
)
from collector.buffering.cursor import CURSOR_NAME
from collector.config import load_agent_config
from collector.data_dir import load_identity
from collector.errors import EnrollmentError
from core.errors import ForbiddenError, InvalidInputError, UnavailableError

UNIT_NAME = "vedette-agent.service"
PRIVILEGES_NAME = "vedette-agent-privileged.conf"
UPDATE_UNIT_NAMES = ("vedette-agent-update.path", "vedette-agent-update.service")
# The folder of the update service, in that of the software.
UPDATES_NAME = "updates"
USER = "vedette"
# Records what is installed, in the folder of the software.
STAMP_NAME = "installed"
POLL_SECONDS = 0.2

Step = tuple[str, Callable[[], object]]

user_option = click.option("--user", default=USER, show_default=True, help="The agent's user.")


@click.command()
@user_option
@click.option("--group", default="", help="The agent's group. Defaults to the name of the user.")
@click.option(
    "--program", type=click.Path(path_type=Path), help="Path of `vedette`. Defaults to this one."
)
@data_dir_option
@click.option(
    "--updates",
    type=click.Path(path_type=Path),
    help="Folder of the update service, if the portal may update this agent.",
)
@click.option("--portal-url", default="", help="Where the update service gets new versions.")
@click.option(
    "--name",
    type=click.Choice([UNIT_NAME, PRIVILEGES_NAME, *UPDATE_UNIT_NAMES]),
    default=UNIT_NAME,
    show_default=True,
    help="The unit to print.",
)
def unit(
    user: str,
    *,
    group: str,
    program: Path | None,
    data_dir: Path,
    updates: Path | None,
    portal_url: str,
    name: str,
) -> None:
    """Print a systemd unit: that of the agent, its privileges, or those that update it."""
    values = {
        "program": str((program or this_program()).absolute()),
        "data_dir": str(data_dir.absolute()),
        "updates": str(updates.absolute()) if updates else "",
        "portal_url": portal_url,
    }
    for value in values.values():
        # A path is in several lines, of which systemd reads each by other rules.
        if value and ("$" in value or quoted(value) != value):
            raise InvalidInputError(
                f"{value!r} can't be in a systemd unit: it has a space, %, $, a quote or the like. "
                "Choose another folder."
            )
    if name in UPDATE_UNIT_NAMES and not portal_url:
        raise InvalidInputError("Say with --portal-url where the update service gets new versions.")
    options = f" --updates {values['updates']}" if updates else ""
    text = rendered_unit(name, user=user, group=group or user, options=options, **values)
    click.echo(text, nl=False)


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Time limit."
)
@data_dir_option
def wait(seconds: float, *, data_dir: Path) -> None:
    """Wait until the portal has stored samples of the running agent; print the appliance's page."""
    identity = load_identity(data_dir)
    if identity is None:
        raise EnrollmentError(f"This appliance is not enrolled: {data_dir} has no identity.")
    portal_url = load_agent_config(data_dir / CONFIG_NAME, data_dir=data_dir).portal_urls[0]
    acknowledged = data_dir / "buffer" / CURSOR_NAME
    before, deadline = _modified_ns(acknowledged), time.monotonic() + seconds
    while _modified_ns(acknowledged) == before:
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"The portal has stored no samples of this appliance for {seconds:g} seconds. See "
                "why with: vedette agent check, and journalctl --unit vedette-agent"
            )
        time.sleep(POLL_SECONDS)
    click.echo(f"{portal_url.rstrip('/')}/appliances/{identity.appliance_id}")


@click.command()
@user_option
@data_dir_option
@click.option("--remove-data", is_flag=True, help="Also remove the data folder and the user.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
def uninstall(user: str, *, data_dir: Path, remove_data: bool, dry_run: bool) -> None:
    """Stop the agent and remove it from this host. Run it as root.

    Running containers are not touched. The data folder, with identity and unsent samples, stays
    with its user unless you say --remove-data. Revoke the appliance in the portal afterwards.
    """
    if os.geteuid() != 0 and not dry_run:
        raise ForbiddenError("Only root can remove the agent. Run this command with sudo.")
    # The checks of all steps come before the first one.
    steps = [*_service_steps(), *_software_steps(this_program())]
    if remove_data:
        steps += _data_steps(data_dir, user)
    for text, remove in steps:
        click.echo(f"Would {text}" if dry_run else f"{text[0].upper()}{text[1:]}")
        if not dry_run:
            remove()
    if not remove_data:
        click.echo(
            f"{data_dir} and the user {user} stay. To remove them later, delete both by hand."
        )


def _service_steps() -> Iterator[Step]:
    """Return the steps for the units, if they run this program rather than another agent."""
    path = UNIT_DIR / UNIT_NAME
    if not path.exists() or str(this_program()) not in path.read_text(encoding="utf-8"):
        return
    has_systemd = shutil.which("systemctl") is not None
    for name in (*UPDATE_UNIT_NAMES, UNIT_NAME):
        if not (UNIT_DIR / name).exists():
            continue
        if has_systemd:
            yield f"stop {name}", partial(call, "systemctl", "disable", "--now", name)
        yield f"remove {UNIT_DIR / name}", (UNIT_DIR / name).unlink
    folder = UNIT_DIR / f"{UNIT_NAME}.d"
    if (privileges := folder / "privileged.conf").exists():
        yield f"remove {privileges}", privileges.unlink
        if [*folder.iterdir()] == [privileges]:
            yield f"remove {folder}", folder.rmdir
    if has_systemd:
        yield "reload systemd", partial(call, "systemctl", "daemon-reload")


def _software_steps(program: Path) -> Iterator[Step]:
    """Return the steps for the program's folder, which is above its virtual environment."""
    folder = program.parents[2]
    if not (folder / STAMP_NAME).exists():
        raise InvalidInputError(
            f"{program} was not installed by the portal's script or by Ansible: {folder} has no "
            f"file {STAMP_NAME}. Remove it as you installed it."
        )
    if LINK.is_symlink() and LINK.readlink() == program:
        yield f"remove {LINK}", LINK.unlink
    yield f"remove {folder}", partial(shutil.rmtree, folder)


def _data_steps(data_dir: Path, user: str) -> Iterator[Step]:
    if data_dir.exists():
        if not (data_dir / CONFIG_NAME).exists():
            raise InvalidInputError(
                f"{data_dir} has no {CONFIG_NAME}, so it is not an agent's data folder. Check "
                "--data-dir, or remove it by hand."
            )
        yield f"remove {data_dir}", partial(shutil.rmtree, data_dir)
    if user == USER and user_exists(user):
        yield f"remove the user {user}", partial(call, "userdel", user)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
