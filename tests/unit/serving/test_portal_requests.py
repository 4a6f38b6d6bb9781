"""Responses of the portal's threads, on their way to the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import requests
from starlette.types import Message, Scope

from serving import portal_requests
from serving.portal_requests import MAX_BUFFERED_BYTES, PortalRequests, PortalThreads
from tests.fixtures.serving import Serving
from timeseries.store import StoreUnavailableError

SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "query_string": b"",
    "http_version": "1.1",
    "headers": [],
}
OnMessage = Callable[[Message], object]
App = Callable[[Any, Any], Iterable[bytes]]


async def received(app: App, on_message: OnMessage = lambda _: None) -> list[Message]:
    """Return the ASGI messages of a WSGI application's response."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)
        on_message(message)

    await PortalThreads(app, workers=1)(SCOPE, receive, send)
    return messages


def test_a_response_of_known_size_frees_its_thread_immediately() -> None:
    def app(_environ: object, start_response: Any) -> list[bytes]:  # noqa: ANN401 - WSGI's
        start_response("200 OK", [("Content-Length", "6")])
        return [b"abc", b"def"]

    start, body = asyncio.run(received(app))
    assert (start["status"], start["headers"]) == (200, [(b"content-length", b"6")])
    assert body == {"type": "http.response.body", "body": b"abcdef"}


def test_other_responses_leave_it_in_parts() -> None:
    for headers in ([], [("Content-Length", str(MAX_BUFFERED_BYTES + 1))]):
        is_sent = Event()

        def app(_environ: object, start_response: Any, headers: Any = headers) -> Iterator[bytes]:  # noqa: ANN401
            start_response("200 OK", headers)
            yield b"first"
            assert is_sent.wait(10)  # noqa: B023 - awaited in the same round
            yield b"second"

        def on_message(message: Message) -> None:
            if message.get("body") == b"first":
                is_sent.set()  # noqa: B023 - awaited in the same round

        messages = asyncio.run(received(app, on_message))
        assert [message.get("body") for message in messages] == [None, b"first", b"second", b""]


def test_a_download_that_fails_midway_is_an_error_for_its_client() -> None:
    def app(_environ: object, start_response: Any) -> Iterator[bytes]:  # noqa: ANN401 - WSGI's
        start_response("200 OK", [("Content-Type", "text/csv")])
        yield b"time\n"
        raise StoreUnavailableError("A file of samples is missing.")

    portal = PortalRequests(PortalThreads(app, workers=1), is_signed_in=lambda _: True, threads=1)
    with Serving(portal) as url, pytest.raises(requests.exceptions.ChunkedEncodingError):
        requests.get(url, timeout=60)


def test_a_query_that_waits_long_for_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests wait on."""
    monkeypatch.setattr(portal_requests, "QUERY_WAIT_SECONDS", 0.0)
    may_answer, is_running = Event(), Event()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:  # noqa: ANN401 - WSGI's
        if environ["PATH_INFO"] == "/slow":
            is_running.set()
            may_answer.wait(60)
        start_response("200 OK", [("Content-Length", "0")])
        return [b""]

    portal = PortalRequests(PortalThreads(app, workers=2), is_signed_in=lambda _: True, threads=1)
    with Serving(portal) as url, ThreadPoolExecutor() as pool:
        slow = pool.submit(requests.get, f"{url}/slow", timeout=60)
        assert is_running.wait(60)
        for path in ("/api/v1/prometheus/api/v1/query", "/api/v1/query?measurement=gpu"):
            refused = requests.get(f"{url}{path}", timeout=60)
            assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
            assert "Retry-After" in refused.headers
        page = pool.submit(requests.get, f"{url}/jobs", timeout=60)
        may_answer.set()
        assert (slow.result().status_code, page.result().status_code) == (200, 200)
