"""Processes that a broker connects count limits together."""

import threading
import time

import msgspec
import pytest

from core.broker import Broker
from core.rate_limits import MAX_SHARED_KEYS, ConcurrencyLimit
from core.shared_limits import (
    CHANNEL,
    KEYS_PER_MESSAGE,
    MAX_SENT_KEYS,
    SILENT_SECONDS,
    LimitMessage,
    SharedLimits,
)
from tests.cast import FrozenClock
from tests.fixtures.joined_brokers import JoinedBroker, joined_brokers

PER_SECOND = 1.0  # bursts of ten


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FrozenClock:
    clock = FrozenClock()
    monkeypatch.setattr("time.time", lambda: clock().timestamp())
    monkeypatch.setattr("time.monotonic", lambda: clock().timestamp())
    return clock


def is_free(limit: ConcurrencyLimit) -> bool:
    with limit.running("acme") as is_admitted:
        return is_admitted


def processes(count: int = 2) -> tuple[list[SharedLimits], list[JoinedBroker]]:
    brokers = joined_brokers(count)
    return [SharedLimits(broker) for broker in brokers], brokers


@pytest.mark.usefixtures("clock")
def test_what_one_process_has_counted_is_used_up_in_all() -> None:
    limits, _brokers = processes(3)
    rates = [process.rate("requests", PER_SECOND) for process in limits]
    for rate in rates:
        assert [rate.hit("alice") for _ in range(3)] == [0.0] * 3
    for process in limits:
        process.send()
    assert [rate.hit("alice") for rate in rates] == [0.0] * 3
    for process in limits:
        process.send()
    # Ten is the burst: 12 were admitted, 2 of them before their processes heard of the others.
    assert [rate.hit("alice") for rate in rates] == [10.0] * 3
    assert [rate.wait_seconds("bob") for rate in rates] == [0.0] * 3


def test_windows_end_together_and_never_later_than_that_of_the_first(clock: FrozenClock) -> None:
    (first, second), _brokers = processes()
    here, there = first.rate("requests", PER_SECOND), second.rate("requests", PER_SECOND)
    here.hit("alice", cost=10)
    clock.advance(4)
    assert there.hit("alice") == 0  # before it hears of the first
    first.send()
    assert (here.hit("alice"), there.hit("alice")) == (6.0, 6.0)
    clock.advance(6)
    assert (here.hit("alice"), there.hit("alice")) == (0.0, 0.0)


def test_use_of_a_window_that_is_over_is_not_counted_in_the_next(clock: FrozenClock) -> None:
    (first, second), brokers = processes()
    here, there = first.rate("requests", PER_SECOND), second.rate("requests", PER_SECOND)
    here.hit("alice", cost=9)
    clock.advance(10)
    first.send()
    assert brokers[0].sent == []
    here.hit("alice", cost=9)
    clock.advance(10)
    here.hit("alice")
    first.send()
    assert [there.hit("alice") for _ in range(10)] == [0.0] * 9 + [10.0]


@pytest.mark.usefixtures("clock")
def test_without_its_broker_a_process_counts_alone() -> None:
    (first, second), brokers = processes()
    here, there = first.rate("requests", PER_SECOND), second.rate("requests", PER_SECOND)
    brokers[0].is_away = True
    here.hit("alice", cost=10)
    first.send()
    assert (here.wait_seconds("alice"), there.wait_seconds("alice")) == (10.0, 0.0)
    brokers[0].is_away = False
    here.hit("bob", cost=10)
    first.send()
    assert there.wait_seconds("bob") == 10.0


def test_one_process_notes_nothing_for_others() -> None:
    limits = SharedLimits(Broker())
    rate = limits.rate("requests", PER_SECOND)
    rate.hit("alice")
    assert rate.windows.take_use() == []
    assert limits.rate("requests", PER_SECOND) is rate
    with limits.exchanged_in_background():
        assert "shared-limits" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("clock")
