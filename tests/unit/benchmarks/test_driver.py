"""The driver sends by the clock, counts from when a post was due, and tells what was refused."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.bodies import Ticks, opened, small_batches, write_bodies
from benchmarks.driver import Driver, Order, Tally, minutes, summary
from benchmarks.driver_connection import parse_reply

SPAN = Ticks(appliances=5, ticks=4, start_ns=1_700_000_000_000_000_000)


class Counting(ThreadingHTTPServer):
    """Takes posts; refuses those of one sender, and hangs up on each connection's first post."""

    daemon_threads = True
    refused_sender = ""
    hangs_up_first = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sender = self.headers.get("Authorization", "")
        if self.server.hangs_up_first:
            self.server.hangs_up_first = False
            self.close_connection = True
            return
        self.server.bodies.append((sender, gzip.decompress(body)))
        if sender and sender == self.server.refused_sender:
            self.send_response(429)
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"too much")
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting() as counting:
        thread = threading.Thread(target=counting.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield counting
        counting.shutdown()
        thread.join()


def drive(server: Counting, folder: Path, *, per_second: float | None = None) -> Tally:
    bodies = write_bodies(folder / "small.bodies", small_batches(SPAN))
    order = Order(
        host="127.0.0.1",
        port=server.server_port,
        path="/api/v2/write?precision=ns",
        senders=[f"Token {number}" for number in range(SPAN.appliances)],
        bodies=[str(bodies.path)],
        connections=3,
        per_second=per_second,
    )
    with opened(bodies.path) as (view, rows):
        posts = [(view, *row) for row in rows]
        tally = Driver(order, posts, count=len(posts)).run()
        posts.clear()
    return tally


def test_every_body_arrives_once_from_its_sender(server: Counting, tmp_path: Path) -> None:
    tally = drive(server, tmp_path)
    sent = sorted(
        (f"Token {sender}", ("\n".join(lines) + "\n").encode())
        for sender, lines in small_batches(SPAN)
    )
    assert sorted(server.bodies) == sent
    assert tally.acknowledged == len(sent)


def test_a_refused_post_is_counted_with_its_reason(server: Counting, tmp_path: Path) -> None:
    server.refused_sender = "Token 3"
    found = summary(drive(server, tmp_path), cpu_seconds=0.0)
    assert found["statuses"] == {"204": 16, "429": 4}
    assert found["refused"] == 4
    assert found["reasons"] == ["429: too much"] * 3


def test_a_post_that_crossed_a_closing_connection_is_sent_again(
    server: Counting, tmp_path: Path
) -> None:
    server.hangs_up_first = True
    tally = drive(server, tmp_path)
    assert tally.acknowledged == len(server.bodies) == 20
    assert tally.reconnects == 1


def test_posts_leave_by_the_clock(server: Counting, tmp_path: Path) -> None:
    tally = drive(server, tmp_path, per_second=100.0)
    # The last of twenty is due after 0.19 s, however fast the answers are.
    assert tally.seconds >= 0.19
    assert all(late >= 0 for late in tally.lateness)


def test_an_answer_is_taken_when_it_is_whole() -> None:
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\n"
    assert parse_reply(head[:20]) is None
    assert parse_reply(head + b"1234") is None
    assert parse_reply(head + b"12345") == (400, b"12345")
    assert parse_reply(b"HTTP/1.1 204 No Content\r\n\r\n") == (204, b"")


def test_minutes_are_told_apart() -> None:
    found = minutes([(0.5, 0.010), (59.9, 0.030), (60.1, 0.500)])
    assert [one["acknowledged"] for one in found] == [2, 1]
    assert [one["ack_milliseconds_p99"] for one in found] == [30.0, 500.0]
