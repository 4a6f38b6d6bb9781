"""`vedette up`: everything in one command, on SQLite and DuckDB, for this machine.

It prepares the data folder, starts the server and an agent for this host as processes of their
own, starts the simulated fleet with `--demo`, and watches them until Ctrl-C.
"""

import fcntl
import shlex
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import click

from cli.bootstrap import Login, prepare_demo, prepare_plain
from cli.database import open_database, prepare_data_dir
from cli.server import check_port
from cli.supervision import Child, stop_all, supervise
from cli.upstart import Upstart, here
from core.clock import utc_now
from core.errors import ConfigurationError, UnavailableError
from core.settings import ServerSettings, load_server_settings

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
READY_SECONDS = 45.0
POLL_SECONDS = 0.1


@click.command()
@click.option("--demo", is_flag=True, help="Add two tenants with a simulated fleet.")
@click.option("--agent/--no-agent", "with_agent", default=True, help="Run an agent for this host.")
def up(*, demo: bool, with_agent: bool) -> None:
    """Start portal, scheduler and an agent for this host; Ctrl-C stops them, data is kept.

    Settings come from VEDETTE_* variables, such as VEDETTE_PORT and VEDETTE_DATA_DIR.
    """
    settings = load_server_settings()
    if demo and settings.host not in LOOPBACK:
        fault = f"host {settings.host} with --demo: its logins are public; use 127.0.0.1"
        raise ConfigurationError([fault], source="The configuration")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    prepare_data_dir(settings.data_dir)
    with only_one(settings.data_dir):
        check_port(settings.host, settings.port)
        _run(settings, is_demo=demo, with_agent=with_agent, stop=stop)


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Hold the data folder for this process.

    Raises:
        ConfigurationError: another `vedette up` uses it.
    """
    with (data_dir / "up.lock").open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            fault = f"data_dir {data_dir} is in use by another `vedette up`; stop it first"
            raise ConfigurationError([fault], source="The configuration") from error
        yield


def _run(
    settings: ServerSettings, *, is_demo: bool, with_agent: bool, stop: threading.Event
) -> None:
    started = time.monotonic()
    upstart = Upstart(settings, is_demo=is_demo, with_agent=with_agent)
    with step("database"), open_database(settings) as (_engine, sessions):
        logins = (prepare_demo if is_demo else prepare_plain)(sessions, now=utc_now())
        upstart.make_enrolment_secrets(sessions)
    children: list[Child] = []
    try:
        with step("server"):
            children.append(upstart.server())
            wait_until_ready(children[0], settings, stop=stop)
        if with_agent:
            with step("agent for this host"):
                children.append(upstart.agent())
        if is_demo:
            with step("simulated fleet: twelve appliances, whose past day arrives meanwhile"):
                children.append(upstart.fleet())
    except BaseException:
        stop_all(children)
        raise
    welcome(settings, logins, seconds=time.monotonic() - started, is_demo=is_demo)
    supervise(children, stop=stop, say=lambda text: click.secho(f"! {text}", fg="yellow"))
    click.echo(f"\nStopped. Your data is kept in {settings.data_dir}.")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Show that a step has begun, and how long it took."""
    started = time.monotonic()
    if sys.stdout.isatty():
        click.echo(f"  … {name}", nl=False)
    yield
    back = "\r" if sys.stdout.isatty() else ""
    click.echo(f"{back}  ✓ {name} ({time.monotonic() - started:.1f} s)")


def wait_until_ready(server: Child, settings: ServerSettings, *, stop: threading.Event) -> None:
    """Wait until the server answers on this host, by whatever names others reach it.

    Raises:
        UnavailableError: it ended or stays silent; shows the end of its log.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not stop.wait(POLL_SECONDS):
        if is_up(settings):
            return
        if not server.is_running() or time.monotonic() > deadline:
            raise UnavailableError(f"The server did not start:\n{server.last_lines()}")


def is_up(settings: ServerSettings) -> bool:
    """Whether a server answers that all is well."""
    host, port, seconds = here(settings.host), settings.port, 1.0
    if settings.tls_certificate_file is None:
        connection = HTTPConnection(host, port, timeout=seconds)
    else:
        # Nothing is told or believed here, and its certificate may be for another name than this.
        anybody = ssl.create_default_context()
        anybody.check_hostname = False
        anybody.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=seconds, context=anybody)
    with closing(connection):
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False  # not listening yet


def welcome(
    settings: ServerSettings, logins: list[Login], *, seconds: float, is_demo: bool
) -> None:
    """Print the address and the logins."""
    click.secho(f"\nVedette is open at {settings.resolved_public_url}", bold=True, nl=False)
    click.echo(f"  (after {seconds:.1f} s)\n")
    width = max((len(login.email) for login in logins), default=0)
    for login in logins:
        click.echo(f"  {login.email:<{width}}  {login.password}  {login.who}")
    if logins and not is_demo:
        click.echo("\n  These passwords are shown only now: sign in and change them.")
    if settings_told := told_settings(settings):
        click.echo(f"\nCommands beside it: {settings_told} vedette tenant list")
    click.echo("\nCtrl-C stops it; the data is kept.")


def told_settings(settings: ServerSettings) -> str:
    """Return what to put before other commands so that they find the data and the address."""
    plain = ServerSettings()
    told = {
        "VEDETTE_DATA_DIR": None if settings.data_dir == plain.data_dir else settings.data_dir,
        "VEDETTE_HOST": None if settings.host == plain.host else settings.host,
        "VEDETTE_PORT": None if settings.port == plain.port else settings.port,
    }
    return " ".join(
        f"{name}={shlex.quote(str(value))}" for name, value in told.items() if value is not None
    )
