"""Probes of access points over real HTTP: their rounds, and what ends requests under way."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from collector.sending.probing import IDLE_SECONDS, AccessPointProber
from protocol.attempts import DesiredState
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.listed_points import accept
from tests.unit.collector.senders import fill, make_sender

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers, as a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def make_prober(points: AccessPoints, clock: HandClock) -> AccessPointProber:
    return AccessPointProber(points, random=Random(1), monotonic=clock.seconds)  # noqa: S311


def test_a_round_times_each_that_is_healthy(portal: RecordingPortal, hand_clock: HandClock) -> None:
    points = AccessPoints([NOWHERE, portal.url], monotonic=hand_clock.seconds)
    prober = make_prober(points, hand_clock)
    left_seconds = prober.probe_when_due()
    assert 0 < left_seconds <= 5, "agents that start at once don't probe at once"
    hand_clock.advance(left_seconds)
    assert 45 <= prober.probe_when_due() <= 75
    prober.check()
    assert points.current == portal.url
    latency_seconds = points.latency_seconds
    assert latency_seconds is not None
    assert latency_seconds > 0


def test_an_address_that_reports_an_error_is_not_healthy(portal: RecordingPortal) -> None:
    portal.recording.is_healthy = False
    assert AccessPointProber(AccessPoints([portal.url])).probe(portal.url) is None


def test_one_address_is_not_probed(portal: RecordingPortal, hand_clock: HandClock) -> None:
    portal.recording.is_healthy = False
    prober = make_prober(AccessPoints([portal.url]), hand_clock)
    hand_clock.advance(60)
    assert (prober.probe_when_due(), prober.check()) == (IDLE_SECONDS, IDLE_SECONDS)


def test_a_new_list_is_probed_after_a_random_time(hand_clock: HandClock) -> None:
    waits = set()
    for number in range(20):
        points = AccessPoints([NOWHERE], monotonic=hand_clock.seconds)
        prober = AccessPointProber(
            points,
            random=Random(number),  # noqa: S311
            monotonic=hand_clock.seconds,
        )
        assert prober.probe_when_due() == IDLE_SECONDS
        accept(points, {"http://127.0.0.1:8": 100})
        waits.add(round(prober.probe_when_due()))
    assert max(waits) <= 30
    assert len(waits) > 10


def test_silent_addresses_are_probed_together_in_bounded_time(
    portal: RecordingPortal, silent: str
) -> None:
    urls = [*(f"{silent}/{number}" for number in range(3)), portal.url]
    prober = AccessPointProber(AccessPoints(urls))
    began = time.monotonic()
    latencies = prober.probe_all(urls, seconds=0.5)
    assert time.monotonic() - began < 5
    assert [url for url in urls if latencies[url] is not None] == [portal.url]


def test_a_write_that_hangs_is_repeated_at_the_next_address(
    buffer: DiskBuffer, portal: RecordingPortal, silent: str, aside: Path, hand_clock: HandClock
) -> None:
    points = AccessPoints([silent, portal.url], monotonic=hand_clock.seconds)
    sender = make_sender(buffer, points, hand_clock, aside=aside)
    fill(buffer, hand_clock, "m v=1")
    thread = Thread(target=sender.send_next)
    thread.start()
    prober = make_prober(points, hand_clock)
    eventually(lambda: hand_clock.advance(1) and points.suspicion())
    prober.check()
    thread.join(10)
    assert not thread.is_alive()
    assert points.current == portal.url
    sender.send_next()
    assert portal.recording.lines == ["m v=1"]
    sender.close()


def test_a_poll_that_waits_goes_on_at_the_address_that_the_agent_moves_to(
    portal: RecordingPortal, silent: str
) -> None:
    points = AccessPoints([silent, portal.url])
    portal.desire(DesiredState(generation=5))
    link = PortalConnection(points, agent_token=AGENT_TOKEN)
    received: list[DesiredState | None] = []
    thread = Thread(target=lambda: received.append(link.desired(4, wait_seconds=20.0)))
    thread.start()
    eventually(lambda: bool(link.http._in_use and link.http._in_use.sock))  # noqa: SLF001
    points.record_probes({silent: 0.5, portal.url: 0.01})
    thread.join(10)
    assert received == [DesiredState(generation=5)]
    assert points.has_healthy
    assert points.state.failovers == 0
    link.close()
