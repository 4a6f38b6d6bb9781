"""The agents' door as an ASGI application: ingest gateway and desired state."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from access.agents import AgentEndpoints
from access.auth import Authenticator
from access.authority import AuthorityEndpoint
from access.collectd import CollectdEndpoint
from access.database import Database
from access.errors import HANDLERS
from access.gateway import Gateway
from access.health import HealthEndpoint
from access.hot import Hot
from access.influx_v1 import InfluxV1Endpoints
from access.longpoll import GenerationWatch, generation_reader
from access.quotas import QuotaKeeper
from access.refusals import Refusals
from access.transfer import TransferEndpoints
from access.write import WriteEndpoint
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.secretbox import SecretBox
from core.settings import ServerSettings
from tenants.entry.certificates import Issuer
from timeseries.store import Store

_PREFIXES = ("/api/v2/", "/agent/v1/")
_PATHS = frozenset({"/health", "/write", "/ping", "/query", "/collectd"})


class AccessApp:
    """Starlette, but for the address that nearly every request is for.

    Attributes:
        paths: every address that is answered, with `{}` around what varies in it.
        watch: whom long polls wait for.
    """

    def __init__(
        self, routes: Sequence[Route], *, posts: Mapping[str, ASGIApp], watch: GenerationWatch
    ) -> None:
        self._app = Starlette(routes=routes, exception_handlers=HANDLERS)
        self._posts = posts
        self.paths = frozenset(route.path for route in routes)
        self.watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        app: ASGIApp = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._posts.get(scope["path"], app)
        await app(scope, receive, send)


def create_access_app(
    *, settings: ServerSettings, sessions: SessionFactory, store: Store, clock: Clock = utc_now
) -> AccessApp:
    """Return the application; it needs no lifespan and can stand behind another one."""
    database = Database(sessions, clock=clock)
    authenticator = Authenticator(
        database,
        clock=clock,
        proxy_secret=settings.proxy_secret,
        needs_certificate=settings.require_client_certificate,
        refusals=Refusals(settings.refusals_per_second_per_address),
    )
    watch = GenerationWatch(generation_reader(database))
    quotas = QuotaKeeper(database, clock=clock)
    gateway = Gateway(store, settings=settings, clock=clock, quotas=quotas)
    most = settings.max_body_bytes
    write = WriteEndpoint(authenticator, gateway, max_body_bytes=most)
    v1 = InfluxV1Endpoints(authenticator, gateway, max_body_bytes=most)
    collectd = CollectdEndpoint(authenticator, gateway, clock=clock, max_body_bytes=most)
    health = HealthEndpoint(database, store)
    agents = AgentEndpoints(
        authenticator,
        database,
        watch,
        issuer=issuer_of(settings),
        is_certificate_enough=settings.require_client_certificate,
        clock=clock,
    )
    routes = [
        Route("/health", health.health, methods=["GET"]),
        Route("/api/v2/write", Hot(write.write), methods=["POST"]),
        Route("/write", v1.write, methods=["POST"]),
        Route("/ping", v1.ping, methods=["GET"]),
        Route("/query", v1.query, methods=["GET", "POST"]),
        Route("/collectd", collectd.write, methods=["POST"]),
        Route("/agent/v1/authority", AuthorityEndpoint(settings).show, methods=["GET"]),
        *_agent_routes(authenticator, agents),
    ]
    return AccessApp(routes, posts={"/api/v2/write": Hot(write.write)}, watch=watch)


def is_for_agents(path: str) -> bool:
    """Return whether this door answers a path; people get the rest."""
    return path.startswith(_PREFIXES) or path in _PATHS


def issuer_of(settings: ServerSettings) -> Issuer:
    """Return what signs agents' certificates."""
    lifetime = timedelta(seconds=settings.certificate_lifetime_seconds)
    return Issuer(SecretBox.of(settings), lifetime)


def _agent_routes(authenticator: Authenticator, agents: AgentEndpoints) -> list[Route]:
    transfer = TransferEndpoints(authenticator)
    return [
        Route("/agent/v1/enroll", agents.enroll, methods=["POST"]),
        Route("/agent/v1/certificate", agents.certificate, methods=["POST"]),
        Route("/agent/v1/heartbeat", agents.heartbeat, methods=["POST"]),
        Route("/agent/v1/desired", agents.desired, methods=["GET"]),
        Route("/agent/v1/observed", agents.observed, methods=["POST"]),
        Route("/agent/v1/attempts/{attempt_id}/log", agents.log, methods=["POST"]),
        Route("/agent/v1/transfer", transfer.download, methods=["GET"]),
        Route("/agent/v1/transfer", transfer.upload, methods=["POST"]),
    ]
