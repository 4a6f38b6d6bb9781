"""`vedette server`: portal, agent API and scheduler in one process; and each by itself.

The composition root: settings become a database, a store, an ASGI app and loops.
"""

import gc
import logging
import sys
from collections.abc import Collection
from contextlib import ExitStack

import click
from prometheus_client import disable_created_metrics

from cli.asgi import ALL_PARTS, ServerPart, server_config
from cli.backend import open_backend
from cli.ca import authorities_written
from cli.database import prepare_data_dir
from cli.listen_address import check_port
from cli.server_check import check
from cli.server_checks import require_startup
from cli.server_hosts import settings as settings_command
from cli.server_init import init
from cli.server_service import unit
from cli.serving_process import limit_malloc_arenas
from cli.shared_state import require_shared_state, shared_state
from cli.supervision import stop_with_parent
from core.clock import utc_now
from core.errors import ConfigurationError
from core.logs import RepeatFilter, configure_logging
from core.settings import ServerSettings, load_server_settings
from core.structs import describe_structs
from scheduler.loops import Scheduler
from serving.draining import DrainingServer
from serving.heartbeat import Heartbeat
from timeseries.store_url import EMBEDDED_SCHEME, parse_store_url

log = logging.getLogger(__name__)

# How long a thread runs before another one gets the interpreter. With the default of 5 ms, each
# system call of the event loop may take as long while other threads compute.
SWITCH_SECONDS = 0.0005
# Any client can make uvicorn log a line for each of its requests. While the database is away, each
# transaction fails, and tasks that wait for it are skipped.
REPEATING_LOGGERS = (
    "uvicorn.error",
    "core.db",
    "apscheduler.scheduler",
    "apscheduler.executors.default",
)
# Everybody waits for a collection, whose time grows with the product of the first two.
GC_THRESHOLDS = (2_000, 5, 100)


@click.group(invoke_without_command=True)
@click.pass_context
def server(context: click.Context) -> None:
    """Run portal, agent API and scheduler in one process.

    Settings come from VEDETTE_* variables, then from the file named by VEDETTE_CONFIG, which is
    /etc/vedette/server.env unless set.
    """
    if context.invoked_subcommand is None:
        _start("server", ALL_PARTS)


server.add_command(init)
server.add_command(check)
server.add_command(unit)
server.add_command(settings_command)


@click.command()
def portal() -> None:
    """Run the portal alone: pages, REST API, terminals and web pages of jobs.

    Takes the settings of `vedette server`, and a store that several processes can open.
    """
    _start("portal", {ServerPart.PORTAL})


@click.command()
def access() -> None:
    """Run the agent API alone: samples, heartbeats and desired states.

    Takes the settings of `vedette server`, and a store that several processes can open.
    """
    _start("access", {ServerPart.ACCESS})


@click.command()
def scheduler() -> None:
    """Run the scheduler alone: placement, alert rules, notifications, retention.

    It serves /healthz, /readyz and /metrics on its port. Takes the settings of `vedette server`,
    and a store that several processes can open.
    """
    _start("scheduler", {ServerPart.SCHEDULER})


def _start(name: str, parts: Collection[ServerPart]) -> None:
    settings = load_server_settings()
    configure_logging(settings.log_level, process=name, log_format=settings.log_format)
    stop_with_parent()
    if set(parts) != ALL_PARTS:
        _require_shared_store(settings)
    check_port(settings.host, settings.port)
    prepare_data_dir(settings.data_dir)
    for problem in require_startup(settings):
        log.warning("%s", problem.text)
    run_server(settings, parts)


def _require_shared_store(settings: ServerSettings) -> None:
    if parse_store_url(settings.resolved_timeseries_url).scheme == EMBEDDED_SCHEME:
        problem = (
            "timeseries_url: one process alone can open the embedded store (DuckDB). Set InfluxDB "
            "or VictoriaMetrics, or run portal, agent API and scheduler together: vedette server"
        )
        raise ConfigurationError([problem], source="The configuration")


def run_server(settings: ServerSettings, parts: Collection[ServerPart] = ALL_PARTS) -> None:
    """Serve until SIGINT or SIGTERM, then stop the loops and close database and store."""
    limit_malloc_arenas()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    has_pages = ServerPart.PORTAL in parts
    with open_backend(settings) as backend, ExitStack() as stack:
        shared = shared_state(settings, has_pages=has_pages)
        url = settings.resolved_internal_url
        heartbeat = Heartbeat(
            backend.sessions, parts, url=url, broker=backend.broker, shared=shared
        )
        stack.enter_context(heartbeat.beating())
        require_shared_state(backend.sessions, settings, shared, now=utc_now())
        describe_structs()
        config = server_config(backend, parts=parts)
        if ServerPart.SCHEDULER in parts:
            loops = Scheduler(settings, sessions=backend.sessions, store=backend.store)
        # Objects that live as long as the process need no garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        for name in REPEATING_LOGGERS:
            logging.getLogger(name).addFilter(RepeatFilter())
        if ServerPart.SCHEDULER in parts:
            loops.start()
            stack.callback(loops.stop)
        log.info("serving %s", settings.resolved_public_url)
        with (
            backend.sightings.written_in_background(),
            backend.limits.exchanged_in_background(),
            authorities_written(backend.sessions, settings),
        ):
            server = DrainingServer(
                config, draining=backend.draining, drain_seconds=settings.drain_seconds
            )
            server.run()
