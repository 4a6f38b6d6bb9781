"""`vedette server unit`, and the service that `vedette server init --systemd` makes of it."""

import time

import click

from cli.server_health import server_problem
from cli.systemd import (
    LINK,
    UNIT_DIR,
    call,
    has_systemd,
    quoted,
    rendered_unit,
    this_program,
    user_exists,
)
from core.errors import InvalidInputError, UnavailableError
from core.settings import ServerSettings, load_server_settings
from core.settings_file import SYSTEM_FILE

SERVICE_USER = "vedette-server"
UNIT_NAME = "vedette-server.service"
START_SECONDS = 60.0
POLL_SECONDS = 0.2
# Ports below this one need a capability.
FIRST_UNPRIVILEGED_PORT = 1024
# What each command runs, as systemd shows it.
DESCRIPTIONS = {
    "server": "portal, agent API and scheduler",
    "portal": "portal",
    "access": "agent API",
    "scheduler": "scheduler",
}


@click.command()
@click.option(
    "--process",
    type=click.Choice(list(DESCRIPTIONS)),
    default="server",
    show_default=True,
    help="Command that the unit runs.",
)
@click.option(
    "--port",
    type=click.IntRange(min=1, max=65535),
    help="Port of a process, where several on a host share the file of settings.",
)
@click.option("--user", default=SERVICE_USER, show_default=True, help="User of the process.")
def unit(*, process: str, port: int | None, user: str) -> None:
    """Print the systemd unit of the server, or of a part of it, for its settings."""
    click.echo(_unit(load_server_settings(), process=process, port=port, user=user), nl=False)


def prepare_user(name: str) -> None:
    """Create the user that the server runs as, unless there is one.

    Raises:
        InvalidInputError: systemd does not run this host.
    """
    if not has_systemd():
        raise InvalidInputError(
            "systemd does not run this host. Leave out --systemd, and start `vedette server` as "
            "your supervisor or container does."
        )
    if not user_exists(name):
        call("useradd", "--system", "--user-group", "--no-create-home", name)
        click.echo(f"Created the user {name}.")


def start_service(settings: ServerSettings, *, user: str) -> None:
    """Install, enable and start the unit; wait until the server is healthy.

    Raises:
        UnavailableError: it isn't, within a minute.
    """
    text, path = _unit(settings, process="server", port=None, user=user), UNIT_DIR / UNIT_NAME
    path.write_text(text, encoding="utf-8")
    if not LINK.exists():
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(this_program())
    call("systemctl", "daemon-reload")
    call("systemctl", "enable", UNIT_NAME)
    call("systemctl", "restart", UNIT_NAME)
    click.echo(f"Started {UNIT_NAME}.")
    deadline = time.monotonic() + START_SECONDS
    while (problem := server_problem(settings)) is not None:
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"The server is not healthy: {problem or 'it does not answer.'} See why with: "
                f"journalctl --unit {UNIT_NAME}"
            )
        time.sleep(POLL_SECONDS)


def _unit(settings: ServerSettings, *, process: str, port: int | None, user: str) -> str:
    environment = ["/usr/bin/env", f"VEDETTE_PORT={port}"] if port else []
    is_privileged = (port or settings.port) < FIRST_UNPRIVILEGED_PORT
    return rendered_unit(
        UNIT_NAME,
        description=DESCRIPTIONS[process],
        command=" ".join(map(_argument, [*environment, str(this_program()), process])),
        file=SYSTEM_FILE,
        user=user,
        writable=_writable(settings),
        capabilities="CAP_NET_BIND_SERVICE" if is_privileged else "",
    )


def _writable(settings: ServerSettings) -> str:
    """Return the folders that the server writes to, of its data and of what hosts share."""
    urls = [url.removeprefix("file://") for url in (settings.log_url, settings.data_url)]
    # The unit starts without these folders, too, which may be on a disk that is not mounted.
    folders = [f"-{url}" for url in (*urls, settings.backup_url) if url.startswith("/")]
    words = [str(settings.data_dir.absolute()), *dict.fromkeys(folders)]
    return " ".join(map(quoted, words))


def _argument(word: str) -> str:
    """Return an argument of a command, in which systemd replaces variables."""
    return quoted(word).replace("$", "$$")
