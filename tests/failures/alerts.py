"""A rule on known signals, and a webhook receiver that counts what arrives."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from tests.failures.jobs import Users

RULE = "Signal"
EXPRESSION = "last(collectd_signal.value) over 1m by appliance, type_instance > 0.5"


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The messages of a scenario that are missing, and those that say the same twice."""

    missed: int
    doubled: int


@dataclass(slots=True)
class Inbox:
    """The messages that a webhook receiver has got: by appliance, states by message id.

    A message that is sent again after a crash has the same id, which receivers compare
    (docs/operating.md): it counts once.
    """

    port: int = 0
    _lock: Lock = field(default_factory=Lock)
    _states: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, payload: dict[str, object]) -> None:
        """Count a message."""
        tags = payload.get("tags")
        if payload.get("rule") == RULE and isinstance(tags, dict):
            with self._lock:
                of_appliance = self._states.setdefault(str(tags["appliance"]), {})
                of_appliance[str(payload["id"])] = str(payload["state"])

    def clear(self) -> None:
        """Forget all messages."""
        with self._lock:
            self._states.clear()

    def have(self, names: Sequence[str], state: str) -> bool:
        """Return whether the alerts of all these appliances were reported in a state."""
        with self._lock:
            return all(state in self._states.get(name, {}).values() for name in names)

    def deliveries(self, names: list[str]) -> Deliveries:
        """Compare with one firing and one resolved alert of each of these, and none of others."""
        with self._lock:
            times = Counter(
                (name, state) for name, states in self._states.items() for state in states.values()
            )
        expected = {(name, state) for name in names for state in ("firing", "resolved")}
        return Deliveries(
            missed=len(expected - set(times)),
            doubled=sum(times.values()) - len(expected & set(times)),
        )


@contextmanager
def running_inbox() -> Iterator[Inbox]:
    """Listen for the length of the block."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            inbox.add(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    inbox.port = server.server_port
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def add_rule(users: Users, inbox: Inbox) -> None:
    """Add a receiver, and the rule that reports to it."""
    receiver = {"name": "Pager", "kind": "webhook", "target": f"http://127.0.0.1:{inbox.port}/"}
    receiver_id = users.request("POST", "/receivers", json=receiver).json()["id"]
    rule = {"name": RULE, "expression": EXPRESSION, "receiver_ids": [receiver_id]}
    users.request("POST", "/rules", json=rule)