def test_the_keys_with_the_largest_use_are_sent_in_messages_of_bounded_size() -> None:
    (first, second), brokers = processes()
    here, there = first.rate("requests", 10_000.0), second.rate("requests", 10_000.0)
    here.hit("a" * 10_000, cost=10_000)
    for number in range(MAX_SENT_KEYS + 100):
        here.hit(f"user-{number}", cost=number + 1)
    first.send()
    assert len(brokers[0].sent) == MAX_SENT_KEYS / KEYS_PER_MESSAGE
    assert max(map(len, brokers[0].sent)) < 20_000
    assert len(there.windows.storage) == MAX_SENT_KEYS
    assert not any("user-99/" in key for key in there.windows.storage)
    first.send()
    assert len(brokers[0].sent) == MAX_SENT_KEYS / KEYS_PER_MESSAGE


def test_keys_of_others_are_bounded_and_expire_without_a_hit_here(clock: FrozenClock) -> None:
    rate = SharedLimits(joined_brokers()[0]).rate("requests", PER_SECOND)
    for number in range(MAX_SHARED_KEYS + 10):
        rate.windows.add_use(str(number), 1, 5.0)
    assert len(rate.windows.storage) == MAX_SHARED_KEYS
    clock.advance(10)
    rate.windows.add_use("last", 1, 5.0)
    assert list(rate.windows.storage) == ["last"]


def test_a_message_that_is_none_is_ignored() -> None:
    (first, second), brokers = processes()
    rate, sessions = first.rate("requests", PER_SECOND), first.concurrent("sessions", 1)
    good = LimitMessage(process="other", limit="requests", used={"alice": (1, 1000)})
    encoded = msgspec.msgpack.encode(good)
    for message in (
        b"",
        b"\xff" * 100,
        encoded[:-1],
        msgspec.msgpack.encode({"process": "other"}),
        msgspec.msgpack.encode(["other", "requests", {"alice": [-1, 5]}]),
        msgspec.msgpack.encode(["other", "requests", {"alice": [2**63, 5]}]),
        msgspec.msgpack.encode(["other", "requests", {"alice": [1, float("nan")]}]),
        msgspec.msgpack.encode(["other", "sessions", {}, {"a" * 1000: 1}]),
        msgspec.msgpack.encode(["other", "sessions", {}, {str(n): 1 for n in range(10_000)}]),
        msgspec.msgpack.encode(["other", "unknown", {"alice": [1, 5]}]),
    ):
        brokers[1].send(CHANNEL, message)
    assert not rate.windows.storage
    with sessions.running("0") as is_admitted:
        assert is_admitted
    second.rate("requests", 0.0)
    second.send()


@pytest.mark.usefixtures("clock")
def test_what_runs_elsewhere_takes_room_until_it_ends() -> None:
    (first, second), _brokers = processes()
    here, there = first.concurrent("sessions", 2), second.concurrent("sessions", 2)
    with here.running("acme"), here.running("acme"):
        first.send()
        with there.running("acme") as is_admitted, there.running("globex") as of_another:
            assert (is_admitted, of_another) == (False, True)
    first.send()
    with there.running("acme") as is_admitted:
        assert is_admitted


def test_counts_are_repeated_and_those_of_a_silent_process_are_forgotten(
    clock: FrozenClock,
) -> None:
    (first, second), brokers = processes()
    here, there = first.concurrent("sessions", 1), second.concurrent("sessions", 1)

    with here.running("acme"):
        first.send()
        first.send()
        assert len(brokers[0].sent) == 1
        for _ in range(5):
            clock.advance(SILENT_SECONDS / 2)
            first.send()
            assert not is_free(there)
        clock.advance(SILENT_SECONDS)
        assert is_free(there)
        second.send()
        assert not there._elsewhere  # noqa: SLF001 - what it remembers is the subject


def test_a_process_that_ends_says_so() -> None:
    (first, second), _brokers = processes()
    here, there = first.concurrent("sessions", 1), second.concurrent("sessions", 1)
    with here.running("acme"):
        with first.exchanged_in_background():
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and is_free(there):
                time.sleep(0.01)
            assert not is_free(there)
        assert is_free(there)
