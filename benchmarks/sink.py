"""A server that takes what agents and collectd send, counts it and forgets it.

    python -m benchmarks.sink PORT

`POST` of line protocol (as gzip or plain) or of collectd's JSON is answered 204 and counted; any
other `POST` is answered 204 and not counted. `GET /counts` tells what was counted.
"""

import gzip
import json
import sys
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from core.clock import to_ns, utc_now
from timeseries.lineprotocol.parser import parse

WRITE_PATH = "/api/v2/write"
COLLECTD_PATH = "/collectd"


@dataclass(slots=True)
class Counts:
    """Counts of what arrived; `body_bytes` as sent, compressed where it was."""

    requests: int = 0
    body_bytes: int = 0
    samples: int = 0


class Sink(ThreadingHTTPServer):
    """Counts what its requests bring."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.counts = Counts()
        self._lock = Lock()

    def count(self, body: bytes, samples: int) -> None:
        """Add one request."""
        with self._lock:
            self.counts.requests += 1
            self.counts.body_bytes += len(body)
            self.counts.samples += samples


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_zipped = self.headers.get("Content-Encoding") == "gzip"
        content = gzip.decompress(body) if is_zipped else body
        if self.path.startswith(WRITE_PATH):
            self.server.count(body, line_samples(content))
        elif self.path.startswith(COLLECTD_PATH):
            self.server.count(body, collectd_samples(json.loads(content)))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        body = json.dumps(asdict(self.server.counts)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the base class's names
        """Log nothing: a line for each request would cost more than the request."""


def line_samples(lines: bytes) -> int:
    """Return how many samples lines of line protocol hold."""
    points = parse(lines, default_time_ns=to_ns(utc_now())).points
    return sum(len(point.fields) for point in points)


def collectd_samples(value_lists: list[dict[str, Any]]) -> int:
    """Return how many samples a body of collectd's write_http holds; null is none."""
    return sum(
        1 for values in value_lists for value in values.get("values", ()) if value is not None
    )


def main() -> None:
    """Serve until terminated."""
    Sink(int(sys.argv[1])).serve_forever()


if __name__ == "__main__":
    main()
