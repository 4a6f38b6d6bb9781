"""Streamed files: how many may run at once, and their end when the client has gone.

A stream occupies a thread of the portal until its client has read it. Pages of other tenants need
threads, too: a tenant may have a few streams, and all tenants together half of the threads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from threading import Lock
from typing import AnyStr

from flask import Flask, Response, current_app, request

from core.errors import OverloadedError
from portal.context import current_scope, portal

MAX_PER_TENANT = 3
RETRY_AFTER_SECONDS = 30
DISCONNECTED = "vedette.disconnected"
"""The key of the ASGI scope that is set when the client has gone."""
_EXTENSION = "vedette_downloads"


class RunningDownloads:
    """The streams of this process, by tenant; None is the operator's."""

    def __init__(self, *, threads: int) -> None:
        self._max_running = max(1, threads // 2)
        self._running: Counter[str | None] = Counter()
        self._lock = Lock()

    def begin(self, tenant_id: str | None) -> Callable[[], None]:
        """Count a stream; return what ends it, once, however often it is called.

        Raises:
            OverloadedError: the tenant, or all together, have too many.
        """
        with self._lock:
            own = self._running[tenant_id]
            if own >= min(MAX_PER_TENANT, self._max_running):
                raise _too_many(f"Your tenant has {own} downloads in progress")
            if self._running.total() >= self._max_running:
                raise _too_many("The portal serves as many downloads as it can")
            self._running[tenant_id] += 1
        counted = [tenant_id]

        def end() -> None:
            with self._lock:
                while counted:
                    self._running[counted.pop()] -= 1

        return end


def install_downloads(app: Flask) -> None:
    """Let the app stream files."""
    with app.app_context():
        threads = portal().settings.portal_threads
    app.extensions[_EXTENSION] = RunningDownloads(threads=threads)


def stream_file(pieces: Iterable[AnyStr], *, media_type: str, file_name: str = "") -> Response:
    """Return a response that streams the pieces of a file, or of a page, to the current user.

    The first piece is generated before, so that an error until then has its own response. A later
    one ends the connection before the body is complete, which clients report.

    Raises:
        OverloadedError: too many downloads are in progress.
    """
    running: RunningDownloads = current_app.extensions[_EXTENSION]
    end = running.begin(current_scope().tenant_id)
    asgi_scope = request.environ.get("asgi.scope", {})
    chunks = iter(pieces)
    try:
        first = list(islice(chunks, 1))
    except BaseException:
        end()
        raise
    response = Response(
        _while_connected(chain(first, chunks), asgi_scope, end), content_type=media_type
    )
    # An iterator that never started is closed without its end.
    response.call_on_close(end)
    if file_name:
        response.headers["Content-Disposition"] = f'attachment; filename="{file_name}"'
    return response


def _while_connected(
    pieces: Iterable[AnyStr], asgi_scope: Mapping[str, object], end: Callable[[], None]
) -> Iterator[AnyStr]:
    try:
        for piece in pieces:
            if DISCONNECTED in asgi_scope:
                return
            yield piece
    finally:
        end()


def _too_many(problem: str) -> OverloadedError:
    return OverloadedError(
        f"{problem}. Wait until one ends, then try again.",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
