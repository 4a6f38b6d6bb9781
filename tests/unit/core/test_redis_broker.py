"""Messages between processes through a real Redis server, which may go away at any time."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis
from prometheus_client import REGISTRY
from sqlalchemy import create_engine

from core import redis_broker
from core.broker import Broker, BrokerState, join_changes, open_broker, redacted_redis_url
from core.changes import ANY, ChangeBus, Topic
from core.db import changes_of, create_session_factory
from core.redis_broker import MAX_MESSAGE_BYTES, RedisBroker, redis_url_problem
from core.settings import ServerSettings
from tests.fixtures.polling import eventually
from tests.fixtures.redis import RedisServer, redis_server

pytestmark = pytest.mark.needs_redis

KEY = b"k" * 64
# The longest that a silent host may go unnoticed, with time for a busy machine.
NOTICED_SECONDS = 5.0


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(running_server: RedisServer) -> RedisServer:
    return running_server


class Process:
    """A broker, and what it received."""

    def __init__(self, url: str, *, key: bytes = KEY) -> None:
        self.broker = RedisBroker(url, key=key)
        self.received: list[bytes] = []
        self.states: list[BrokerState] = []
        self.broker.listen("test", self.received.append)
        self.broker.watch(self.states.append)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def started(url: str, *, key: bytes = KEY) -> Process:
            process = Process(url, key=key)
            stack.enter_context(process.broker.running(wait_seconds=10))
            return process

        yield started


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("vedette_broker_messages_total", {"outcome": outcome}) or 0.0


def has_received(process: Process, count: int) -> bool:
    return len(process.received) == count


def is_connected(*processes: Process) -> bool:
    return all(process.broker.state is BrokerState.CONNECTED for process in processes)


def test_messages_reach_the_others_in_order_and_not_their_sender(
    server: RedisServer, start: Callable[..., Process]
) -> None:
    first, second, third = (start(server.url) for _ in range(3))
    assert is_connected(first, second, third)
    sent = [f"{number}".encode() for number in range(2_000)]
    for message in sent:
        first.broker.send("test", message)
    second.broker.send("test", b"back")
    eventually(lambda: len(third.received) == 2_001, what="all messages")
    eventually(lambda: len(second.received) == 2_000, what="all messages")
    assert second.received == sent
    assert first.received == [b"back"]


def test_a_message_takes_milliseconds(server: RedisServer, start: Callable[..., Process]) -> None:
    first, second = start(server.url), start(server.url)
    took = []
    for number in range(1, 21):
        began = time.monotonic()
        first.broker.send("test", b"x")
        eventually(partial(has_received, second, number), every_seconds=0.0005)
        took.append(time.monotonic() - began)
        time.sleep(0.02)
    assert sorted(took)[len(took) // 2] < 0.1


def test_two_portals_on_one_server_hear_nothing_of_each_other(
    server: RedisServer, start: Callable[..., Process]
) -> None:
    first, second, other = start(server.url), start(server.url), start(server.url, key=b"o" * 64)
    other.broker.send("test", b"other")
    first.broker.send("test", b"own")
    eventually(lambda: second.received, what="the message")
    assert second.received == [b"own"]
    assert other.received == []


def test_what_is_not_of_the_portal_or_malformed_is_counted_and_ignored(
    server: RedisServer, start: Callable[..., Process]
) -> None:
    first, second = start(server.url), start(server.url)
    channel, before = first.broker.channel, counted("malformed")
    forged = first.broker.packed([("test", b"forged")])
    content = b"\xc1"
    coded = first.broker.code(content) + content
    with redis.Redis(port=server.port) as client:
        for frame in (b"", b"x", b"\x00" * 100, forged[:-1] + b"!", coded, b"x" * 600_000):
            client.publish(channel, frame)
    first.broker.send("unknown channel", b"x")
    first.broker.send("test", b"after")
    eventually(lambda: second.received, what="the message")
    assert second.received == [b"after"]
    assert counted("malformed") - before == 12  # six, by both


def test_what_others_of_the_server_have_seen_they_can_not_send_again(
    server: RedisServer, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(server.url), start(server.url)
    ended = RedisBroker(server.url, key=KEY)
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
        old = ended.packed([("test", b"old")])
    frame = first.broker.packed([("test", b"once")])
    with redis.Redis(port=server.port) as client:
        for data in (frame, frame, old, old):
            client.publish(first.broker.channel, data)
    first.broker.send("test", b"after")
    eventually(lambda: b"after" in second.received, what="the message")
    assert second.received == [b"once", b"after"]


def test_a_failing_listener_stops_nobody(
    server: RedisServer, start: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start(server.url), start(server.url)

    def fail(_message: bytes) -> None:
        raise ValueError("broken")

    second.broker.listen("test", fail)
    second.broker.listen("test", second.received.append)
    first.broker.send("test", b"x")
    eventually(lambda: len(second.received) == 2, what="the message")
    assert "a message of another process was not handled" in caplog.text


def test_a_message_that_is_too_large_is_dropped(
    server: RedisServer, start: Callable[..., Process]
) -> None:
    first, second = start(server.url), start(server.url)
    before = counted("dropped")
    first.broker.send("test", b"x" * (MAX_MESSAGE_BYTES + 1))
    first.broker.send("test", b"x" * MAX_MESSAGE_BYTES)
    eventually(lambda: second.received, what="the message")
    assert [len(message) for message in second.received] == [MAX_MESSAGE_BYTES]
    assert counted("dropped") - before == 1


def test_the_queue_is_bounded_while_redis_does_not_answer(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    with redis_server(tmp_path) as server:
        process = start(server.url)
        server.be_silent()
        before, began = counted("dropped"), time.monotonic()
        for _ in range(500):
            process.broker.send("test", b"x" * MAX_MESSAGE_BYTES)
        assert time.monotonic() - began < 1
        assert counted("dropped") - before >= 500 - 16 * 1024 * 1024 / MAX_MESSAGE_BYTES - 8


def test_it_connects_again_after_a_restart(tmp_path: Path, start: Callable[..., Process]) -> None:
    with redis_server(tmp_path) as server:
        first, second = start(server.url), start(server.url)
        server.stop()
        eventually(lambda: not is_connected(first) and not is_connected(second))
        before = counted("dropped")
        first.broker.send("test", b"lost")
        assert counted("dropped") - before == 1
        assert "refused" in first.broker.problem
        server.start()
        eventually(lambda: is_connected(first, second), within_seconds=15)
        first.broker.send("test", b"again")
        eventually(lambda: second.received, what="the message")
        assert second.received == [b"again"]
        assert second.states == [
            BrokerState.AWAY,
            BrokerState.CONNECTED,
            BrokerState.AWAY,
            BrokerState.CONNECTED,
        ]


def test_a_host_that_vanishes_silently_is_noticed(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    with redis_server(tmp_path) as server:
        process = start(server.url)
        server.be_silent()
        eventually(lambda: not is_connected(process), within_seconds=NOTICED_SECONDS)
        server.speak()
        eventually(lambda: is_connected(process), within_seconds=15)


def test_a_server_that_is_absent_at_the_start_is_a_warning(
    tmp_path: Path, start: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path)
    process = start(f"redis://user:geheim@127.0.0.1:{server.port}")
    assert process.broker.state is BrokerState.AWAY
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"redis://127.0.0.1:{server.port} is away" in record.getMessage()
    assert "geheim" not in caplog.text + process.broker.problem


def test_passwords_and_sockets(
    tmp_path: Path, start: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "redis.sock"
    acl = [
        "--user",
        "vedette",
        "on",
        ">ge%heim",
        "&vedette:*",
        "+@connection",
        "+@pubsub",
        "--unixsocket",
        str(path),
    ]
    with redis_server(tmp_path, options=["--requirepass", "other", *acl]) as server:
        url = f"redis://vedette:ge%25heim@127.0.0.1:{server.port}"
        assert is_connected(start(url), start(f"unix://vedette:ge%25heim@{path}"))
        wrong = start(f"redis://vedette:falsch@127.0.0.1:{server.port}")
        assert wrong.broker.state is BrokerState.AWAY
        assert "invalid username-password pair" in wrong.broker.problem
        assert "falsch" not in caplog.text
        assert not {"geheim", "ge%25heim"} & set(caplog.text.split())


def test_a_user_who_may_not_publish_is_not_connected(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    acl = ["--user", "reader", "on", ">geheim", "+subscribe", "+ping", "+client", "&*"]
    with redis_server(tmp_path, options=acl) as server:
        process = start(f"redis://reader:geheim@127.0.0.1:{server.port}")
        assert process.broker.state is BrokerState.AWAY
        assert "publish" in process.broker.problem


def test_what_is_queued_at_the_end_is_sent(
    server: RedisServer, start: Callable[..., Process]
) -> None:
    receiver, sender = start(server.url), Process(server.url)
    with sender.broker.running(wait_seconds=10):
        for _ in range(100):
            sender.broker.send("test", b"x")
    eventually(lambda: len(receiver.received) == 100, what="all messages")


def test_the_end_does_not_wait_for_a_silent_server(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        process = Process(server.url)
        with process.broker.running(wait_seconds=10):
            server.be_silent()
            began = time.monotonic()
        assert time.monotonic() - began < 2 * redis_broker.CLOSE_SECONDS + 1


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://:p%40ss@redis.example.com:6379/2",
        "rediss://user:password@[::1]:6380?ssl_ca_certs=/etc/ssl/redis.pem",
        "unix:///run/redis/redis.sock",
        "unix://user:password@/run/redis/redis.sock?db=3",
    ],
)
def test_urls_that_can_be_used(url: str) -> None:
    assert redis_url_problem(url) == ""
    assert "p" not in redacted_redis_url(url).partition("://")[0]
    assert "pass" not in redacted_redis_url(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis.example.com:6379", "must begin with"),
        ("http://redis.example.com", "must begin with"),
        ("redis://", "needs a host"),
        ("redis://geheim@", "needs a host"),
        ("redis://host:99999", "its port must be a number"),
        ("redis://user:geh/eim@host:6379", "its port must be a number"),
        ("redis://host?socket_timeout=0", "unknown option 'socket_timeout'"),
        ("redis://host?db=two", "is not a URL"),
        ("unix://", "needs the path"),
        ("unix://relative", "needs the path"),
    ],
)
def test_urls_that_cannot_be_used(url: str, problem: str) -> None:
    assert problem in redis_url_problem(url)
    assert "geh" not in redis_url_problem(url)


def settings_of(server: RedisServer, folder: Path) -> ServerSettings:
    return ServerSettings(data_dir=folder, redis_url=server.url, secret_key="one key")


class SharedBus:
    """A process with its bus, joined to others."""

    def __init__(self, stack: ExitStack, settings: ServerSettings) -> None:
        self.bus: ChangeBus = changes_of(create_session_factory(create_engine("sqlite://")))
        self.told: list[tuple[Topic, tuple[str, ...]]] = []
        for topic in Topic:
            self.bus.listen(topic, partial(self.note, topic))
        self.broker = stack.enter_context(open_broker(settings, wait_seconds=10))
        join_changes(self.broker, self.bus)

    def note(self, topic: Topic, idents: Collection[str]) -> None:
        self.told.append((topic, tuple(idents)))


def test_changes_cross_processes(server: RedisServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (SharedBus(stack, settings_of(server, tmp_path)) for _ in range(2))
        assert first.bus.is_complete
        assert second.bus.is_complete
        eventually(lambda: first.told.count((Topic.JOB, (ANY,))) == 2, what="the other's start")
        first.told.clear()
        second.told.clear()
        first.bus.publish(Topic.DESIRED, [f"appliance {number}" for number in range(300)])
        first.bus.publish(Topic.JOB, ["job"])
        eventually(lambda: (Topic.JOB, ("job",)) in second.told, what="the change")
        assert [len(idents) for _topic, idents in second.told] == [200, 100, 1]
        assert [len(idents) for _topic, idents in first.told] == [300, 1]
        first.bus.publish(Topic.JOB, [f"job {number}" for number in range(6_000)])
        eventually(lambda: (Topic.JOB, (ANY,)) in second.told, what="the changes")


def test_all_check_once_when_redis_is_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, ExitStack() as stack:
        process = SharedBus(stack, settings_of(server, tmp_path))
        server.stop()
        eventually(lambda: not process.bus.is_complete, what="the loss")
        process.told.clear()
        process.bus.publish(Topic.JOB, ["while away"])
        server.start()
        eventually(lambda: process.bus.is_complete, within_seconds=15, what="the connection")
        assert (Topic.DESIRED, (ANY,)) in process.told


def test_without_a_url_there_is_no_broker(tmp_path: Path) -> None:
    with open_broker(ServerSettings(data_dir=tmp_path)) as broker:
        bus = ChangeBus()
        join_changes(broker, bus)
        assert type(broker) is Broker
        assert (broker.state, bus.is_complete, bus.pass_on) == (BrokerState.NONE, False, None)
