"""The agent API as an ASGI application: ingest, desired state, transfers and health."""

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from access.access_points import AccessPointLists
from access.agents import AgentEndpoints
from access.database import Database
from access.datasets import AgentDatasets
from access.errors import HANDLERS, error_response, on_bug, on_vedette_error
from access.identity.auth import Authenticator, AuthFailureLimiter
from access.ingest.collectd import CollectdEndpoint
from access.ingest.gateway import Gateway
from access.ingest.hosts import Hosts
from access.ingest.influx import InfluxEndpoints
from access.ingest.job_tags import JobTags
from access.ingest.late_samples import LateNotes
from access.ingest.prometheus.otlp import METRICS_PATH, OTLPEndpoint
from access.ingest.prometheus.remote_write import WRITE_PATH as REMOTE_WRITE_PATH
from access.ingest.prometheus.remote_write import RemoteWriteEndpoint
from access.ingest.quotas import QuotaCache
from access.ingest.receiver import Receiver
from access.ingest.rejection_notes import RejectionNotes
from access.jobs.forwarding import Forwarder
from access.jobs.tunnels import Tunnels
from access.longpoll import ChangeWatch, generation_reader
from access.part_transfers import PartTransfers
from access.probes import probe_database, probe_store, probe_writing
from access.relays.admission import admit_relay, has_relay_token
from access.relays.endpoints import RelayEndpoints
from access.relays.snapshots import Snapshots
from access.relays.writes import RelayedWriteStore
from access.results import ResultEndpoints
from access.transfer import TransferEndpoints
from core.advertised_ca import advertised_ca
from core.changes import Topic
from core.clock import Clock, utc_now
from core.db import SessionFactory
from core.errors import VedetteError
from core.quantities import format_duration
from core.secretbox import SecretBox
from core.settings import ServerSettings, secret_key
from core.shared_limits import SharedLimits
from datasets.parts import PartStore
from jobqueue.images.tokens import RegistryTokens
from logs.ingest import LineRates
from protocol.relays import PREFIX as RELAY_PREFIX
from protocol.tunnel import TUNNEL_PATH
from tenants.pki.certificates import Issuer
from timeseries.store import Store, damage_notice
from timeseries.store_url import parse_store_url

HEALTH_SECONDS = 1.0
PEM_TYPE = "application/pem-certificate-chain"
WRITE_PATH = "/api/v2/write"
_PREFIXES = ("/api/v2/", "/agent/v1/", RELAY_PREFIX)
_REFUSED = 1008  # policy violation, RFC 6455
_PATHS = frozenset(
    {
        "/health",
        "/ready",
        "/write",
        "/ping",
        "/query",
        "/collectd",
        REMOTE_WRITE_PATH,
        METRICS_PATH,
    }
)


