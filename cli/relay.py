"""`vedette relay`: an access point near the appliances, which needs no database."""

import asyncio
import fcntl
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
import uvloop
from prometheus_client import CollectorRegistry, disable_created_metrics
from starlette.types import ASGIApp, Receive, Scope, Send

from cli.listen_address import check_port
from cli.serving_process import (
    allowed_connections,
    bounded_config,
    limit_malloc_arenas,
)
from cli.supervision import stop_with_parent
from cli.systemd import quoted, rendered_unit, this_program
from core.errors import ConfigurationError
from core.logs import RepeatFilter, configure_logging
from core.private_files import make_private
from core.request_notes import ROUTE, note
from core.settings import ServerSettings
from core.structs import describe_structs
from relay.errors import UpstreamAwayError
from relay.process import Relay, RelayCollector
from relay.registry import RETRY_SECONDS, Registry
from relay.settings import (
    SYSTEM_FILE,
    RelaySettings,
    load_relay_settings,
    relay_token,
    upstream_tls,
)
from relay.upstream import Upstream
from serving.draining import DrainingServer
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from serving.monitoring import PATHS as MONITORING_PATHS
from serving.monitoring import create_monitoring_app
from serving.readiness import Readiness
from serving.safe_headers import with_safe_headers
from serving.tls import ServerTLS, TLSHandshake
from serving.watched import Watched, answered_requests

log = logging.getLogger(__name__)

SERVICE_USER = "vedette-relay"
LOCK_SECONDS = 10.0
LOCK_RETRY_SECONDS = 0.2
FIRST_UNPRIVILEGED_PORT = 1024
# As for the server: a collection stops all requests.
GC_THRESHOLDS = (2_000, 5, 100)
# Clients can make these write a line for each of their requests.
REPEATING_LOGGERS = ("uvicorn.error", "relay.upstream", "relay.spool")


@click.group(invoke_without_command=True)
@click.pass_context
def relay(context: click.Context) -> None:
    """Run an access point near the appliances, which needs no database.

    It stores samples on disk while the portal is away, and delivers them afterwards. Settings come
    from VEDETTE_RELAY_* variables, then from the file named by VEDETTE_RELAY_CONFIG, which is
    /etc/vedette/relay.env unless set. docs/relays.md explains them.
    """
    if context.invoked_subcommand is None:
        _start()


@relay.command()
def check() -> None:
    """Check settings, disk, certificate, and whether the portal accepts the token.

    It changes nothing, and works while the relay runs. The exit code is 1 if the relay could not
    work.
    """
    # The relay itself runs without what they import.
    from cli.relay_check import relay_checks  # noqa: PLC0415
    from cli.server_check import has_fatal, print_checks  # noqa: PLC0415

    checks = relay_checks(load_relay_settings())
    print_checks(checks)
    sys.exit(1 if has_fatal(checks) else 0)


@relay.command()
@click.option("--user", default=SERVICE_USER, show_default=True, help="User of the process.")
def unit(*, user: str) -> None:
    """Print the systemd unit of the relay, for its settings."""
    settings = load_relay_settings()
    is_privileged = settings.port < FIRST_UNPRIVILEGED_PORT
    text = rendered_unit(
        "vedette-server.service",
        description="relay",
        command=f"{quoted(str(this_program())).replace('$', '$$')} relay",
        file=SYSTEM_FILE,
        user=user,
        writable=quoted(str(settings.data_dir.absolute())),
        capabilities="CAP_NET_BIND_SERVICE" if is_privileged else "",
    )
    click.echo(text, nl=False)


def _start() -> None:
    settings = load_relay_settings()
    configure_logging(settings.log_level, process="relay", log_format=settings.log_format)
    stop_with_parent()
    check_port(settings.host, settings.port, remedy="Choose another with VEDETTE_RELAY_PORT")
    limit_malloc_arenas()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with _locked(settings):
        uvloop.run(_serve(settings))


