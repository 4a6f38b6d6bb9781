"""Tenant B of `benchmarks.hostile`, and a stranger: everything at once, until they are ended.

    python -m benchmarks.hostile_tenant URL AGENT_TOKEN API_TOKEN

Everything comes from 127.0.0.2, with the lowest priority, and goes to the server that the benchmark
has started. The loops are bounded in time. At the end it prints how often each answer came.
"""

import gzip
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hostile_inputs import INPUTS, Input

ADDRESS = ("127.0.0.2", 0)
SECONDS = 600.0
HEADS, BODIES, READERS = 1_500, 32, 32
# The server queues this many of a connection.
PIPELINED = 16
REQUEST = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: portal\r\n\r\n"
LOWEST_PRIORITY = 19
FIELDS_OF_A_LINE = 900
LINES_SECONDS, GZIP_SECONDS, DRIP_SECONDS = 0.5, 1.0, 0.5
# Between two requests of a user, in each thread.
USER_SECONDS = 0.1
EMPTY_MEMBER = gzip.compress(b"", mtime=0)
GZIP_BYTES = 2_000_000


class Hostile:
    """Runs every attack in a thread of its own and counts the answers."""

    def __init__(self, url: str, token: str, *, api_token: str) -> None:
        address = urlsplit(url)
        self._server = (address.hostname or "", address.port or 80)
        self._token = token
        self._api_token = api_token
        self.answers: Counter[str] = Counter()
        self.done = threading.Event()

    def run(self) -> None:
        """Attack until the end."""
        attacks: list[Callable[[], None]] = [
            self._wide_lines,
            self._new_measurements,
            self._gzip_members,
            self._half_heads,
            self._dripping_bodies,
            self._slow_readers,
            self._excess_requests,
        ]
        attacks += [partial(self._send, entry) for entry in INPUTS for _ in range(entry.threads)]
        threads = [threading.Thread(target=attack, daemon=True) for attack in attacks]
        for thread in threads:
            thread.start()
        self.done.wait(SECONDS)
        self.done.set()

    def _send(self, sent: Input) -> None:
        """Send one of the inputs of a user."""
        headers = {
            "Authorization": f"Bearer {self._api_token}",
            "Content-Type": "application/json",
        }

        def post(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            text = json.dumps(body).encode()
            answer = self._post(sent.name, f"/api/v1{path}", text, headers)
            reply = json.loads(answer) if answer else {}
            return reply if isinstance(reply, dict) else {}

        for _ in sent.rounds(post):
            if self.done.wait(USER_SECONDS):
                return

    def _wide_lines(self) -> None:
        for number in itertools.count():
            fields = ",".join(f"w{number}_{n}={n}.5" for n in range(FIELDS_OF_A_LINE))
            # The second is late, so that its hour is rolled up again.
            for age_seconds in (0, 7_200):
                line = f"wide {fields} {time.time_ns() - age_seconds * 10**9}"
                self._post("wide line", "/api/v2/write", line.encode())
            if self.done.wait(LINES_SECONDS):
                return

    def _new_measurements(self) -> None:
        for number in itertools.count():
            lines = "\n".join(f"m{number}_{n} a=1,b=2" for n in range(50))
            self._post("new measurements", "/api/v2/write", lines.encode())
            if self.done.wait(LINES_SECONDS):
                return

    def _gzip_members(self) -> None:
        body = EMPTY_MEMBER * (GZIP_BYTES // len(EMPTY_MEMBER))
        for path in itertools.cycle(("/agent/v1/enroll", "/api/v2/write")):
            self._post("gzip members", path, body, {"Content-Encoding": "gzip"})
            if self.done.wait(GZIP_SECONDS):
                return

    def _half_heads(self) -> None:
        head = b"GET /login HTTP/1.1\r\nHost: portal\r\nX-Half: "
        self._keep_open("half head", HEADS, head, b"")

    def _dripping_bodies(self) -> None:
        head = (
            b"POST /login HTTP/1.1\r\nHost: portal\r\nContent-Length: 100000\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        )
        self._keep_open("dripping body", BODIES, head, b"x")

    def _slow_readers(self) -> None:
        """Send many requests in a pipe, whose answers nobody reads."""
        self._keep_open("slow reader", READERS, REQUEST * PIPELINED, b"")

    def _excess_requests(self) -> None:
        """Send more requests than the server queues, so that it closes the connection each time."""
        self._keep_open("excess requests", READERS, REQUEST * (PIPELINED + 4), b"")

    def _keep_open(self, name: str, count: int, start: bytes, drip: bytes) -> None:
        """Keep this many connections open, and open those again that the server closes."""
        sockets: list[socket.socket] = []
        while not self.done.wait(DRIP_SECONDS):
            open_sockets = []
            for connection in sockets:
                if self._is_open(connection, drip):
                    open_sockets.append(connection)
                else:
                    self.answers[f"{name}: closed"] += 1
                    connection.close()
            sockets = open_sockets
            # A few at a time: the attack is the number that stays open.
            for _ in range(min(100, count - len(sockets))):
                with suppress(OSError):
                    connection = socket.create_connection(self._server, 5, ADDRESS)
                    connection.sendall(start)
                    connection.settimeout(0)
                    sockets.append(connection)

    def _is_open(self, connection: socket.socket, drip: bytes) -> bool:
        if drip:
            try:
                connection.send(drip)
            except BlockingIOError:
                pass
            except OSError:
                return False
        # Poll tells whether the server has closed it, without reading what it sent before.
        ends = select.poll()
        ends.register(connection, select.POLLRDHUP)
        return not ends.poll(0)

    def _post(
        self, name: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Post a body, and return that of the answer; nothing without one."""
        connection = HTTPConnection(*self._server, timeout=60, source_address=ADDRESS)
        token = {"Authorization": f"Bearer {self._token}"} if path == "/api/v2/write" else {}
        try:
            connection.request("POST", path, body, {**token, **(headers or {})})
            response = connection.getresponse()
            self.answers[f"{name}: {response.status}"] += 1
            return response.read()
        except (OSError, HTTPException) as error:
            self.answers[f"{name}: {type(error).__name__}"] += 1
            return b""
        finally:
            connection.close()


def main() -> None:
    """Attack the server named on the command line until SIGTERM."""
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    hostile = Hostile(sys.argv[1], sys.argv[2], api_token=sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: hostile.done.set())
    hostile.run()
    for answer, count in sorted(hostile.answers.items()):
        print(f"{answer} x {count}", flush=True)


if __name__ == "__main__":
    main()
