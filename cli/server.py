"""`vedette server`: portal, agent API and scheduler in one process.

The composition root of the server: settings become a database, a store, an ASGI app and loops.
"""

import ctypes
import gc
import logging
import math
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import click
import uvicorn
from a2wsgi.wsgi_typing import WSGIApp
from flask import Flask
from prometheus_client import disable_created_metrics
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from werkzeug.test import create_environ

from access.app import create_access_app, is_for_agents
from access.database import Database
from access.jobs.app import create_job_access_app, is_job_access, job_of_path
from access.jobs.follow import create_follow_app, is_followed
from access.jobs.holder_routing import to_holder
from access.jobs.web_ui import WebUI
from cli.backend import Backend
from cli.ca import write_authorities
from cli.database import open_database, prepare_data_dir
from cli.listen_address import check_port
from cli.monitoring import monitoring_app
from cli.server_check import check
from cli.server_checks import require_startup
from cli.server_init import init
from cli.supervision import stop_with_parent
from core.clock import Clock, utc_now
from core.db import transaction
from core.logs import RepeatFilter, configure_logging
from core.request_notes import ROUTE, note
from core.settings import ServerSettings, load_server_settings, secret_key
from core.structs import describe_structs
from jobqueue.logs.log_files import LogFiles
from jobqueue.services.web_ui import Proofs
from portal.app import create_portal
from portal.auth.guard import request_principal
from scheduler.loops import Scheduler
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from serving.monitoring import PATHS as MONITORING_PATHS
from serving.portal_requests import PortalRequests, PortalThreads
from serving.proxies import trust_proxies
from serving.safe_headers import with_safe_headers
from serving.tls import ServerTLS, TLSHandshake
from serving.watched import Watched
from tenants.principals import Principal
from tenants.users.sightings import Sightings
from timeseries.open_store import open_store
from timeseries.store import Store, StoreUnavailableError, check_store
from timeseries.timed_store import timed

log = logging.getLogger(__name__)

# How long a thread runs before another one gets the interpreter. With the default of 5 ms, each
# system call of the event loop may take as long while other threads compute.
SWITCH_SECONDS = 0.0005
# Files and connections to databases need descriptors, too.
RESERVED_DESCRIPTORS = 512
# Long polls and tunnels are cut after this at shutdown.
SHUTDOWN_SECONDS = 2
ACCEPTED_AT_ONCE = 8
WAITING_CONNECTIONS = 2_048
M_ARENA_MAX = -8  # of malloc.h
# Everybody waits for a collection, whose time grows with the product of the first two.
GC_THRESHOLDS = (2_000, 5, 100)


@click.group(invoke_without_command=True)
@click.pass_context
def server(context: click.Context) -> None:
    """Run portal, agent API and scheduler in one process.

    Settings come from VEDETTE_* variables, then from the file named by VEDETTE_CONFIG, which is
    /etc/vedette/server.env unless set.
    """
    if context.invoked_subcommand is not None:
        return
    settings = load_server_settings()
    configure_logging(settings.log_level, process="server", log_format=settings.log_format)
    stop_with_parent()
    check_port(settings.host, settings.port)
    prepare_data_dir(settings.data_dir)
    for problem in require_startup(settings):
        log.warning("%s %s", problem.cause, problem.remedy)
    run_server(settings)


server.add_command(init)
server.add_command(check)


class _Server(uvicorn.Server):
    """Accepts few connections at a time, so that those of one client don't delay all others.

    asyncio takes the backlog for both: how many it accepts before anything else is served, and how
    many wait in the kernel.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in (listener for server in self.servers for listener in server.sockets):
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as same:
                same.listen(WAITING_CONNECTIONS)


def run_server(settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM, then stop the loops and close database and store."""
    limit_malloc_arenas()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with _open_backend(settings) as backend:
        describe_structs()
        scheduler = Scheduler(settings, sessions=backend.sessions, store=backend.store)
        config = server_config(backend)
        # Objects that live as long as the process need no garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        # Any client can make uvicorn log a line for each of its requests.
        logging.getLogger("uvicorn.error").addFilter(RepeatFilter())
        scheduler.start()
        try:
            log.info("serving %s", settings.resolved_public_url)
            with backend.sightings.written_in_background():
                _Server(config).run()
        finally:
            scheduler.stop()


def server_config(backend: Backend) -> uvicorn.Config:
    """Return how uvicorn serves."""
    settings = backend.settings
    limits = ConnectionLimits.of(settings, max_connections=allowed_connections(settings))
    return uvicorn.Config(
        create_asgi_app(backend),
        host=settings.host,
        port=settings.port,
        interface="asgi3",
        lifespan="off",
        proxy_headers=False,  # see trust_proxies
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=math.ceil(settings.keep_alive_seconds),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        http=_protocol(backend, Connections(limits)),
        backlog=ACCEPTED_AT_ONCE,
    )


