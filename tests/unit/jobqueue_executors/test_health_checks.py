"""HTTP and TCP health checks, against servers that listen."""

import socket
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from jobqueue.executors.docker.health import HealthChecks, probe
from protocol.attempts import Health
from protocol.job_spec import HealthCheck, HealthCheckKind
from protocol.notation import format_health_check, parse_health_check
from tests.fixtures.polling import eventually


class Answers(BaseHTTPRequestHandler):
    """Answers `/health` as its server says, and redirects everything else."""

    status = HTTPStatus.OK

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        self.send_response(type(self).status if is_health else HTTPStatus.FOUND)
        self.send_header("Location", "http://203.0.113.1/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Answers.status = HTTPStatus.OK
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_status_below_400_is_healthy_and_redirects_are_not_followed(address: str) -> None:
    check = parse_health_check("http:8000/health")
    assert probe(check, address) == ""
    assert probe(parse_health_check("http:8000/elsewhere"), address) == ""
    Answers.status = HTTPStatus.SERVICE_UNAVAILABLE
    assert "503" in probe(check, address)


def test_an_open_port_is_healthy_one_that_closes_at_once_or_is_closed_is_not(address: str) -> None:
    check = HealthCheck(kind=HealthCheckKind.TCP, port=8000, timeout_seconds=0.2)
    assert probe(check, address) == ""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]

        def accept_and_close() -> None:
            proxy.accept()[0].close()

        closing = Thread(target=accept_and_close, daemon=True)
        closing.start()
        assert "8000" in probe(check, f"127.0.0.1:{port}")
        closing.join()
    assert "8000" in probe(check, f"127.0.0.1:{port}")


def test_health_follows_the_checks_and_starts_afresh_with_the_container(address: str) -> None:
    checks = HealthChecks()
    check = HealthCheck(
        kind=HealthCheckKind.HTTP,
        path="/health",
        port=8000,
        interval_seconds=0.01,
        grace_seconds=3600,
        max_failures=2,
    )

    def health(started_at_ns: int = 1) -> Health:
        return checks.check("one", check, address, started_at_ns=started_at_ns).health

    eventually(lambda: health() is Health.HEALTHY)
    Answers.status = HTTPStatus.INTERNAL_SERVER_ERROR
    eventually(lambda: health() is Health.UNHEALTHY)
    # Within the grace of the new start, failures don't count.
    eventually(lambda: "500" in checks.check("one", check, address, started_at_ns=2).problem)
    assert health(2) is Health.STARTING
    checks.close()


@pytest.mark.parametrize(
    "text", ["http:8000/", "http:8000/a/b?c=d", "tcp:5432", "command:pg_isready -U postgres"]
)
def test_a_check_is_written_as_it_is_read(text: str) -> None:
    assert format_health_check(parse_health_check(text)) == text


@pytest.mark.parametrize(
    "text", ["", "8000", "http:", "http:x/", "tcp:1/path", "command: ", "ftp:1"]
)
def test_other_texts_are_no_checks(text: str) -> None:
    with pytest.raises(ValueError, match="health check"):
        parse_health_check(text)
