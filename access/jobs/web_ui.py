"""Web pages of jobs: HTTP and WebSocket to a port of a job, on an origin of its own.

    ID-PORT.DOMAIN/.vedette/enter?ticket=...   sets the pass as a cookie
    ID-PORT.DOMAIN/...                         is the job's own server

An origin of its own keeps a job's scripts from acting as the user in the portal. Requests of other
origins' pages are refused (`access.jobs.other_sites`). The job never sees the pass, and can't set
cookies for other jobs' origins (`access.jobs.web_ui_headers`). Programs send an API token instead.

The address of a service that scales leads to the instance with the fewest requests of this process.
A request wakes one that sleeps: a page reloads until it serves, a program's request waits for it.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import unix_connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from access.database import Database
from access.jobs.forwarding import INSTANCE_KEY, while_connected
from access.jobs.other_sites import refuse_other_sites
from access.jobs.proxying import (
    GOING_AWAY,
    MAX_MESSAGE_BYTES,
    OPEN_SECONDS,
    RESPONSE_SECONDS,
    TRY_AGAIN,
    close_quietly,
    handshake_headers,
    splice,
    target_path,
)
from access.jobs.services import STARTING_SECONDS, Instances, Sleepers, StartingError
from access.jobs.traffic import TrafficCounter
from access.jobs.tunnels import Tunnel, Tunnels
from access.jobs.web_ui_headers import (
    TOKEN_HEADER,
    cookie_values,
    host_of,
    request_headers,
    response_headers,
)
from access.jobs.web_ui_rights import WebUIRights
from core.clock import Clock
from core.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    VedetteError,
)
from core.rate_limits import ConcurrencyLimit
from jobqueue.services.web_ui import (
    PASS_SECONDS,
    TOKEN_PREFIX,
    Proof,
    Proofs,
    Target,
    spend_ticket,
)

if TYPE_CHECKING:
    import httpx

ENTER_PATH = "/.vedette/enter"
MAX_CONCURRENT_PER_USER = 128
CONNECT_SECONDS = 15.0
_TIMEOUT = dict.fromkeys(("read", "write"), RESPONSE_SECONDS) | {"connect": CONNECT_SECONDS}
RETRY_SECONDS = 5
# A port has one notation, and so one origin.
_LABEL = re.compile(r"([0-9a-f-]{36})-([1-9][0-9]{0,4})")
_POLICY = 1008


class WebUI:
    """ASGI application of all origins of jobs.

    Args:
        portal_url: of the portal, where users sign in.
        domain: the origins are its subdomains.
        proofs: verifies tickets and passes.
        database: has sessions and jobs.
        tunnels: lead to the appliances.
        clock: the time.
    """

    def __init__(
        self,
        *,
        portal_url: str,
        domain: str,
        proofs: Proofs,
        database: Database,
        tunnels: Tunnels,
        clock: Clock,
    ) -> None:
        self._portal_url = portal_url
        self._suffix = f".{domain}"
        self._is_https = portal_url.startswith("https:")
        self._cookie = "__Host-vedette-job" if self._is_https else "vedette-job"
        self._proofs = proofs
        self._database = database
        self._clock = clock
        self._rights = WebUIRights(database, clock=clock)
        self._tunnels = tunnels
        self._running = ConcurrencyLimit(MAX_CONCURRENT_PER_USER)
        self._instances = Instances(database)
        self._sleepers = Sleepers(database, self._rights, clock=clock)
        self._traffic = TrafficCounter(database, clock=clock)

    def is_for_job(self, scope: Scope) -> bool:
        """Return whether a request is for the origin of a job."""
        # With a dot at its end it is the same name, but another origin, which is refused.
        return len(self._suffix) > 1 and host_of(scope).rstrip(".").endswith(self._suffix)

    async def job_of(self, scope: Scope) -> str | None:
        """Return the job or the instance that a request is for, if there is one."""
        proof = self._proof_of_host(scope, "")
        if proof is None:
            return None
        scope[INSTANCE_KEY] = await self._instances.chosen(proof.job_id)
        return scope[INSTANCE_KEY] or proof.job_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or a WebSocket."""
        if scope["type"] == "websocket":
            await self._websocket(WebSocket(scope, receive, send))
        else:
            request = Request(scope, receive)
            async with AsyncExitStack() as stack:
                try:
                    response = await self._http(request, stack)
                except VedetteError as error:
                    response = self._error(request, error)
                except ClientDisconnect:  # in the middle of the body
                    return
                await response(scope, receive, send)

    async def _http(self, request: Request, stack: AsyncExitStack) -> Response:
        self._check_sender(request)
        if request.url.path == ENTER_PATH:
            return await self._enter(request)
        proof = self._proof(request.scope)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        is_page = "text/html" in request.headers.get("accept", "")
        awaking = self._sleepers.target(proof, may_wait=not is_page)
        target = await (awaking if has_body else while_connected(request, awaking))
        if not stack.enter_context(self._running.running(target.user_id)):
            raise OverloadedError("Too many requests to jobs at once. Wait for some to end.")
        tunnel, path = await self._socket(request.scope, target, stack)
        transport = await tunnel.transport_to(path)
        import httpx  # noqa: PLC0415 - the tunnel has loaded it, in a thread

        sent = httpx.Request(
            request.method,
            "http://job",
            headers=self._request_headers(request.scope),
            content=request.stream() if has_body else None,
            extensions={
                "timeout": _TIMEOUT,
                "target": target_path(request.scope).encode("latin-1"),
            },
        )
        try:
            sending = transport.handle_async_request(sent)
            answer = await self._rights.while_allowed(proof, sending)
        except httpx.TimeoutException as error:
            raise UnavailableError("The job's server does not respond.", code="timeout") from error
        except httpx.HTTPError as error:
            self._rights.forget(proof)
            # The job may have ended, or its service fallen asleep.
            await self._sleepers.target(proof, may_wait=False)
            raise UnavailableError(
                f"Nothing answers on port {target.port} of the job. It may still be starting.",
                code="port_closed",
            ) from error
        stack.push_async_callback(answer.aclose)
        return _JobResponse(answer, self._rights, proof)

    async def _enter(self, request: Request) -> Response:
        ticket = request.query_params.get("ticket", "")
        proof = self._proofs.verify("ticket", ticket)
        if proof != self._proof_of_host(request.scope, proof.session_id):
            raise UnauthenticatedError("The ticket is for another job.")
        now = self._clock()
        await self._database.run(lambda session: spend_ticket(session, ticket, now=now))
        response = RedirectResponse("/", headers={"Referrer-Policy": "no-referrer"})
        response.set_cookie(
            self._cookie,
            self._proofs.sign("pass", proof),
            max_age=PASS_SECONDS,
            secure=self._is_https,
            httponly=True,
            samesite="lax",
        )
        return response

    async def _websocket(self, websocket: WebSocket) -> None:
        async with AsyncExitStack() as stack:
            try:
                self._check_sender(websocket)
                proof = self._proof(websocket.scope)
                target = await self._sleepers.target(proof, may_wait=False)
                if not stack.enter_context(self._running.running(target.user_id)):
                    raise OverloadedError("Too many connections to jobs at once.")
                _tunnel, path = await self._socket(websocket.scope, target, stack)
                job = await stack.enter_async_context(
                    unix_connect(
                        str(path),
                        f"ws://{websocket.headers['host']}{target_path(websocket.scope)}",
                        additional_headers=handshake_headers(
                            self._request_headers(websocket.scope)
                        ),
                        # An empty list would be sent as an empty header, which is not valid.
                        subprotocols=[Subprotocol(name) for name in websocket.scope["subprotocols"]]
                        or None,
                        compression=None,
                        max_size=MAX_MESSAGE_BYTES,
                        open_timeout=OPEN_SECONDS,
                        proxy=None,
                    )
                )
            # ValueError: Host has no valid port.
            except (VedetteError, OSError, WebSocketException, ValueError) as error:
                is_denied = isinstance(error, (UnauthenticatedError, ForbiddenError, NotFoundError))
                await websocket.close(_POLICY if is_denied else TRY_AGAIN)
                return
            await websocket.accept(job.subprotocol)
            try:
                await self._rights.while_allowed(proof, splice(websocket, job))
                code = job.close_code or GOING_AWAY
            except VedetteError:
                code = _POLICY
            await close_quietly(websocket, code)

    def _check_sender(self, connection: HTTPConnection) -> None:
        """Refuse requests of other sites, and other notations of an origin's host."""
        if self._proof_of_host(connection.scope, "") is None:
            raise NotFoundError("There is no such page. Open it from the job.")
        refuse_other_sites(connection, is_https=self._is_https)

    def _proof(self, scope: Scope) -> Proof:
        """Return what the pass of a request proves, or its API token is for."""
        token = dict(scope["headers"]).get(TOKEN_HEADER.encode(), b"").decode("latin-1").strip()
        if token and (of_token := self._proof_of_host(scope, f"{TOKEN_PREFIX}{token}")):
            return of_token
        for cookie in cookie_values(scope, self._cookie):
            with suppress(UnauthenticatedError):
                proof = self._proofs.verify("pass", cookie)
                if proof == self._proof_of_host(scope, proof.session_id):
                    return proof
        raise UnauthenticatedError("Open the page from the job again.")

    async def _socket(
        self, scope: Scope, target: Target, stack: AsyncExitStack
    ) -> tuple[Tunnel, Path]:
        """Return a socket to the place of a request, which counts until the end of the stack."""
        place = self._instances.place(target, scope.get(INSTANCE_KEY, ""))
        stack.enter_context(self._instances.using(place.job_id))
        if target.service is not None:
            stack.enter_context(self._traffic.counting(*target.service))
        tunnel = await stack.enter_async_context(self._tunnels.use(place.appliance_id))
        try:
            return tunnel, await tunnel.socket_to(place.attempt_id, target.port)
        except OSError as error:
            raise UnavailableError("The tunnel broke. Try again.", code="tunnel") from error

    def _proof_of_host(self, scope: Scope, session_id: str) -> Proof | None:
        label = _LABEL.fullmatch(host_of(scope).removesuffix(self._suffix))
        return Proof(label[1], int(label[2]), session_id) if label else None

    def _request_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        return request_headers(scope, cookie=self._cookie, is_https=self._is_https)

    def _error(self, request: Request, error: VedetteError) -> Response:
        proof = self._proof_of_host(request.scope, "")
        job_url = f"{self._portal_url}/jobs/{proof.job_id}" if proof else self._portal_url
        is_page = "text/html" in request.headers.get("accept", "")
        if isinstance(error, UnauthenticatedError) and proof and is_page:
            return RedirectResponse(f"{job_url}/open?{urlencode({'port': proof.port})}", 303)
        headers = {"Cache-Control": "no-store"}
        is_starting = isinstance(error, StartingError)
        if isinstance(error, UnavailableError):
            seconds = str(STARTING_SECONDS if is_starting else RETRY_SECONDS)
            headers |= {"Refresh": seconds, "Retry-After": seconds}
        is_ended = isinstance(error, ConflictError)
        title = "The job is not running" if is_ended else "The job's page can't be shown"
        page = _PAGE.format(
            title="The service is starting" if is_starting else title,
            message=escape(error.message),
            url=escape(job_url),
        )
        return HTMLResponse(page, 503 if is_ended else error.status, headers)


class _JobResponse(StreamingResponse):
    """The response of a job's server; it breaks off when the user may not go on."""

    def __init__(self, answer: "httpx.Response", rights: WebUIRights, proof: Proof) -> None:
        super().__init__(_parts(answer), answer.status_code)
        self.raw_headers = response_headers(answer.headers.raw)
        self._rights = rights
        self._proof = proof

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with suppress(VedetteError):
            await self._rights.while_allowed(self._proof, super().__call__(scope, receive, send))


async def _parts(answer: "httpx.Response") -> AsyncIterator[bytes]:
    """Yield the body as it comes, compressed if it is; a broken one ends the connection."""
    async for part in answer.aiter_raw():
        yield part


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
  :root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }}
  body {{ max-width: 34rem; margin: 15vh auto; padding: 0 1.5rem; }}
  h1 {{ font-size: 1.4rem; }}
</style>
<h1>{title}</h1>
<p>{message}</p>
<p><a href="{url}">Go to the job</a></p>
</html>"""
