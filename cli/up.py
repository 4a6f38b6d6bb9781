"""`vedette up`: the whole product on this machine, on SQLite and DuckDB.

It starts the server, an agent for this host and, with `--demo`, the simulated fleet as child
processes, and restarts them if they exit, until Ctrl-C.
"""

import fcntl
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from cli.bootstrap import Login, prepare_default, prepare_demo
from cli.database import open_database, prepare_data_dir
from cli.demo_datasets import add_datasets
from cli.listen_address import check_port
from cli.process_plan import ProcessPlan
from cli.server_health import server_problem
from cli.supervision import Child, stop_all, stop_event, supervise
from core.clock import utc_now
from core.errors import ConfigurationError, UnavailableError
from core.settings import ServerSettings, load_server_settings
from core.settings_file import CONFIG_VARIABLE

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# Importing everything takes seconds, but minutes on a host that is busy. An exit ends the wait.
READY_SECONDS = 180.0
# A store that starts at the same time may take a moment.
UNHEALTHY_SECONDS = 5.0
POLL_SECONDS = 0.1


@click.command()
@click.option("--demo", is_flag=True, help="Add two demo tenants with a simulated fleet.")
@click.option("--agent/--no-agent", "with_agent", default=True, help="Run an agent for this host.")
# For a portal that runs already, with the settings of this command (deploy/local).
@click.option("--server/--no-server", "with_server", default=True, hidden=True)
def up(*, demo: bool, with_agent: bool, with_server: bool) -> None:
    """Start portal, scheduler and an agent for this host. Ctrl-C stops them.

    Settings come from VEDETTE_* variables, such as VEDETTE_PORT and VEDETTE_DATA_DIR.
    """
    # Not the system's file: trying the product must never touch the portal that runs beside it.
    os.environ.setdefault(CONFIG_VARIABLE, "")
    settings = load_server_settings()
    if demo and settings.host not in LOOPBACK:
        fault = f"host {settings.host} with --demo: its logins are public. Use 127.0.0.1"
        raise ConfigurationError([fault], source="The configuration")
    stop = stop_event()
    prepare_data_dir(settings.data_dir)
    with exclusive(settings.data_dir):
        plan = ProcessPlan(settings, is_demo=demo, with_agent=with_agent, with_server=with_server)
        if with_server:
            check_port(settings.host, settings.port)
        _run(settings, plan, stop=stop)


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Lock the data directory for this process.

    Raises:
        ConfigurationError: another `vedette up` uses it.
    """
    with (data_dir / "up.lock").open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            fault = f"data_dir {data_dir} is in use by another `vedette up`. Stop it first"
            raise ConfigurationError([fault], source="The configuration") from error
        yield


def _run(settings: ServerSettings, plan: ProcessPlan, *, stop: threading.Event) -> None:
    started = time.monotonic()
    is_demo = plan.is_demo
    with _step("database"), open_database(settings, may_create=True):
        pass
    children: list[Child] = []
    try:
        if plan.with_server:
            with _step("server"):
                children.append(plan.server())
                _wait_until_ready(children[0], settings, stop=stop)
        if not stop.is_set():
            # Accounts exist once the store answers, and their passwords are shown at once: whatever
            # fails later loses none.
            with open_database(settings) as (_engine, sessions):
                logins = (
                    prepare_demo(sessions, now=utc_now(), has_marketplace=settings.marketplace)
                    if is_demo
                    else prepare_default(sessions, now=utc_now())
                )
                _print_logins(logins, is_demo=is_demo)
                if is_demo:
                    add_datasets(sessions, settings, logins[0].email, now=utc_now())
                plan.create_tokens(sessions)
            if plan.with_server:
                _start_registry(plan, settings, children)
            _start_agents(plan, children)
            _print_welcome(settings, seconds=time.monotonic() - started)
    except BaseException:
        stop_all(children)
        raise
    supervise(children, stop=stop, report=lambda text: click.secho(f"! {text}", fg="yellow"))
    click.echo(f"\nStopped. Your data is in {settings.data_dir}.")


def _start_registry(plan: ProcessPlan, settings: ServerSettings, children: list[Child]) -> None:
    started = plan.registry()
    if started is not None:
        children.append(started)
        click.echo("  ✓ registry for container images")
    elif not settings.registry_url:
        click.echo(
            "    No registry for container images: install the Debian package docker-registry and "
            f"leave port {settings.port + 1} free."
        )


def _start_agents(plan: ProcessPlan, children: list[Child]) -> None:
    if plan.with_agent:
        with _step("agent for this host"):
            children.append(plan.agent())
    if plan.is_demo:
        with _step(
            f"simulated fleet of {plan.fleet_size} appliances; a day of history follows in the "
            "background"
        ):
            children.append(plan.fleet())


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Print a step while it runs, then its duration."""
    started = time.monotonic()
    if sys.stdout.isatty():
        click.echo(f"  … {name}", nl=False)
    yield
    back = "\r" if sys.stdout.isatty() else ""
    click.echo(f"{back}  ✓ {name} ({time.monotonic() - started:.1f} s)")


def _wait_until_ready(server: Child, settings: ServerSettings, *, stop: threading.Event) -> None:
    """Wait until the server is healthy.

    Raises:
        UnavailableError: it exited, its store or database does not answer, or it timed out.
    """
    deadline = time.monotonic() + READY_SECONDS
    patience: float | None = None
    while not stop.wait(POLL_SECONDS):
        problem = server_problem(settings)
        if problem is None:
            return
        now = time.monotonic()
        if not server.is_running():
            raise UnavailableError(f"The server did not start. {server.error()}")
        if problem:
            patience = patience or now + UNHEALTHY_SECONDS
        if problem and patience and now > patience:
            raise UnavailableError(f"The server did not start. {problem}")
        if now > deadline:
            raise UnavailableError(
                f"The server did not start within {READY_SECONDS:.0f} s. See {server.log_path}."
            )


def _print_logins(logins: list[Login], *, is_demo: bool) -> None:
    width = max((len(login.email) for login in logins), default=0)
    for login in logins:
        click.echo(f"    {login.email:<{width}}  {login.password}  {login.role}")
    if logins and not is_demo:
        click.echo("    These passwords are not shown again. Sign in and change them.")


def _print_welcome(settings: ServerSettings, *, seconds: float) -> None:
    click.secho(f"\nVedette is running at {settings.resolved_public_url}", bold=True, nl=False)
    click.echo(f"  (started in {seconds:.1f} s)")
    if environment := environment_of(settings):
        click.echo(
            f"\nRun other commands with the same settings: {environment} vedette tenant list"
        )
    click.echo("\nPress Ctrl-C to stop. Your data is kept.")


def environment_of(settings: ServerSettings) -> str:
    """Return the variables with which other commands find the same data and address."""
    default = ServerSettings()
    return " ".join(
        f"VEDETTE_{name.upper()}={shlex.quote(str(getattr(settings, name)))}"
        for name in ("data_dir", "host", "port")
        if getattr(settings, name) != getattr(default, name)
    )
