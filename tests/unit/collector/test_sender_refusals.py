"""Refusals by a portal: bad lines, batches that are too large, and a blocked agent."""

import logging
from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.sending.sender import FAILURES_PER_BISECTION, Outcome, Sender
from tests.fixtures.recording_portal import RecordingPortal, Refusal
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.senders import fill, make_sender


def test_lines_that_the_portal_refuses_are_named_and_not_sent_again(
    sender: Sender,
    buffer: DiskBuffer,
    portal: RecordingPortal,
    hand_clock: HandClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(buffer, hand_clock, "m v=1", "nonsense", "m v=2")
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert portal.recording.lines == ["m v=1", "m v=2"]
    assert "line 2: no field" in caplog.text
    assert buffer.points == 0
    assert sender.counters.undeliverable_lines == 1


def test_rejected_lines_are_logged_with_the_reason(
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
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert portal.recording.lines == [*good[:37], *good[37:]]
    assert sender.counters.undeliverable_lines == 3
    assert 'm s="it\nnonsense"\n' in aside.read_text()


def test_a_batch_of_nothing_but_bad_lines_is_given_up_after_some_tries(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse_always(Refusal(400, "unable to parse"))
    fill(buffer, hand_clock, *(f"m v={number}" for number in range(1000)))
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert sender.counters.undeliverable_lines == 1000
    assert portal.recording.refused < 100


def failed_until_bisected(sender: Sender) -> None:
    for _ in range(FAILURES_PER_BISECTION):
        assert sender.send_next().outcome is Outcome.FAILED


def test_a_line_that_the_portal_always_fails_on_does_not_hold_up_the_others(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    portal.recording.fails_on = "poison"
    good = [f"m v={number}" for number in range(50)]
    fill(buffer, hand_clock, *good[:20], "poison v=1", *good[20:30])
    fill(buffer, hand_clock, *good[30:], "poison v=2")
    failed_until_bisected(sender)
    assert (portal.recording.lines, buffer.points) == ([], 52)
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert portal.recording.lines == good
    assert [line for line in aside.read_text().splitlines() if "#" not in line] == [
        "poison v=1",
        "poison v=2",
    ]
    assert (sender.counters.undeliverable_lines, buffer.points) == (2, 0)


def test_a_portal_that_fails_on_everything_gets_all_samples_when_it_is_mended(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    lines = [f"m v={number}" for number in range(100)]
    fill(buffer, hand_clock, *lines)
    portal.recording.fails_on = "m"
    for _ in range(4 * FAILURES_PER_BISECTION):
        assert sender.send_next().outcome is Outcome.FAILED
    assert portal.recording.refused < 4 * (FAILURES_PER_BISECTION + 20)
    portal.recording.fails_on = ""
    assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == lines
    assert sender.counters.undeliverable_lines == 0


def test_rejected_lines_that_can_not_be_logged_do_not_block_the_others(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    aside.mkdir()
    fill(buffer, hand_clock, "m v=1", "nonsense", "m v=2")
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert portal.recording.lines == ["m v=1", "m v=2"]


def test_a_proxys_web_page_does_not_count_as_the_servers_response(
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
    assert "No required SSL certificate was sent. Samples stay in the buffer." in caplog.text
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
    assert sender.send_next().outcome is Outcome.PARTLY_SENT
    assert portal.recording.lines == ["m v=1", "m v=2"]
    assert sender.counters.undeliverable_lines == 1


def test_every_line_arrives_however_small_the_servers_size_limit(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.recording.largest_body_bytes = 30
    lines = [f"m v={number} 1700000000000000000" for number in range(50)]
    fill(buffer, hand_clock, *lines)
    assert sender.send_next().outcome is Outcome.SENT
    assert portal.recording.lines == lines
    assert sender.counters.undeliverable_lines == 0


def test_a_refused_agent_stores_its_samples_and_warns_once_a_minute(
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
        assert caplog.text.count("Samples stay in the buffer") == 1
        hand_clock.advance(61)
        sender.send_next()
    assert caplog.text.count("Samples stay in the buffer") == 2
    assert "token revoked" in caplog.text
    assert buffer.points == 1


def test_a_refused_agent_retries_less_and_less_often(
    sender: Sender, buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock
) -> None:
    portal.refuse_always(Refusal(401, "The appliance 'dgx-1' was retired."))
    fill(buffer, hand_clock, "m v=1")
    waits = [sender.send_next().wait_seconds for _ in range(12)]
    assert waits[0] <= 1
    assert all(150 <= wait <= 300 for wait in waits[9:])
    portal.refuse_always(None)
    assert sender.send_next().outcome is Outcome.SENT


def test_other_access_points_are_used_if_one_refuses_the_agent(
    buffer: DiskBuffer, portal: RecordingPortal, hand_clock: HandClock, aside: Path
) -> None:
    with RecordingPortal() as other:
        portal.refuse_always(Refusal(401, "unknown agent"))
        sender = make_sender(buffer, [portal.url, other.url], hand_clock, aside=aside)
        fill(buffer, hand_clock, "m v=1")
        assert sender.send_next().outcome is Outcome.REFUSED
        assert sender.send_next().outcome is Outcome.SENT
        assert other.recording.lines == ["m v=1"]
        sender.close()
