"""The sender over real HTTP: what each answer of the portal does to the batch."""

from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.sending.access_points import AccessPoints
from collector.sending.probing import AccessPointProber
from collector.sending.sender import Outcome, Sender, SendResult
from tests.fixtures.recording_portal import RecordingPortal, Refusal
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.senders import fill, make_sender


def test_lines_arrive_as_they_were_written(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, "cpu usage_percent=1.5 1700000000000000001", "load load1=2 17")
    assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == [
        "cpu usage_percent=1.5 1700000000000000001",
        "load load1=2 17",
    ]
    assert sender.send_next().outcome is Outcome.NOTHING
    assert sender.counters.sent_points == 2


def test_the_retry_after_of_an_overloaded_portal_is_respected(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse(Refusal(429, "busy", {"Retry-After": "7"}))
    fill(buffer, hand_clock, "m v=1")
    result = sender.send_next()
    assert (result.outcome, result.wait_seconds) == (Outcome.FAILED, 7.0)
    assert buffer.points == 1
    assert sender.send_next().outcome is Outcome.SENT


def test_retry_after_can_be_a_date(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse(Refusal(503, "busy", {"Retry-After": "Sun, 01 Mar 2026 12:00:45 GMT"}))
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().wait_seconds == 45


@pytest.mark.parametrize(
    ("asked", "seconds"), [("inf", 3600), ("1e300", 3600), ("nan", 1), ("soon", 1), ("-5", 1)]
)
def test_a_time_to_come_back_that_makes_no_sense_is_bounded(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    *,
    asked: str,
    seconds: float,
) -> None:
    portal.refuse(Refusal(503, "busy", {"Retry-After": asked}))
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().wait_seconds <= seconds


def test_a_portal_that_is_away_is_not_waited_for_when_there_is_another(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    with RecordingPortal() as other:
        portal.refuse_always(Refusal(503, "starting", {"Retry-After": "40"}))
        portal.recording.is_healthy = False
        points = AccessPoints([portal.url, other.url], monotonic=hand_clock.seconds)
        prober = AccessPointProber(points, monotonic=hand_clock.seconds)
        sender = make_sender(buffer, points, hand_clock, aside=aside)
        fill(buffer, hand_clock, "m v=1")
        assert sender.send_next().wait_seconds <= 1
        prober.check()
        assert points.current == portal.url, "once is no reason to leave"
        assert sender.send_next().wait_seconds <= 2
        prober.check()
        assert sender.send_next().outcome is Outcome.SENT
        assert other.recording.lines == ["m v=1"]
        sender.close()


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_portal_is_waited_for_although_there_is_another(
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    aside: Path,
    *,
    status: int,
) -> None:
    with RecordingPortal() as other:
        portal.refuse_always(Refusal(status, "busy", {"Retry-After": "40"}))
        points = AccessPoints([portal.url, other.url], monotonic=hand_clock.seconds)
        prober = AccessPointProber(points, monotonic=hand_clock.seconds)
        sender = make_sender(buffer, points, hand_clock, aside=aside)
        fill(buffer, hand_clock, "m v=1")
        for _ in range(2):
            sender.send_next()
            prober.check()
        assert sender.send_next().wait_seconds == 40
        assert points.current == portal.url
        sender.close()


def test_waits_double_up_to_twenty_seconds(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse_always(Refusal(503))
    fill(buffer, hand_clock, "m v=1")
    waits = [sender.send_next().wait_seconds for _ in range(8)]
    assert 0.5 <= waits[0] <= 1
    assert 4 <= waits[3] <= 8
    assert all(10 <= wait <= 20 for wait in waits[5:])


def test_samples_of_an_outage_arrive_when_the_portal_is_back(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().outcome is Outcome.SENT
    portal.stop()
    for number in range(2, 5):
        fill(buffer, hand_clock, f"m v={number}")
    sender.close()  # the test's portal does not cut open connections as a crash would
    assert sender.send_next().outcome is Outcome.FAILED
    portal.start()
    assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == ["m v=1", "m v=2", "m v=3", "m v=4"]


def test_the_next_address_is_tried_when_one_does_not_answer(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    sender = make_sender(buffer, ["http://127.0.0.1:9", portal.url], hand_clock, aside=aside)
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next() == SendResult(Outcome.FAILED, wait_seconds=0.0)
    assert sender.send_next().outcome is Outcome.SENT
    sender.close()


def test_addresses_that_all_fail_are_not_tried_without_a_pause(
    buffer: DiskBuffer, hand_clock: HandClock, aside: Path
) -> None:
    urls = ["http://127.0.0.1:9", "http://127.0.0.1:8"]
    sender = make_sender(buffer, urls, hand_clock, aside=aside)
    fill(buffer, hand_clock, "m v=1")
    waits = [sender.send_next().wait_seconds for _ in range(4)]
    assert waits[0] == 0
    assert all(wait >= 0.5 for wait in waits[1:])
    sender.close()


def test_the_agent_token_authenticates(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    sender = make_sender(buffer, [portal.url], hand_clock, aside=aside, token="vda_wrong")
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().outcome is Outcome.REFUSED
    sender.close()


def test_after_an_outage_the_portal_gets_the_present_before_the_past(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse(Refusal(503), Refusal(503))
    fill(buffer, hand_clock, "m v=1")
    sender.send_next()
    hand_clock.advance(600)
    fill(buffer, hand_clock, "m v=2")
    sender.send_next()
    for _ in range(2):
        assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == ["m v=2", "m v=1"]
