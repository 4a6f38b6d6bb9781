import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from core.clock import to_ns, utc_now
from core.errors import OverloadedError
from timeseries.points import Point
from timeseries.store import StoreUnavailableError, write
from timeseries.victoriametrics import recent_writes, writer
from timeseries.victoriametrics.client import VictoriaMetricsClient
from timeseries.victoriametrics.recent_writes import RecentWrites
from timeseries.victoriametrics.store import VictoriaMetricsStore


class FixedAnswer(BaseHTTPRequestHandler):
    """Answers every request with the status that stands in its path's prefix."""

    seen: ClassVar[list[tuple[str, str | None, str | None]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        encoding = self.headers.get("Content-Encoding")
        self.seen.append((self.path, encoding, self.headers.get("Authorization")))
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Retry-After", "7")
        answer = b"no room for " + body[:10] if encoding is None else b""
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    FixedAnswer.seen.clear()
    with HTTPServer(("127.0.0.1", 0), FixedAnswer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def client_of(address: str, status: int) -> VictoriaMetricsClient:
    return VictoriaMetricsClient.from_url(f"victoriametrics://user:p%40ss@{address}/{status}")


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_full_names_the_time_to_wait(address: str, status: int) -> None:
    client = client_of(address, status)

    with pytest.raises(OverloadedError, match=f"status {status}") as caught:
        client.write(b"gpu x=1 1\n")

    assert caught.value.retry_after_seconds == 7
    client.close()


@pytest.mark.parametrize("status", [400, 401, 500])
def test_another_error_carries_the_servers_words_and_no_password(address: str, status: int) -> None:
    client = client_of(address, status)

    with pytest.raises(StoreUnavailableError, match=f"status {status}: no room for gpu") as caught:
        client.write(b"gpu x=1 1\n")

    assert "p@ss" not in str(caught.value)
    client.close()


def test_long_bodies_are_packed_and_credentials_are_sent(address: str) -> None:
    client = client_of(address, 204)

    client.write(b"gpu x=1 1\n" * 1_000)

    # Base64 of user:p@ss.
    assert FixedAnswer.seen == [("/204/write?precision=ms", "gzip", "Basic dXNlcjpwQHNz")]
    client.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("victoriametrics://host", "http://host:8428"),
        ("victoriametricss://u:p@host:443/vm/?database=x", "https://host:443/vm"),
        ("victoriametrics://[::1]:9", "http://[::1]:9"),
    ],
)
def test_a_url_names_scheme_host_port_and_path(url: str, expected: str) -> None:
    client = VictoriaMetricsClient.from_url(url)

    assert client.url == expected
    client.close()


def test_what_may_be_lost_is_forgotten_where_no_restart_of_the_server_can_be_seen(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(recent_writes, "RECENT_SECONDS", 0.0)
    store = VictoriaMetricsStore(client_of(address, 204), recent_folder=tmp_path)
    for value in (1.0, 2.0, 3.0):
        write(store, [Point("gpu", {}, {"x": value}, to_ns(utc_now()))], identity={})
    store.close()
    # The lines of the last interval and those since.
    with closing(RecentWrites(tmp_path)) as recent:
        assert len(list(recent.records())) == 2