def create_access_app(
    *,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    clock: Clock = utc_now,
    limits: SharedLimits | None = None,
) -> Starlette:
    """Return the application. It needs no lifespan.

    `state.watch` counts its long polls, `state.tunnels` leads to appliances, and
    `state.forwarder` to other processes of the portal. `state.begin` answers a usual post to
    `WRITE_PATH` without ASGI (`serving.watched.Begin`).
    """
    limits = limits or SharedLimits()
    database = Database(sessions, clock=clock)
    authenticator = Authenticator(
        database,
        clock=clock,
        proxy_secret=settings.proxy_secret,
        needs_certificate=settings.require_client_certificate,
        failures=AuthFailureLimiter(
            limits.rate(
                "authentication failures by address", settings.auth_failures_per_second_per_address
            )
        ),
    )
    watch = ChangeWatch(generation_reader(database), database.changes, Topic.DESIRED)
    quotas = QuotaCache(database, clock=clock)
    gateway = Gateway(
        store,
        settings=settings,
        clock=clock,
        quotas=quotas,
        late_notes=LateNotes(database, clock=clock),
        job_tags=JobTags(database, clock=clock),
        rejections=RejectionNotes(database, clock=clock),
        points=limits.rate("points by tenant", settings.max_points_per_second_per_tenant),
    )
    max_bytes = settings.max_body_bytes
    receiver = Receiver(gateway, Hosts(database, clock=clock))
    influx = InfluxEndpoints(authenticator, gateway, receiver, max_body_bytes=max_bytes)
    collectd = CollectdEndpoint(authenticator, receiver, clock=clock, max_body_bytes=max_bytes)
    remote_write = RemoteWriteEndpoint(authenticator, receiver, max_body_bytes=max_bytes)
    otlp = OTLPEndpoint(authenticator, receiver, max_body_bytes=max_bytes)
    public = PublicEndpoints(settings, sessions, store, clock=clock)
    transfer = TransferEndpoints(authenticator)
    transfers = PartTransfers(database, PartStore(settings), clock)
    datasets = AgentDatasets(authenticator, database, transfers, clock)
    url = settings.resolved_internal_url
    forwarder = Forwarder(url, secret=secret_key(settings), tls=internal_tls(settings))
    tunnels = Tunnels(database, authenticator, forwarder)
    agents = AgentEndpoints(
        authenticator,
        database,
        watch,
        issuer=issuer_of(settings),
        box=SecretBox.of(settings),
        registry_tokens=RegistryTokens(settings),
        certificate_replaces_secret=settings.require_client_certificate,
        max_log_bytes=settings.max_log_bytes_per_job,
        line_rates=LineRates(
            of_appliance=limits.rate(
                "log bytes by appliance", settings.max_log_bytes_per_second_per_appliance
            ),
            of_tenant=limits.rate(
                "log bytes by tenant", settings.max_log_bytes_per_second_per_tenant
            ),
        ),
        access_points=AccessPointLists(database, public_url=settings.resolved_public_url),
        clock=clock,
    )
    results = ResultEndpoints(authenticator, database, box=SecretBox.of(settings), clock=clock)
    relays = RelayEndpoints(
        authenticator,
        database,
        watch,
        snapshots=Snapshots(
            database, needs_certificate=settings.require_client_certificate, clock=clock
        ),
        store=RelayedWriteStore(authenticator, gateway, max_body_bytes=max_bytes),
        clock=clock,
    )
    # In the order of their frequency: the router tries one after the other.
    routes = [
        Route(WRITE_PATH, influx.write_v2, methods=["POST"]),
        Route("/agent/v1/desired", agents.desired, methods=["GET"]),
        Route("/agent/v1/heartbeat", agents.heartbeat, methods=["POST"]),
        Route("/agent/v1/observed", agents.observed, methods=["POST"]),
        Route("/agent/v1/datasets", datasets.report, methods=["POST"]),
        Route("/agent/v1/storage", agents.storage, methods=["POST"]),
        Route("/agent/v1/logs", agents.logs, methods=["POST"]),
        Route("/agent/v1/results", results.announce, methods=["POST"]),
        Route("/agent/v1/results/{attempt_id}", results.stored, methods=["GET"]),
        Route("/agent/v1/results/{attempt_id}/parts/{sha256}", results.source, methods=["GET"]),
        Route("/agent/v1/lines", agents.lines, methods=["POST"]),
        Route("/agent/v1/parts/{sha256}", datasets.part, methods=["GET"]),
        Route("/agent/v1/parts/{sha256}", datasets.put_part, methods=["PUT"]),
        Route("/agent/v1/datasets/{version_id}/pages/{sha256}", datasets.page, methods=["GET"]),
        Route("/agent/v1/datasets/{version_id}/pages/{sha256}", datasets.put_page, methods=["PUT"]),
        Route("/agent/v1/datasets/{version_id}/head", datasets.head, methods=["GET"]),
        Route("/agent/v1/datasets/{version_id}/head", datasets.put_head, methods=["POST"]),
        Route("/agent/v1/transfer", transfer.download, methods=["GET"]),
        Route("/agent/v1/transfer", transfer.upload, methods=["POST"]),
        Route("/agent/v1/certificate", agents.certificate, methods=["POST"]),
        Route("/agent/v1/enroll", agents.enroll, methods=["POST"]),
        Route("/agent/v1/authority", public.authority, methods=["GET"]),
        Route("/relay/v1/samples", relays.samples, methods=["POST"]),
        Route("/relay/v1/changes", relays.changes, methods=["POST"]),
        Route("/relay/v1/registry", relays.registry, methods=["GET"]),
        Route("/relay/v1/report", relays.report, methods=["POST"]),
        Route(REMOTE_WRITE_PATH, remote_write.write, methods=["POST"]),
        Route(METRICS_PATH, otlp.write, methods=["POST"]),
        Route("/collectd", collectd.write, methods=["POST"]),
        Route("/write", influx.write_v1, methods=["POST"]),
        Route("/ping", influx.ping, methods=["GET"]),
        Route("/query", influx.query, methods=["GET", "POST"]),
        Route("/health", public.health, methods=["GET"]),
        Route("/ready", public.ready, methods=["GET"]),
        WebSocketRoute(TUNNEL_PATH, tunnels.serve),
    ]
    app = _AgentAPI(routes, influx, authenticator)
    app.state.begin = app.begin
    app.state.watch = watch
    app.state.tunnels = tunnels
    app.state.forwarder = forwarder
    return app