async def _serve(settings: RelaySettings) -> None:
    """Serve until SIGINT or SIGTERM, then close the spool."""
    registry = Registry(
        settings.registry_file,
        authorities_path=settings.authorities_file,
        max_age_seconds=settings.max_registry_age_seconds,
    )
    registry.load()
    if not registry.has_snapshot:
        await _first_registry(settings, registry)
    describe_structs()
    core = Relay(settings, registry)
    limits = _connection_limits(settings)
    config = bounded_config(
        _app(settings, core, registry),
        host=settings.host,
        port=settings.port,
        limits=limits,
        http=_protocol(settings, Connections(limits)),
    )
    for name in REPEATING_LOGGERS:
        logging.getLogger(name).addFilter(RepeatFilter())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # uvicorn raises the signal that ended it once more: the spool is closed first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    async with core.running(answered_requests=answered_requests):
        log.info("relaying to %s", settings.upstream)
        await DrainingServer(config).serve()


async def _first_registry(settings: RelaySettings, registry: Registry) -> None:
    """Wait until the portal has sent the registry: without it no agent can be authenticated.

    Raises:
        UpstreamRefusedError: the portal does not accept the relay's token.
    """
    upstream = Upstream(settings.upstream, token=relay_token(settings), tls=upstream_tls(settings))
    reason = ""
    try:
        while not registry.has_snapshot:
            try:
                await registry.refresh(upstream, wait_seconds=0)
            except UpstreamAwayError as error:
                if error.message != reason:
                    log.warning("waiting for the registry of agents: %s", error.message)
                reason = error.message
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        await upstream.close()


def _app(settings: RelaySettings, core: Relay, registry: Registry) -> ASGIApp:
    metrics = CollectorRegistry(auto_describe=False)
    metrics.register(RelayCollector(core, registry))
    monitoring = with_safe_headers(
        create_monitoring_app(
            ServerSettings(
                monitoring_networks=settings.monitoring_networks,
                metrics_token=settings.metrics_token,
            ),
            Readiness(
                {"samples": core.probe_samples},
                {"portal": core.probe_upstream, "undeliverable": core.probe_undeliverable},
            ),
            registry=metrics,
            is_operator=lambda _scope: False,
        )
    )
    agents = with_safe_headers(core.app)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in MONITORING_PATHS:
            note(ROUTE, scope["path"])
            await monitoring(scope, receive, send)
        else:
            await agents(scope, receive, send)

    return Watched(app, ())


def _connection_limits(settings: RelaySettings) -> ConnectionLimits:
    return ConnectionLimits(
        header_seconds=settings.header_timeout_seconds,
        body_seconds=settings.body_timeout_seconds,
        body_bytes_per_second=settings.min_body_bytes_per_second,
        write_seconds=settings.write_timeout_seconds,
        idle_seconds=settings.keep_alive_seconds,
        max_connections=allowed_connections(settings.max_connections),
        max_per_address=settings.max_connections_per_address,
        proxies=(),
    )


def _protocol(settings: RelaySettings, connections: Connections) -> Any:  # noqa: ANN401 - uvicorn's
    if settings.tls_certificate_file is None:
        return partial(BoundedProtocol, connections=connections)
    tls = ServerTLS(
        settings.tls_certificate_file,
        settings.tls_key_file,
        authorities_file=settings.authorities_file,
    )
    return partial(TLSHandshake, connections=connections, tls=tls.context)


@contextmanager
def _locked(settings: RelaySettings) -> Iterator[None]:
    """Prepare the data folder, and lock it: two relays on it would lose samples.

    Raises:
        ConfigurationError: it can't be written, or another relay runs on it.
    """
    folder = settings.data_dir
    try:
        make_private(folder)
        descriptor = os.open(folder / "relay.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        problem = (
            f"data_dir {folder} can't be written ({error.strerror}). Give it to the relay's user, "
            "or change it with VEDETTE_RELAY_DATA_DIR"
        )
        raise ConfigurationError([problem], source="The configuration") from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_to_lock(descriptor):
            if time.monotonic() >= deadline:
                problem = f"another relay runs on data_dir {folder}. Stop it first"
                raise ConfigurationError([problem], source="The configuration")
            time.sleep(LOCK_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
