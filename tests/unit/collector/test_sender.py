"""The sender over real HTTP: what each answer of the portal does to the batch."""

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.sending.addresses import PortalAddresses
from collector.sending.sender import Outcome, Sender
from collector.sending.targets import APITarget
from collector.sending.undeliverable import UndeliverableLines
from core.clock import to_ns
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal, Refusal
from tests.unit.collector.conftest import HandClock


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    """Where refused lines are kept."""
    return tmp_path / "undeliverable.log"


@pytest.fixture
def sender(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> Iterator[Sender]:
    sender = make_sender(buffer, [portal.url], hand_clock, aside=aside)
    yield sender
    sender.close()


def make_sender(
    buffer: DiskBuffer,
    urls: list[str],
    clock: HandClock,
    *,
    aside: Path,
    token: str = AGENT_TOKEN,
) -> Sender:
    return Sender(
        buffer,
        PortalAddresses(urls, monotonic=clock.seconds),
        APITarget(token=token, timeout_seconds=60),
        clock=clock,
        undeliverable=UndeliverableLines(aside),
        random=Random(1),  # noqa: S311 - jitter that can be repeated
    )


def fill(buffer: DiskBuffer, clock: HandClock, *lines: str) -> None:
    buffer.append(Frame("\n".join(lines).encode(), len(lines), to_ns(clock.now)))


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


def test_lines_that_the_portal_refuses_are_named_and_not_sent_again(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(buffer, hand_clock, "m v=1", "nonsense", "m v=2")
    assert sender.send_next().outcome is Outcome.SENT_IN_PART
    assert portal.recording.lines == ["m v=1", "m v=2"]
    assert "line 2: no field" in caplog.text
    assert buffer.points == 0
    assert sender.counters.undeliverable_lines == 1


def test_refused_lines_are_kept_aside_with_the_reason(
    sender: Sender, buffer: DiskBuffer, hand_clock: HandClock, aside: Path
) -> None:
    fill(buffer, hand_clock, "m v=1", "nonsense", "m v=2")
    sender.send_next()
    assert aside.read_text() == "# 2026-03-01T12:00:00+00:00 no field\nnonsense\n"


def test_a_server_that_does_not_name_the_line_is_asked_with_smaller_parts(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    aside: Path,
) -> None:
    portal.recording.refuses_whole_batches = True
    good = [f"m v={number}" for number in range(100)]
    fill(buffer, hand_clock, *good[:37], 'm s="it\nnonsense"', "nonsense", *good[37:])
    assert sender.send_next().outcome is Outcome.SENT_IN_PART
    assert portal.recording.lines == [*good[:37], *good[37:]]
    assert sender.counters.undeliverable_lines == 3
    assert 'm s="it\nnonsense"\n' in aside.read_text()


def test_a_batch_of_nothing_but_bad_lines_is_given_up_after_some_tries(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse_always(Refusal(400, "unable to parse"))
    fill(buffer, hand_clock, *(f"m v={number}" for number in range(1000)))
    assert sender.send_next().outcome is Outcome.SENT_IN_PART
    assert sender.counters.undeliverable_lines == 1000
    assert portal.recording.refused < 100


def test_a_web_page_of_a_proxy_is_not_taken_for_the_servers_word(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = "<html><head><title>400 No required SSL certificate was sent</title></head></html>"
    portal.refuse_always(Refusal(400, page=page))
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().outcome is Outcome.FAILED
    assert buffer.points == 1
    assert "No required SSL certificate was sent. Samples are kept." in caplog.text
    assert "client_certificate_file" in caplog.text


def test_a_body_that_is_too_large_is_sent_in_halves(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.recording.largest_body_bytes = 60
    for number in range(10):
        fill(buffer, hand_clock, f"m v={number} 1700000000000000000")
    assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == [f"m v={number} 1700000000000000000" for number in range(10)]


def test_a_frame_that_is_too_large_is_split_by_lines_and_a_hopeless_line_dropped(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.recording.largest_body_bytes = 60
    fill(buffer, hand_clock, "m v=1", "m v=" + "9" * 80, "m v=2")
    assert sender.send_next().outcome is Outcome.SENT_IN_PART
    assert portal.recording.lines == ["m v=1", "m v=2"]
    assert sender.counters.undeliverable_lines == 1


def test_an_overloaded_portal_is_given_the_time_that_it_asks_for(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse(Refusal(429, "busy", {"Retry-After": "7"}))
    fill(buffer, hand_clock, "m v=1")
    result = sender.send_next()
    assert (result.outcome, result.wait_seconds) == (Outcome.FAILED, 7.0)
    assert buffer.points == 1
    assert sender.send_next().outcome is Outcome.SENT


def test_a_date_says_when_to_come_back_too(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse(Refusal(503, "busy", {"Retry-After": "Sun, 01 Mar 2026 12:00:45 GMT"}))
    fill(buffer, hand_clock, "m v=1")
    assert sender.send_next().wait_seconds == 45


def test_a_portal_that_is_away_is_not_waited_for_when_there_is_another(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    with RecordingPortal() as other:
        portal.refuse_always(Refusal(503, "starting", {"Retry-After": "40"}))
        sender = make_sender(buffer, [portal.url, other.url], hand_clock, aside=aside)
        fill(buffer, hand_clock, "m v=1")
        assert sender.send_next().wait_seconds <= 1
        assert sender.send_next().outcome is Outcome.SENT
        assert other.recording.lines == ["m v=1"]
        sender.close()


def test_waits_double_up_to_half_a_minute(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse_always(Refusal(503))
    fill(buffer, hand_clock, "m v=1")
    waits = [sender.send_next().wait_seconds for _ in range(8)]
    assert 0.5 <= waits[0] <= 1
    assert 4 <= waits[3] <= 8
    assert all(15 <= wait <= 30 for wait in waits[5:])


def test_a_refused_agent_keeps_its_samples_and_says_so_once_a_minute(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    portal.refuse_always(Refusal(401, "token revoked"))
    fill(buffer, hand_clock, "m v=1")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert sender.send_next().outcome is Outcome.REFUSED
        assert caplog.text.count("enrol it again") == 1
        hand_clock.advance(61)
        sender.send_next()
    assert caplog.text.count("enrol it again") == 2
    assert "token revoked" in caplog.text
    assert buffer.points == 1


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
    assert sender.send_next().outcome is Outcome.FAILED
    assert sender.send_next().outcome is Outcome.SENT
    sender.close()


def test_the_agent_token_is_what_authenticates(
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


def test_refused_lines_that_can_not_be_kept_aside_do_not_hold_up_the_others(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    aside.mkdir()
    fill(buffer, hand_clock, "m v=1", "nonsense", "m v=2")
    assert sender.send_next().outcome is Outcome.SENT_IN_PART
    assert portal.recording.lines == ["m v=1", "m v=2"]
