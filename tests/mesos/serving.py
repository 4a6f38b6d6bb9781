"""Shared by the contract servers: credentials, responses, and running under uvicorn."""

import json
import time
from base64 import b64encode
from collections.abc import Callable
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

JSON_ERROR = 400
Answer = dict[str, Any]


class HTTPError(Exception):
    """An answer with an error status and this body."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(str(body))
        self.status, self.body = status, body


def message(status: int, text: str, **members: object) -> HTTPError:
    """Return the error `{"message": text}`."""
    return HTTPError(status, {"message": text, **members})


def answer_error(_request: Request, error: Exception) -> Response:
    """Answer with the error's body."""
    assert isinstance(error, HTTPError)
    if isinstance(error.body, str):
        return PlainTextResponse(error.body, status_code=error.status)
    return JSONResponse(error.body, status_code=error.status)


async def body_of(request: Request) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON body; bad JSON is 400."""
    try:
        return json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise message(JSON_ERROR, "Invalid JSON", details=str(error)) from error


def flag(request: Request, name: str) -> bool:
    """Return a boolean of the query, in any case as Java reads it."""
    return request.query_params.get(name, "false").lower() == "true"


class Secured:
    """Wants HTTP basic credentials, or the token of DC/OS; with neither set it lets all in."""

    def __init__(self, app: ASGIApp, *, basic: str = "", token: str = "") -> None:
        self._app = app
        self._wanted = {f"token={token}"} if token else set()
        if basic:
            self._wanted.add(f"Basic {b64encode(basic.encode()).decode()}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without the credentials."""
        headers = {name.lower(): value for name, value in scope.get("headers", [])}
        credentials = headers.get(b"authorization", b"").decode()
        if scope["type"] == "http" and self._wanted and credentials not in self._wanted:
            refusal = JSONResponse({"message": "Authentication required"}, status_code=401)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Server:
    """One application on a port of the loopback address, in a thread."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        config = uvicorn.Config(app, port=port, log_level="warning", lifespan="off", ws="none")
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, daemon=True)

    def start(self) -> "Server":
        """Start it and wait until it listens."""
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), f"{self.url} can't be served"
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End it; open event streams are cut."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


def ticking(tick: Callable[[], None], *, is_over: Callable[[], bool], seconds: float) -> Thread:
    """Call `tick` again and again in a thread until it is over."""

    def run() -> None:
        while not is_over():
            tick()
            time.sleep(seconds)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def application(routes: list[Any]) -> Starlette:
    """Return an application with these routes, and errors as the contract says."""
    return Starlette(routes=routes, exception_handlers={HTTPError: answer_error})
