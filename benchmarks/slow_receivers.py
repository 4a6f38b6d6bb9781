"""Measure the delay of tenant B's message while tenant A's receiver answers slowly.

    python -m benchmarks.slow_receivers [--quick] [--output FILE]

A has 120 messages for a webhook that answers after 8 s. The outbox is drained by the scheduler's
workers, in SQLite. B's messages are queued one after the other, each when the last has arrived.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import select

from alerting.notification.notices import add_notice
from alerting.notification.outbox_workers import OutboxWorkers
from alerting.notification.receivers import create_receiver
from alerting.notification.senders.notify import WebhookSender
from alerting.notification.senders.webhooks import AddressPolicy
from alerting.states import ReceiverKind
from benchmarks.figures import Promise, document, median, rounded, write_document
from benchmarks.gateway import make_gateway
from benchmarks.processes import free_port, wait_until
from cli.database import open_database
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.secretbox import SecretBox
from tenants.models import User
from tenants.scope import Scope

MOST_SECONDS = 5.0
SLOW_SECONDS, SLOW_MESSAGES = 8.0, 120
TICK_SECONDS = 0.5
A_ADMIN, B_ADMIN = "alice@acme.example", "charlie@globex.example"
LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of B's messages that are measured."""

    messages: int = 30


FULL, QUICK = Plan(), Plan(messages=3)


def measure(plan: Plan) -> dict[str, object]:
    """Send the messages of both, and return the document."""
    started_at = utc_now()
    with TemporaryDirectory(prefix="vedette-bench-") as name:
        settings = make_gateway(Path(name)).settings
        box = SecretBox.of(settings)
        ended = threading.Event()
        with (
            open_database(settings) as (_engine, sessions),
            _receiver(ended, SLOW_SECONDS) as (slow_url, _),
            _receiver(ended, 0.0) as (quick_url, arrived),
        ):
            slow = _add_receiver(sessions, A_ADMIN, slow_url, box)
            quick = _add_receiver(sessions, B_ADMIN, quick_url, box)
            for number in range(SLOW_MESSAGES):
                _queue(sessions, slow, number)
            with _draining(sessions, box, ended):
                took = [_seconds_of(sessions, quick, n, arrived) for n in range(plan.messages)]
    longest = rounded(max(took))
    return document(
        "slow_receivers",
        started_at=started_at,
        settings={"slow_seconds": SLOW_SECONDS, "slow_messages": SLOW_MESSAGES},
        results={"messages": len(took), "seconds": median(took), "longest_seconds": longest},
        promises=[
            Promise(
                name="B's message beside A's slow receiver",
                bound=MOST_SECONDS,
                measured=longest,
                unit="seconds",
            )
        ],
    )


@contextmanager
def _receiver(ended: threading.Event, delay_seconds: float) -> Iterator[tuple[str, list[float]]]:
    """Run a webhook that answers late; give its address, and when messages arrived."""
    arrived: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append(time.monotonic())
            ended.wait(delay_seconds)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", arrived
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _draining(sessions: SessionFactory, box: SecretBox, ended: threading.Event) -> Iterator[None]:
    """Let the workers start what is due, as the scheduler does, until the block ends."""
    senders = {ReceiverKind.WEBHOOK: WebhookSender(10.0, box=box, policy=LOOPBACK)}
    workers = OutboxWorkers(sessions, senders, clock=utc_now, may_send=lambda: not ended.is_set())

    def tick() -> None:
        while not ended.wait(TICK_SECONDS):
            workers.start_due()

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield
    finally:
        ended.set()
        ticking.join()
        workers.close()


def _add_receiver(
    sessions: SessionFactory, email: str, url: str, box: SecretBox
) -> tuple[str, str]:
    """Add a webhook of a tenant's admin; return the tenant and the receiver's name."""
    with transaction(sessions) as session:
        admin = session.scalars(select(User).where(User.email == email)).unique().one()
        scope = Scope.of(admin)
        receiver, _ = create_receiver(
            session,
            scope,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target=url,
            box=box,
            now=utc_now(),
        )
        return scope.require_tenant(), receiver.name


def _queue(sessions: SessionFactory, receiver: tuple[str, str], number: int) -> None:
    tenant_id, name = receiver
    payload = {"subject": f"Message {number}", "text": "", "link": "http://x/", "link_name": "Link"}
    at = utc_now() - timedelta(seconds=1)
    with transaction(sessions) as session:
        add_notice(session, tenant_id, payload, receiver=name, now=at)


def _seconds_of(
    sessions: SessionFactory, receiver: tuple[str, str], number: int, arrived: list[float]
) -> float:
    began, before = time.monotonic(), len(arrived)
    _queue(sessions, receiver, number)
    wait_until(lambda: len(arrived) > before, what="a message of B")
    return arrived[-1] - began


@click.command(help=sys.modules[__name__].__doc__)
@click.option("--quick", is_flag=True, help="A few messages: to see that it runs.")
@click.option("--output", type=click.Path(path_type=Path))
def main(*, quick: bool, output: Path | None) -> None:
    """Measure and print the document."""
    write_document(measure(QUICK if quick else FULL), output)


if __name__ == "__main__":
    main()