class _AgentAPI(Starlette):
    """Starlette, but not for writes: router and middleware took a tenth of the event loop's time.

    See docs/decisions/0007-agent-api.md.
    """

    def __init__(
        self, routes: Sequence[BaseRoute], influx: InfluxEndpoints, authenticator: Authenticator
    ) -> None:
        super().__init__(routes=routes, exception_handlers=HANDLERS)
        self._influx = influx
        self._authenticator = authenticator

    def begin(self, scope: Scope, body: bytes, on_done: Callable[[bool], None]) -> bool:
        """Begin to store the body of a usual post; see `InfluxEndpoints.begin_v2`."""
        is_write = scope["path"] == WRITE_PATH and not has_relay_token(scope)
        return is_write and self._influx.begin_v2(scope, body, on_done)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, which a relay may have passed on."""
        if has_relay_token(scope):
            try:
                await admit_relay(scope, self._authenticator)
            except VedetteError as error:
                await _refuse(error, scope, receive, send)
                return
        is_write = scope.get("path") == WRITE_PATH and scope.get("method") == "POST"
        if not is_write:
            await super().__call__(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._influx.write_v2(request)
        except Exception as error:
            handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
            response = await handler(request, error)
            if handler is on_bug:
                await response(scope, receive, send)
                raise
        await response(scope, receive, send)


async def _refuse(error: VedetteError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _REFUSED, "reason": error.message[:100]})
        return
    response = await on_vedette_error(Request(scope, receive), error)
    await response(scope, receive, send)


def is_for_agents(path: str) -> bool:
    """Return whether a path belongs to the agent API; all others belong to the portal."""
    return path.startswith(_PREFIXES) or path in _PATHS


def internal_tls(settings: ServerSettings) -> ssl.SSLContext | None:
    """Return how other processes of the portal are verified, None where they have no TLS."""
    if not settings.resolved_internal_url.startswith("https:"):
        return None
    context = ssl.create_default_context()
    if settings.tls_authority_file is not None:
        context.load_verify_locations(settings.tls_authority_file)
    return context


def issuer_of(settings: ServerSettings) -> Issuer:
    """Return the issuer of agents' certificates."""
    lifetime = timedelta(seconds=settings.certificate_lifetime_seconds)
    return Issuer(SecretBox.of(settings), lifetime)


class PublicEndpoints:
    """Endpoints without authentication."""

    def __init__(
        self, settings: ServerSettings, sessions: SessionFactory, store: Store, *, clock: Clock
    ) -> None:
        self._settings = settings
        store_file = parse_store_url(settings.resolved_timeseries_url).file
        self._folders = {settings.data_dir, *([store_file.parent] if store_file else [])}
        self._clock = clock
        self._started_at = clock()
        self._sessions = sessions
        self._store = store
        self._checking = asyncio.Lock()
        self._checked_at = -math.inf
        self._problem: Exception | None = None

    async def health(self, _request: Request) -> Response:
        """Answer as InfluxDB 2 if all that is needed can be written; else an error is 503."""
        await self._require_health()
        message = "ready"
        if damage_notice(self._store):
            message = "ready; the sample store is damaged: see `vedette store repair`"
        return JSONResponse({"name": "vedette", "message": message, "status": "pass"})

    async def ready(self, _request: Request) -> Response:
        """Answer as InfluxDB 2 whether writes and queries are possible; else an error is 503."""
        await self._require_health()
        seconds = (self._clock() - self._started_at).total_seconds()
        up = format_duration(seconds).replace(" ", "")
        return JSONResponse({"status": "ready", "started": self._started_at.isoformat(), "up": up})

    async def _require_health(self) -> None:
        """Raise what is wrong with the disk, the database or the store.

        Anybody may ask, as often as they like: one check at a time is made, and holds for a second.
        """
        async with self._checking:
            if time.monotonic() >= self._checked_at + HEALTH_SECONDS:
                self._problem = await self._check()
                self._checked_at = time.monotonic()
        if self._problem is not None:
            raise self._problem.with_traceback(None)

    async def _check(self) -> Exception | None:
        probes = (
            *(partial(probe_writing, folder) for folder in self._folders),
            partial(probe_database, self._sessions, now=self._clock()),
            partial(probe_store, self._store),
        )
        try:
            for probe in probes:
                await to_thread.run_sync(probe)
        except Exception as error:  # noqa: BLE001 - raised again for everybody who asks
            return error
        return None

    async def authority(self, request: Request) -> Response:
        """Return the CA certificate of the portal (PEM); agents compare it with a SHA-256."""
        authority = advertised_ca(self._settings)
        if authority is not None:
            return PlainTextResponse(authority.pem, media_type=PEM_TYPE)
        return error_response(
            request,
            code="not_found",
            status=404,
            message="This portal has no private CA: its certificate is publicly trusted, or it has "
            "none. Enroll without --ca-sha256.",
        )
