"""The ASGI application of a server, of the parts that it serves, and how uvicorn serves it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, cast

import uvicorn
from a2wsgi.wsgi_typing import WSGIApp
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from werkzeug.test import create_environ

from access.app import WRITE_PATH, create_access_app, is_for_agents
from access.database import Database
from access.datasets import create_user_app, is_for_users, route_of_user
from access.jobs.app import create_job_access_app, is_job_access, job_of_path, to_holder
from access.jobs.follow import create_follow_app, is_followed
from access.jobs.forwarding import HEADER as FORWARDED_HEADER
from access.jobs.forwarding import SCOPE_KEY
from access.jobs.web_ui import WebUI
from cli.backend import Backend
from cli.ca import write_authorities
from cli.monitoring import monitoring_app
from cli.serving_process import allowed_connections, bounded_config
from core.clock import Clock, utc_now
from core.db import transaction
from core.request_notes import ROUTE, note
from core.settings import secret_key
from jobqueue.logs.log_files import LogFiles
from jobqueue.services.web_ui import Proofs
from portal.app import create_portal
from portal.auth.guard import request_principal
from protocol.tunnel import TUNNEL_PATH
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from serving.monitoring import PATHS as MONITORING_PATHS
from serving.portal_requests import PortalRequests, PortalThreads
from serving.proxies import trust_proxies
from serving.safe_headers import with_safe_headers
from serving.tls import ServerTLS, TLSHandshake
from serving.watched import Begin, Watched
from tenants.principals import Principal


class ServerPart(StrEnum):
    """What a process serves or does; one may have all parts."""

    PORTAL = "portal"
    ACCESS = "access"
    SCHEDULER = "scheduler"


ALL_PARTS = frozenset(ServerPart)


POLICY_VIOLATION = 1008  # RFC 6455
Identify = Callable[[Scope], Principal | None]


@dataclass(frozen=True, slots=True)
class _Branch:
    """An application and the requests that are for it.

    Attributes:
        route_of: returns the route of a request for the metrics; None if the application notes it.
        begin: answers usual requests without the application.
    """

    is_for: Callable[[Scope], bool]
    app: ASGIApp
    route_of: Callable[[Scope], str] | None = None
    begin: Begin | None = None


def server_config(backend: Backend, *, parts: Collection[ServerPart] = ALL_PARTS) -> uvicorn.Config:
    """Return how uvicorn serves."""
    settings = backend.settings
    limits = ConnectionLimits.of(
        settings, max_connections=allowed_connections(settings.max_connections)
    )
    return bounded_config(
        create_asgi_app(backend, parts=parts),
        host=settings.host,
        port=settings.port,
        limits=limits,
        http=_protocol(backend, Connections(limits, draining=backend.draining)),
        drain_seconds=settings.drain_seconds,
    )


def create_asgi_app(
    backend: Backend, *, parts: Collection[ServerPart] = ALL_PARTS, clock: Clock = utc_now
) -> ASGIApp:
    """Return the app of the parts; host and path decide which answers."""
    settings = backend.settings
    access = create_access_app(
        settings=settings,
        sessions=backend.sessions,
        store=backend.store,
        clock=clock,
        limits=backend.limits,
    )
    flask = None
    if ServerPart.PORTAL in parts:
        flask = create_portal(
            settings,
            sessions=backend.sessions,
            store=backend.store,
            clock=clock,
            sightings=backend.sightings,
            limits=backend.limits,
        )
    identify = partial(_principal, flask)
    monitoring = with_safe_headers(monitoring_app(backend, identify=identify, clock=clock))
    branches = [
        _Branch(lambda scope: scope["path"] in MONITORING_PATHS, monitoring, _path),
        *_agent_branches(access, parts),
    ]
    if flask is not None:
        branches = [
            *_job_branches(backend, access, identify=identify, clock=clock),
            *branches,
            _follow_branch(backend, identify=identify, clock=clock),
            _upload_branch(backend, identify=identify, clock=clock),
            _portal_branch(flask, identify=identify, threads=settings.portal_threads),
        ]
    networks = settings.proxy_networks
    app = access.state.forwarder.trusting(_app_of(branches))
    return Watched(
        trust_proxies(app, networks),
        networks,
        begin=partial(_begin, branches),
        begun_paths={WRITE_PATH},
    )


def _begin(
    branches: Collection[_Branch], scope: Scope, body: bytes, on_done: Callable[[bool], None]
) -> bool:
    """Let the branch that a request is for answer at once; see `Begin`."""
    if any(name == FORWARDED_HEADER for name, _ in scope["headers"]):
        return False
    branch = next((branch for branch in branches if branch.is_for(scope)), None)
    return branch is not None and branch.begin is not None and branch.begin(scope, body, on_done)


def _app_of(branches: Collection[_Branch]) -> ASGIApp:
    """Return the app that lets the first branch answer that a request is for."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for branch in branches:
            if branch.is_for(scope):
                if branch.route_of is not None:
                    note(ROUTE, branch.route_of(scope))
                await branch.app(scope, receive, send)
                return
        await _elsewhere(scope, receive, send)

    return app


