"""`/healthz`, `/readyz` and `/metrics`, for supervisors, load balancers and Prometheus.

What reveals something is only for the networks in `monitoring_networks`, for programs with
`metrics_token`, and for operators.
"""

import hmac
from collections.abc import Callable

from anyio import CapacityLimiter, move_on_after, to_thread
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from access.errors import HANDLERS
from core.errors import ForbiddenError
from core.settings import ServerSettings
from serving.readiness import CHECK_SECONDS, Readiness
from serving.watched import address_is_within, peer_is_within

PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
RETRY_SECONDS = 5
HANGING_DATABASE = b"# TYPE vedette_database_up gauge\nvedette_database_up 0.0\n"
_FORWARDED = frozenset({b"x-forwarded-for", b"forwarded", b"x-real-ip", b"via"})


def create_monitoring_app(
    settings: ServerSettings,
    readiness: Readiness,
    *,
    registry: CollectorRegistry,
    is_operator: Callable[[Scope], bool],
) -> Starlette:
    """Return the application.

    Args:
        settings: who may read what.
        readiness: the checks of `/readyz`.
        registry: metrics of this application, beside those of the process.
        is_operator: whether a request has the credentials of an operator; called in a thread.
    """
    endpoints = _Endpoints(settings, readiness, registry, is_operator)
    routes = [
        Route("/healthz", endpoints.healthz, methods=["GET"]),
        Route("/readyz", endpoints.readyz, methods=["GET"]),
        Route("/metrics", endpoints.metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


class _Endpoints:
    def __init__(
        self,
        settings: ServerSettings,
        readiness: Readiness,
        registry: CollectorRegistry,
        is_operator: Callable[[Scope], bool],
    ) -> None:
        self._token = settings.metrics_token.encode()
        self._monitors = settings.monitors
        self._proxies = settings.proxy_networks
        self._readiness = readiness
        self._registry = registry
        self._is_operator = is_operator
        self._limiter = CapacityLimiter(1)

    async def healthz(self, _request: Request) -> Response:
        """Answer that the process is alive: it needs nothing else for that."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Answer whether the server can work, with 503 and the names of what it lacks if not."""
        report = await self._readiness.report()
        body: dict[str, object] = {
            "status": "not ready" if report.faults else "ready",
            "not_ready": sorted(report.faults),
            "warnings": sorted(report.warnings),
        }
        if (report.faults or report.warnings) and await self._may_read(request):
            body["details"] = {**report.faults, **report.warnings}
        if not report.faults:
            return JSONResponse(body)
        return JSONResponse(body, 503, {"Retry-After": str(RETRY_SECONDS)})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        if not await self._may_read(request):
            raise ForbiddenError(
                "Metrics are not public. Scrape them from an address in monitoring_networks, or "
                "with the metrics_token as 'Authorization: Bearer TOKEN'."
            )
        text = generate_latest(REGISTRY) + await self._metrics_of_database()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _metrics_of_database(self) -> bytes:
        """Return the metrics that are read, or that the database hangs: Prometheus waits 10 s."""
        with move_on_after(CHECK_SECONDS):
            return await to_thread.run_sync(
                generate_latest, self._registry, limiter=self._limiter, abandon_on_cancel=True
            )
        return HANGING_DATABASE

    async def _may_read(self, request: Request) -> bool:
        scope = request.scope
        if self._is_monitor(scope):
            return True
        has_credentials = bool({"authorization", "cookie"} & set(request.headers.keys()))
        return has_credentials and await to_thread.run_sync(self._is_operator, scope)

    def _is_monitor(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        is_bearer = scheme.lower() == b"bearer"
        if self._token and is_bearer and hmac.compare_digest(secret, self._token):
            return True
        # Behind a proxy that is not trusted, everybody would have its address.
        if _FORWARDED & headers.keys() and not peer_is_within(scope, self._proxies):
            return False
        client = scope.get("client")
        return client is not None and address_is_within(client[0], self._monitors)
