"""Which access point is used: the nearest healthy one, without taking turns."""

import pytest

from collector.sending.addresses import PortalAddresses
from collector.sending.probes import PROBE_EVERY_SECONDS, AccessPointProber
from tests.fixtures.recording_portal import RecordingPortal
from tests.unit.collector.hand_clock import HandClock

NEAR, FAR = "http://near", "http://far"


@pytest.fixture
def addresses(hand_clock: HandClock) -> PortalAddresses:
    return PortalAddresses([FAR, NEAR], monotonic=hand_clock.seconds)


def test_the_first_is_used_before_anything_is_measured(addresses: PortalAddresses) -> None:
    assert addresses.current == FAR
    assert addresses.latency_seconds is None


def test_the_one_with_the_lowest_latency_is_used(addresses: PortalAddresses) -> None:
    addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == NEAR
    assert addresses.latency_seconds == 0.010


@pytest.mark.parametrize(
    ("far_seconds", "near_seconds"),
    [(0.100, 0.085), (0.010, 0.006)],
    ids=["less than a fifth", "less than 5 ms"],
)
def test_a_little_better_is_no_reason_to_change(
    addresses: PortalAddresses, far_seconds: float, near_seconds: float
) -> None:
    addresses.mark_probed({FAR: far_seconds, NEAR: near_seconds})
    assert addresses.current == FAR


def test_one_slow_answer_is_no_reason_to_change(addresses: PortalAddresses) -> None:
    for _ in range(3):
        addresses.mark_probed({FAR: 0.010, NEAR: 0.020})
    addresses.mark_probed({FAR: 0.500, NEAR: 0.020})
    assert addresses.current == FAR


def test_a_failed_one_is_left_and_returned_to_when_it_is_better(
    addresses: PortalAddresses, hand_clock: HandClock
) -> None:
    addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
    addresses.mark_failed(NEAR)
    assert addresses.current == FAR
    addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == FAR, "it is avoided for a while"
    hand_clock.advance(16)
    addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == NEAR


def test_one_that_keeps_failing_is_avoided_ever_longer(
    addresses: PortalAddresses, hand_clock: HandClock
) -> None:
    stays = []
    for _ in range(4):
        addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
        addresses.mark_failed(NEAR)
        seconds = 0
        while addresses.current == FAR:
            seconds += 1
            hand_clock.advance(1)
            addresses.mark_probed({FAR: 0.080, NEAR: 0.010})
        stays.append(seconds)
    assert stays == [15, 30, 60, 120]


def test_an_answer_ends_the_avoiding(addresses: PortalAddresses) -> None:
    addresses.mark_failed(FAR)
    addresses.mark_failed(NEAR)
    assert not addresses.has_healthy
    addresses.mark_answered(NEAR, 0.1)
    assert addresses.has_healthy


def test_one_that_does_not_answer_a_probe_is_left_before_a_batch_fails(
    addresses: PortalAddresses,
) -> None:
    addresses.mark_probed({FAR: None, NEAR: 0.200})
    assert addresses.current == NEAR
    addresses.mark_probed({FAR: 0.010, NEAR: 0.200})
    assert addresses.current == FAR


def test_when_none_is_healthy_all_are_tried_in_turn(addresses: PortalAddresses) -> None:
    tried = []
    for _ in range(4):
        tried.append(addresses.current)
        addresses.mark_failed(addresses.current)
    assert tried == [FAR, NEAR, FAR, NEAR]


def test_several_threads_noticing_one_outage_count_it_once(
    addresses: PortalAddresses, hand_clock: HandClock
) -> None:
    for _ in range(3):
        addresses.mark_failed(FAR)
    hand_clock.advance(16)
    addresses.mark_probed({FAR: 0.010, NEAR: 0.200})
    assert addresses.current == FAR


def test_with_one_address_the_writes_are_timed() -> None:
    addresses = PortalAddresses([NEAR])
    for seconds in (0.010, 0.030, 0.020):
        addresses.mark_answered(NEAR, seconds)
    assert addresses.latency_seconds == 0.020


def test_probes_time_each_that_is_healthy(portal: RecordingPortal) -> None:
    nowhere = "http://127.0.0.1:9"
    addresses = PortalAddresses([nowhere, portal.url])
    prober = AccessPointProber(addresses, timeout_seconds=60)
    assert prober.step() == PROBE_EVERY_SECONDS
    assert addresses.current == portal.url
    latency_seconds = addresses.latency_seconds
    assert latency_seconds is not None
    assert latency_seconds > 0


def test_one_that_says_it_is_unwell_is_not_healthy(portal: RecordingPortal) -> None:
    portal.recording.is_healthy = False
    assert AccessPointProber(PortalAddresses([portal.url])).probe(portal.url) is None