async def _elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer requests for parts that this process does not serve."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    message = (
        "This process does not serve that part of the portal. Use the public URL, or correct the "
        "load balancer: docs/operating.md, 'Several processes'."
    )
    response = JSONResponse({"code": "not_found", "status": 404, "message": message}, 404)
    await with_safe_headers(response)(scope, receive, send)


def _agent_branches(access: Starlette, parts: Collection[ServerPart]) -> list[_Branch]:
    """Return the agent API; without that part, only for tunnels that other processes forward."""
    routes = [route for route in access.routes if isinstance(route, Route)]
    paths = {route.path for route in routes}
    with_parameters = [route for route in routes if "{" in route.path]

    def is_for_agent(scope: Scope) -> bool:
        return scope["type"] == "websocket" or is_for_agents(scope["path"])

    def is_forwarded_tunnel(scope: Scope) -> bool:
        return scope["path"] == TUNNEL_PATH and SCOPE_KEY in scope

    def route_of(scope: Scope) -> str:
        path = _path(scope)
        if path in paths:
            return path
        return next((route.path for route in with_parameters if route.path_regex.match(path)), "")

    served = with_safe_headers(access)
    if ServerPart.ACCESS in parts:
        return [_Branch(is_for_agent, served, route_of, access.state.begin)]
    return [_Branch(is_forwarded_tunnel, served, route_of), _Branch(is_for_agent, _elsewhere)]


def _job_branches(
    backend: Backend, access: Starlette, *, identify: Identify, clock: Clock
) -> list[_Branch]:
    """Return the web pages of jobs, and their terminals and files."""
    settings, database = backend.settings, Database(backend.sessions, clock=clock)
    tunnels, forwarder = access.state.tunnels, access.state.forwarder
    web_ui = WebUI(
        portal_url=settings.resolved_public_url,
        domain=settings.resolved_job_domain,
        proofs=Proofs(secret_key(settings)),
        database=database,
        tunnels=tunnels,
        clock=clock,
    )
    pages = to_holder(web_ui, job_of=web_ui.job_of, tunnels=tunnels, forwarder=forwarder)
    sessions = with_safe_headers(
        create_job_access_app(
            database,
            tunnels,
            identify=identify,
            settings=settings,
            clock=clock,
            limits=backend.limits,
        )
    )
    sessions = to_holder(sessions, job_of=job_of_path, tunnels=tunnels, forwarder=forwarder)
    return [
        _Branch(web_ui.is_for_job, pages, lambda _scope: "web page of a job"),
        _Branch(lambda scope: is_job_access(scope["path"]), sessions, _route_of_job),
    ]


def _follow_branch(backend: Backend, *, identify: Identify, clock: Clock) -> _Branch:
    files = LogFiles(backend.settings.resolved_log_url)
    follow = create_follow_app(Database(backend.sessions, clock=clock), files, identify=identify)
    return _Branch(
        lambda scope: is_followed(scope["path"]), with_safe_headers(follow), _route_of_job
    )


def _upload_branch(backend: Backend, *, identify: Identify, clock: Clock) -> _Branch:
    """Return uploads and downloads of datasets."""
    database = Database(backend.sessions, clock=clock)
    app = create_user_app(backend.settings, database, identify=identify, clock=clock)
    return _Branch(lambda scope: is_for_users(scope["path"]), with_safe_headers(app), route_of_user)


def _portal_branch(flask: Flask, *, identify: Identify, threads: int) -> _Branch:
    """Return the portal, which takes what no other branch does."""
    # a2wsgi has its own types for WSGI and ASGI.
    portal = PortalRequests(
        cast("ASGIApp", PortalThreads(cast("WSGIApp", flask), workers=threads)),
        is_signed_in=lambda scope: identify(scope) is not None,
        threads=threads,
    )
    return _Branch(lambda scope: scope["type"] == "http", portal)


def _path(scope: Scope) -> str:
    return str(scope["path"])


def _route_of_job(scope: Scope) -> str:
    return f"/api/v1/jobs/<job_id>/{scope['path'].rpartition('/')[2]}"


def _principal(flask: Flask | None, scope: Scope) -> Principal | None:
    if flask is None:
        return None
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