def create_asgi_app(backend: Backend, *, clock: Clock = utc_now) -> ASGIApp:
    """Return the agent API and the portal as one app; the path decides."""
    settings, sessions, store = backend.settings, backend.sessions, backend.store
    access = create_access_app(settings=settings, sessions=sessions, store=store, clock=clock)
    flask = create_portal(
        settings, sessions=sessions, store=store, clock=clock, sightings=backend.sightings
    )
    # a2wsgi has its own types for WSGI and ASGI.
    threads = PortalThreads(cast("WSGIApp", flask), workers=settings.portal_threads)
    identify = partial(_principal, flask)
    portal = PortalRequests(
        cast("ASGIApp", threads),
        is_signed_in=lambda scope: identify(scope) is not None,
        threads=settings.portal_threads,
    )
    files = LogFiles(settings.resolved_log_url)
    follow = create_follow_app(Database(sessions, clock=clock), files, identify=identify)
    job_access = create_job_access_app(
        Database(sessions, clock=clock),
        access.state.tunnels,
        identify=identify,
        settings=settings,
        clock=clock,
    )

    web_ui = WebUI(
        portal_url=settings.resolved_public_url,
        domain=settings.resolved_job_domain,
        proofs=Proofs(secret_key(settings)),
        database=Database(sessions, clock=clock),
        tunnels=access.state.tunnels,
        clock=clock,
    )

    access_api, follow_api = map(with_safe_headers, (access, follow))
    tunnels, forwarder = access.state.tunnels, access.state.forwarder
    sessions_api = to_holder(
        with_safe_headers(job_access), job_of=job_of_path, tunnels=tunnels, forwarder=forwarder
    )
    job_pages = to_holder(web_ui, job_of=web_ui.job_of, tunnels=tunnels, forwarder=forwarder)
    agent_paths = {route.path for route in access.routes if isinstance(route, Route)}

    monitoring = with_safe_headers(monitoring_app(backend, identify=identify, clock=clock))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if web_ui.is_for_job(scope):
            note(ROUTE, "web page of a job")
            await job_pages(scope, receive, send)
        elif is_job_access(path):
            note(ROUTE, f"/api/v1/jobs/<job_id>/{path.rpartition('/')[2]}")
            await sessions_api(scope, receive, send)
        elif path in MONITORING_PATHS:
            note(ROUTE, path)
            await monitoring(scope, receive, send)
        elif scope["type"] != "http" or is_for_agents(path):
            note(ROUTE, path if path in agent_paths else "")
            await access_api(scope, receive, send)
        elif is_followed(path):
            note(ROUTE, "/api/v1/jobs/<job_id>/follow")
            await follow_api(scope, receive, send)
        else:
            await portal(scope, receive, send)

    networks = settings.proxy_networks
    return Watched(trust_proxies(forwarder.trusting(app), networks), networks)


def limit_malloc_arenas() -> None:
    """Let all threads share two of glibc's arenas: it makes 8 per core, and each keeps free memory.

    Without effect under another C library.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


@contextmanager
def _open_backend(settings: ServerSettings) -> Iterator[Backend]:
    """Open the database (migrated to the newest revision) and the store; close both at the end."""
    with open_database(settings, may_create=True) as (_engine, sessions):
        store = open_store(
            settings.resolved_timeseries_url,
            memory_mib=settings.store_memory_mib,
            threads=settings.store_threads,
            cache_mib=settings.store_cache_mib,
        )
        try:
            _warn_if_unavailable(store)
            yield Backend(settings, sessions, timed(store), Sightings(sessions))
        finally:
            store.close()


def _warn_if_unavailable(store: Store) -> None:
    # A server that stores the time series may start later.
    try:
        check_store(store)
    except StoreUnavailableError as error:
        log.warning("/health is 503 until the store answers: %s", error.message)


def allowed_connections(settings: ServerSettings) -> int:
    """Return `max_connections`, or fewer if the system does not allow the process as many."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = max(1, hard - RESERVED_DESCRIPTORS)
    if hard == resource.RLIM_INFINITY or allowed >= settings.max_connections:
        return settings.max_connections
    log.warning(
        "max_connections is %d, but the process may open only %d files: using %d. "
        "Raise its limit (ulimit -n, LimitNOFILE)",
        settings.max_connections,
        hard,
        allowed,
    )
    return allowed


def _principal(flask: Flask, scope: Scope) -> Principal | None:
    headers = [(name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]]
    address = scope["client"][0] if scope.get("client") else ""
    environ = create_environ(headers=headers, environ_base={"REMOTE_ADDR": address})
    with flask.request_context(environ):
        return request_principal()


def _protocol(backend: Backend, connections: Connections) -> Any:  # noqa: ANN401 - uvicorn's
    """Return what creates the protocol of a connection, with TLS if there is a certificate."""
    settings = backend.settings
    if settings.tls_certificate_file is None:
        return partial(BoundedProtocol, connections=connections)
    with transaction(backend.sessions) as session:
        authorities = write_authorities(session, settings)
    tls = ServerTLS(
        settings.tls_certificate_file, settings.tls_key_file, authorities_file=authorities
    )
    return partial(TLSHandshake, connections=connections, tls=tls.context)
