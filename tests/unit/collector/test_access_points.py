"""The agent uses the nearest healthy access point, without taking turns."""

import pytest

from collector.sending.access_points import PROBE_INTERVAL_SECONDS, AccessPointProber, AccessPoints
from tests.fixtures.recording_portal import RecordingPortal
from tests.unit.collector.hand_clock import HandClock

NEAR, FAR = "http://near", "http://far"


@pytest.fixture
def addresses(hand_clock: HandClock) -> AccessPoints:
    return AccessPoints([FAR, NEAR], monotonic=hand_clock.seconds)


def test_the_first_is_used_before_anything_is_measured(addresses: AccessPoints) -> None:
    assert addresses.current == FAR
    assert addresses.latency_seconds is None


def test_the_one_with_the_lowest_latency_is_used(addresses: AccessPoints) -> None:
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == NEAR
    assert addresses.latency_seconds == 0.010


@pytest.mark.parametrize(
    ("far_seconds", "near_seconds"),
    [(0.100, 0.085), (0.010, 0.006)],
    ids=["less than a fifth", "less than 5 ms"],
)
def test_a_little_better_is_no_reason_to_change(
    addresses: AccessPoints, far_seconds: float, near_seconds: float
) -> None:
    addresses.record_probes({FAR: far_seconds, NEAR: near_seconds})
    assert addresses.current == FAR


def test_one_slow_answer_is_no_reason_to_change(addresses: AccessPoints) -> None:
    for _ in range(3):
        addresses.record_probes({FAR: 0.010, NEAR: 0.020})
    addresses.record_probes({FAR: 0.500, NEAR: 0.020})
    assert addresses.current == FAR


def test_a_failed_one_is_left_and_returned_to_when_it_is_better(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    addresses.record_failure(NEAR)
    assert addresses.current == FAR
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == FAR, "it is avoided for a while"
    hand_clock.advance(16)
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == NEAR


def test_an_address_that_fails_again_is_avoided_longer(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    stays = []
    for _ in range(4):
        addresses.record_probes({FAR: 0.080, NEAR: 0.010})
        addresses.record_failure(NEAR)
        seconds = 0
        while addresses.current == FAR:
            seconds += 1
            hand_clock.advance(1)
            addresses.record_probes({FAR: 0.080, NEAR: 0.010})
        stays.append(seconds)
    assert stays == [15, 30, 60, 120]


def test_an_answer_ends_the_avoiding(addresses: AccessPoints) -> None:
    addresses.record_failure(FAR)
    addresses.record_failure(NEAR)
    assert not addresses.has_healthy
    addresses.record_success(NEAR, 0.1)
    assert addresses.has_healthy


def test_one_that_does_not_answer_a_probe_is_left_before_a_batch_fails(
    addresses: AccessPoints,
) -> None:
    addresses.record_probes({FAR: None, NEAR: 0.200})
    assert addresses.current == NEAR
    addresses.record_probes({FAR: 0.010, NEAR: 0.200})
    assert addresses.current == FAR


def test_when_none_is_healthy_all_are_tried_in_turn(addresses: AccessPoints) -> None:
    tried = []
    for _ in range(4):
        tried.append(addresses.current)
        addresses.record_failure(addresses.current)
    assert tried == [FAR, NEAR, FAR, NEAR]


def test_several_threads_noticing_one_outage_count_it_once(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    for _ in range(3):
        addresses.record_failure(FAR)
    hand_clock.advance(16)
    addresses.record_probes({FAR: 0.010, NEAR: 0.200})
    assert addresses.current == FAR


def test_with_one_address_the_writes_are_timed() -> None:
    addresses = AccessPoints([NEAR])
    for seconds in (0.010, 0.030, 0.020):
        addresses.record_success(NEAR, seconds)
    assert addresses.latency_seconds == 0.020


def test_probes_time_each_that_is_healthy(portal: RecordingPortal) -> None:
    nowhere = "http://127.0.0.1:9"
    addresses = AccessPoints([nowhere, portal.url])
    prober = AccessPointProber(addresses, timeout_seconds=60)
    assert prober.step() == PROBE_INTERVAL_SECONDS
    assert addresses.current == portal.url
    latency_seconds = addresses.latency_seconds
    assert latency_seconds is not None
    assert latency_seconds > 0


def test_an_address_that_reports_an_error_is_not_healthy(portal: RecordingPortal) -> None:
    portal.recording.is_healthy = False
    assert AccessPointProber(AccessPoints([portal.url])).probe(portal.url) is None
