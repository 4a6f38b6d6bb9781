"""How uvicorn serves an application of ours: bounds, connections, memory."""

import ctypes
import logging
import math
import resource
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from serving.http_protocol import ConnectionLimits

log = logging.getLogger(__name__)

# Files and connections to databases need descriptors, too.
RESERVED_DESCRIPTORS = 512
# Long polls and tunnels are cut after this at shutdown, or after `drain_seconds` if that is more.
SHUTDOWN_SECONDS = 2
ACCEPTED_AT_ONCE = 8
M_ARENA_MAX = -8  # of malloc.h


def bounded_config(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    limits: ConnectionLimits,
    http: Any,  # noqa: ANN401 - uvicorn's
    drain_seconds: float = 0.0,
) -> uvicorn.Config:
    """Return how uvicorn serves; `http` creates the protocol of a connection."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        interface="asgi3",
        lifespan="off",
        proxy_headers=False,  # see trust_proxies
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=max(SHUTDOWN_SECONDS, math.ceil(drain_seconds)),
        timeout_keep_alive=math.ceil(limits.idle_seconds),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        http=http,
        backlog=ACCEPTED_AT_ONCE,
    )


def allowed_connections(max_connections: int) -> int:
    """Return `max_connections`, or fewer if the system does not allow the process as many."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = max(1, hard - RESERVED_DESCRIPTORS)
    if hard == resource.RLIM_INFINITY or allowed >= max_connections:
        return max_connections
    log.warning(
        "max_connections is %d, but the process may open only %d files: using %d. "
        "Raise its limit (ulimit -n, LimitNOFILE)",
        max_connections,
        hard,
        allowed,
    )
    return allowed


def limit_malloc_arenas() -> None:
    """Let all threads share two of glibc's arenas: it makes 8 per core, and each keeps free memory.

    Without effect under another C library.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
