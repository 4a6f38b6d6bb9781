"""Tenant B of `benchmarks.hostile`, and a stranger: everything at once, until they are ended.

    python -m benchmarks.shared.hostile_tenant PORT AGENT_PORT AGENT_TOKEN API_TOKEN

Everything comes from 127.0.0.2, with the lowest priority, and goes to the server that the benchmark
has started. The loops are bounded in time. At the end it prints how often each answer came.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from benchmarks.shared.hostile_inputs import EMPTY_MEMBER, INPUTS, Input

ADDRESS = ("127.0.0.2", 0)
SECONDS = 600.0
DRIP_SECONDS = 0.5
LOWEST_PRIORITY = 19
# The server queues this many of a connection.
PIPELINED = 16
REQUEST = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: portal\r\n\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: portal\r\nContent-Length: 100000\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class OpenConnections:
    """Connections that are kept open: each sends `start`, and again and again `drip`."""

    name: str
    count: int
    start: bytes
    drip: bytes = b""


CONNECTIONS = (
    OpenConnections("half head", 1_500, b"GET /login HTTP/1.1\r\nHost: portal\r\nX-Half: "),
    OpenConnections("dripping body", 32, FORM, b"x"),
    # Many requests in a pipe, whose answers nobody reads.
    OpenConnections("slow reader", 32, REQUEST * PIPELINED),
    # More requests than the server queues, so that it closes the connection each time.
    OpenConnections("excess requests", 32, REQUEST * (PIPELINED + 4)),
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """Runs every attack in a thread of its own and counts the answers."""

    port: int
    agent_port: int
    agent_token: str
    api_token: str
    answers: Counter[str] = field(default_factory=Counter)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Attack until the end."""
        threads = [
            threading.Thread(target=self._send, args=(entry,), daemon=True)
            for entry in INPUTS
            for _ in range(entry.threads)
        ]
        threads += [
            threading.Thread(target=self._keep_open, args=(attack,), daemon=True)
            for attack in CONNECTIONS
        ]
        for thread in threads:
            thread.start()
        self.done.wait(SECONDS)
        self.done.set()

    def _send(self, entry: Input) -> None:
        def post(path: str, body: Mapping[str, Any] | bytes) -> Mapping[str, Any]:
            if isinstance(body, bytes):
                headers = {"Authorization": f"Bearer {self.agent_token}"}
                if body.startswith(EMPTY_MEMBER):
                    headers["Content-Encoding"] = "gzip"
                return self._post(entry.name, path, body=body, headers=headers)
            headers = {
                "Authorization": f"Bearer {self.api_token}",
                "Content-Type": "application/json",
            }
            text = json.dumps(body).encode()
            return self._post(entry.name, f"/api/v1{path}", body=text, headers=headers)

        for _ in entry.rounds(post):
            if self.done.wait(entry.pause_seconds):
                return

    def _post(
        self, name: str, path: str, *, body: bytes, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Post a body, and return the decoded answer; nothing without one."""
        port = self.port if path.startswith("/api/v1/") else self.agent_port
        connection = HTTPConnection("127.0.0.1", port, timeout=60, source_address=ADDRESS)
        with closing(connection):
            try:
                connection.request("POST", path, body, dict(headers))
                response = connection.getresponse()
                text = response.read()
            except (OSError, HTTPException) as error:
                self.answers[f"{name}: {type(error).__name__}"] += 1
                return {}
        self.answers[f"{name}: {response.status}"] += 1
        reply = json.loads(text) if text else {}
        return reply if isinstance(reply, dict) else {}

    def _keep_open(self, attack: OpenConnections) -> None:
        """Keep this many connections open, and open those again that the server closes."""
        sockets: list[socket.socket] = []
        while not self.done.wait(DRIP_SECONDS):
            closed = [connection for connection in sockets if not _is_open(connection, attack.drip)]
            self.answers[f"{attack.name}: closed"] += len(closed)
            for connection in closed:
                sockets.remove(connection)
                connection.close()
            # A few at a time: the attack is the number that stays open.
            for _ in range(min(100, attack.count - len(sockets))):
                with suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", self.port), 5, ADDRESS)
                    connection.sendall(attack.start)
                    connection.settimeout(0)
                    sockets.append(connection)


def _is_open(connection: socket.socket, drip: bytes) -> bool:
    if drip:
        try:
            connection.send(drip)
        except BlockingIOError:
            pass
        except OSError:
            return False
    # Poll reports whether the server has closed it, without reading what it sent before.
    ends = select.poll()
    ends.register(connection, select.POLLRDHUP)
    return not ends.poll(0)


def main() -> None:
    """Attack the server named on the command line until SIGTERM."""
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    port, agent_port, agent_token, api_token = sys.argv[1:]
    hostile = Hostile(int(port), int(agent_port), agent_token, api_token)
    signal.signal(signal.SIGTERM, lambda *_: hostile.done.set())
    hostile.run()
    for answer, count in sorted(hostile.answers.items()):
        print(f"{answer} x {count}", flush=True)


if __name__ == "__main__":
    main()
