"""The ends of `benchmarks.tunnel` that are processes of their own.

    python -m benchmarks.tunnel_ends serve PORT              the job's web server
    python -m benchmarks.tunnel_ends agent URL SECRET PORT   the agent's side of the tunnel

The agent's side is `collector.tunnel`, as the agent runs it, with the one port that it leads to.
"""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from collector.tunnel import serve_tunnel
from jobqueue.executors.base import ExecSession, NoExecError

PART = b"x" * 256 * 1024


async def _small(_request: Request) -> Response:
    return PlainTextResponse("x" * 100)


async def _large(request: Request) -> Response:
    size = int(request.query_params["bytes"])

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(size // len(PART)):
            yield PART

    return StreamingResponse(parts(), headers={"Content-Length": str(size)})


async def _upload(request: Request) -> Response:
    return PlainTextResponse(str(sum([len(part) async for part in request.stream()])))


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_bytes(await websocket.receive_bytes())
    except WebSocketDisconnect:
        return


JOB = Starlette(
    routes=[
        Route("/small", _small),
        Route("/large", _large),
        Route("/upload", _upload, methods=["POST"]),
        WebSocketRoute("/echo", _echo),
    ]
)


async def _nothing_runs(_attempt_id: str, _session: ExecSession) -> int:
    raise NoExecError


def main() -> None:
    """Run one of them until the process is ended."""
    match sys.argv[1:]:
        case ["serve", port]:
            uvicorn.run(JOB, host="127.0.0.1", port=int(port), log_level="warning")
        case ["agent", url, secret, port]:
            while True:
                with suppress(OSError):  # nobody has asked for one yet
                    serve_tunnel(
                        url,
                        headers={"Authorization": f"Bearer {secret}"},
                        context=None,
                        find_endpoint=lambda _attempt_id, _port: f"127.0.0.1:{port}",
                        execute=_nothing_runs,
                        should_go_on=lambda: True,
                    )
                time.sleep(0.1)
        case _:
            sys.exit(str(__doc__))


if __name__ == "__main__":
    main()
