"""Samples onward by remote_write: what is sent, and what each answer does."""

from collections import deque
from collections.abc import Iterator, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.config import load_agent_config
from collector.remote_write.encoding import snappy
from collector.remote_write.settings import RemoteWriteSettings, check_remote_write
from collector.remote_write.writer import RemoteWriter
from core.errors import ConfigurationError
from plugins.prometheus.relabeling import Action, RelabelRule
from tests.fixtures.remote_write import series_in
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.senders import fill
from tests.unit.collector.test_buffer_follower import opened

Answer = tuple[int, Mapping[str, str]]


class Receiver(ThreadingHTTPServer):
    """Records requests; answers them as told, and 204 otherwise."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.headers: list[Message] = []
        self.answers: deque[Answer] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/v1/write"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers.append(self.headers)
        status, headers = self.server.answers.popleft() if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def followed_buffer(tmp_path: Path, hand_clock: HandClock) -> DiskBuffer:
    return opened(tmp_path, hand_clock)


def writer_to(settings: RemoteWriteSettings, buffer: DiskBuffer, clock: HandClock) -> RemoteWriter:
    return RemoteWriter(
        settings,
        buffer,
        appliance="gpu-01",
        clock=clock,
        environ={},
        random=Random(1),  # noqa: S311 - jitter that can be repeated
    )


def test_samples_have_the_names_and_labels_of_promql(
    receiver: Receiver, followed_buffer: DiskBuffer, hand_clock: HandClock, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    settings = RemoteWriteSettings(
        url=receiver.url,
        username="agent",
        password_file=password,
        headers={"X-Scope-OrgID": "site"},
        external_labels={"site": "vienna", "gpu": "unused"},
        relabel=(RelabelRule(action=Action.DROP, source_labels=("__name__",), regex="gpu_fan_.*"),),
    )
    writer = writer_to(settings, followed_buffer, hand_clock)
    fill(
        followed_buffer,
        hand_clock,
        'gpu,gpu=0,my-tag=x power_watts=301.5,fan_percent=3i,is_on=t,name="H100" 2000000000',
        "gpu,gpu=0,my-tag=x power_watts=300 1000000000",
        "node_load1 value=7i 1000000000",
    )
    assert writer.send_next() == 0

    (body,) = receiver.bodies
    gpu = [("appliance", "gpu-01"), ("gpu", "0"), ("my_tag", "x"), ("site", "vienna")]
    assert series_in(body) == {
        (("__name__", "gpu_power_watts"), *gpu): [(1000, 300), (2000, 301.5)],
        (("__name__", "gpu_is_on"), *gpu): [(2000, 1)],
        (
            ("__name__", "node_load1"),
            ("appliance", "gpu-01"),
            ("gpu", "unused"),
            ("site", "vienna"),
        ): [(1000, 7)],
    }
    (headers,) = receiver.headers
    assert headers["Authorization"] == "Basic YWdlbnQ6c2VjcmV0"
    assert (headers["X-Scope-OrgID"], headers["Content-Encoding"]) == ("site", "snappy")
    assert headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert writer.metrics()["remote_write_sent_samples"] == 4
    writer.close()


def test_each_answer_keeps_or_gives_up_a_batch(
    receiver: Receiver, followed_buffer: DiskBuffer, hand_clock: HandClock
) -> None:
    writer = writer_to(RemoteWriteSettings(url=receiver.url), followed_buffer, hand_clock)
    fill(followed_buffer, hand_clock, "a v=1 1000000000", "b v=1 1000000000")
    receiver.answers.extend(
        [(503, {}), (401, {}), (429, {"Retry-After": "90"}), (413, {}), (204, {}), (400, {})]
    )
    assert 0.5 <= writer.send_next() <= 1
    assert writer.send_next() > 0
    hand_clock.advance(30)
    assert writer.send_next() == 90
    assert writer.metrics()["remote_write_lag_seconds"] == 30
    # Too large: in halves, of which one is refused for good.
    assert writer.send_next() == 0
    assert [len(series_in(body)) for body in receiver.bodies] == [2, 2, 2, 2, 1, 1]
    assert writer.metrics() == {
        "remote_write_lag_seconds": 0,
        "remote_write_sent_samples": 1,
        "remote_write_rejected_samples": 1,
        "remote_write_failures": 3,
        "remote_write_dropped_points": 0,
    }
    assert followed_buffer.follow() is None
    writer.close()


def test_no_answer_keeps_a_batch(followed_buffer: DiskBuffer, hand_clock: HandClock) -> None:
    settings = RemoteWriteSettings(url="http://127.0.0.1:1/api/v1/write")
    writer = writer_to(settings, followed_buffer, hand_clock)
    fill(followed_buffer, hand_clock, "a v=1 1000000000")
    assert [writer.send_next() > 0 for _ in range(3)] == [True] * 3
    assert followed_buffer.follow() is not None
    writer.close()


def test_data_of_any_size_is_valid_snappy() -> None:
    import cramjam  # noqa: PLC0415 - the server's

    for size in (0, 1, 60, 61, 256, 257, 65_535, 65_536, 65_537, 200_000):
        content = Random(size).randbytes(size)  # noqa: S311 - repeatable
        assert bytes(cramjam.snappy.decompress_raw(snappy(content))) == content


def test_settings_report_all_their_errors(tmp_path: Path) -> None:
    _, errors = check_remote_write(
        {
            "url": "prometheus:9090",
            "username": "x",
            "bearer_token_file": str(tmp_path / "missing"),
            "external_labels": {"my-site": "x"},
        }
    )
    text = "\n".join(errors)
    for part in ("http://", "both bearer_token_file", "together", "can't be read", "'my-site'"):
        assert part in text
    path = tmp_path / "agent.toml"
    path.write_text(
        'portal_urls = ["http://p"]\n[remote_write]\nurl = "http://prometheus:9090/api/v1/write"\n'
        '[[remote_write.relabel]]\naction = "drop"\nsource_labels = ["__name__"]\nregex = "disk_.*"'
    )
    settings = load_agent_config(path).remote_write
    assert settings is not None
    assert [rule.action for rule in settings.relabel] == [Action.DROP]
    path.write_text('portal_urls = ["http://p"]\n[remote_write]\nurl = 5\nurls = "x"')
    with pytest.raises(ConfigurationError, match=r"remote_write\.urls"):
        load_agent_config(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "can't be read"), (b"\xff", "can't be read"), (b"", "is empty"), (b"a\nb", "ASCII")],
)
def test_a_token_that_cannot_be_used_is_reported_once_and_read_again(  # noqa: PLR0917 - fixtures
    followed_buffer: DiskBuffer,
    hand_clock: HandClock,
    receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    said: str,
) -> None:
    token_file = tmp_path / "token"
    if content is not None:
        token_file.write_bytes(content)
    settings = RemoteWriteSettings(url=receiver.url, bearer_token_file=token_file)
    writer = writer_to(settings, followed_buffer, hand_clock)
    fill(followed_buffer, hand_clock, "cpu usage=1")
    for _ in range(3):
        assert writer.send_next() > 0
        hand_clock.advance(120)
    assert [said in message for message in caplog.messages] == [True]
    assert not receiver.bodies
    token_file.write_text("secret\n")
    assert writer.send_next() == 0
    assert receiver.headers[0]["Authorization"] == "Bearer secret"
    writer.close()
