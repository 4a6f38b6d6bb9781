"""The agent uses a near, healthy access point: without taking turns, and without a stampede."""

from collections.abc import Sequence

import pytest

from collector.sending.access_points import MAX_PROBES, STEADY_ROUNDS, AccessPoints
from tests.unit.collector.hand_clock import HandClock
from tests.unit.collector.listed_points import accept

NEAR, FAR = "http://near", "http://far"


@pytest.fixture
def addresses(hand_clock: HandClock) -> AccessPoints:
    return AccessPoints([FAR, NEAR], monotonic=hand_clock.seconds)


def rounds(points: AccessPoints, latencies: dict[str, float | None], count: int) -> None:
    for _ in range(count):
        points.record_probes(latencies)


def test_the_first_is_used_before_anything_is_measured(addresses: AccessPoints) -> None:
    assert addresses.current == FAR
    assert addresses.latency_seconds is None


def test_the_first_measured_choice_is_made_at_once(addresses: AccessPoints) -> None:
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    assert addresses.current == NEAR
    assert addresses.latency_seconds == 0.010
    assert (addresses.state.moves, addresses.state.failovers) == (1, 0)
    assert addresses.state.reason == "10 ms instead of 80 ms"


def test_later_ones_need_several_rounds_in_a_row(addresses: AccessPoints) -> None:
    rounds(addresses, {FAR: 0.010, NEAR: 0.080}, 5)
    rounds(addresses, {FAR: 0.080, NEAR: 0.010}, 4)
    assert addresses.current == FAR, "the medians of five differ for two rounds"
    rounds(addresses, {FAR: 0.080, NEAR: 0.010}, 1)
    assert addresses.current == NEAR


@pytest.mark.parametrize(
    ("in_use_seconds", "other_seconds"),
    [(0.100, 0.065), (0.014, 0.005)],
    ids=["less than twice a fifth", "less than twice 5 ms"],
)
def test_noise_does_not_move_an_agent(
    hand_clock: HandClock, in_use_seconds: float, other_seconds: float
) -> None:
    points = AccessPoints([FAR, NEAR], key="appliance-1", monotonic=hand_clock.seconds)
    points.record_probes({FAR: 0.010, NEAR: 0.010})
    in_use = points.current
    other = NEAR if in_use == FAR else FAR
    for _ in range(20):
        points.record_probes({in_use: in_use_seconds, other: other_seconds})
        points.record_probes({in_use: in_use_seconds / 2, other: other_seconds})
    assert points.current == in_use
    assert points.state.moves <= 1


def test_a_failed_one_is_left_and_returned_to_once_it_is_better_for_some_rounds(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    latencies: dict[str, float | None] = {FAR: 0.080, NEAR: 0.010}
    addresses.record_probes(latencies)
    addresses.record_failure(NEAR, "Connection refused")
    assert addresses.current == FAR
    assert addresses.state.reason == f"{NEAR} failed: Connection refused"
    rounds(addresses, latencies, 5)
    assert addresses.current == FAR, "it is avoided for a while"
    hand_clock.advance(16)
    rounds(addresses, latencies, STEADY_ROUNDS - 1)
    assert addresses.current == FAR
    rounds(addresses, latencies, 1)
    assert addresses.current == NEAR


def test_an_address_that_fails_again_is_avoided_longer(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    stays = []
    for _ in range(4):
        rounds(addresses, {FAR: 0.080, NEAR: 0.010}, STEADY_ROUNDS)
        addresses.record_failure(NEAR)
        seconds = 0
        while addresses.current == FAR:
            seconds += 1
            hand_clock.advance(1)
            rounds(addresses, {FAR: 0.080, NEAR: 0.010}, STEADY_ROUNDS)
        stays.append(seconds)
    assert stays == [15, 30, 60, 120]


def test_an_answer_ends_the_avoiding(addresses: AccessPoints) -> None:
    addresses.record_failure(FAR)
    addresses.record_failure(NEAR)
    assert not addresses.has_healthy
    addresses.record_success(NEAR, 0.1)
    assert addresses.has_healthy


def test_one_that_does_not_answer_a_probe_is_probed_again_at_once(addresses: AccessPoints) -> None:
    addresses.record_probes({FAR: 0.010, NEAR: 0.200})
    addresses.record_probes({FAR: None, NEAR: 0.200})
    assert addresses.current == FAR
    assert addresses.suspected.is_set()
    addresses.judge(addresses.suspicion(), {FAR: None, NEAR: 0.200})
    assert addresses.current == NEAR


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
    rounds(addresses, {FAR: 0.010, NEAR: 0.200}, STEADY_ROUNDS)
    assert addresses.current == FAR


def test_with_one_address_the_writes_are_timed_and_nothing_is_suspected() -> None:
    addresses = AccessPoints([NEAR])
    for seconds in (0.010, 0.030, 0.020):
        addresses.record_success(NEAR, seconds)
    assert addresses.latency_seconds == 0.020
    assert not addresses.record_unavailable(NEAR)
    assert not addresses.record_unavailable(NEAR)
    assert not addresses.suspicion()
    assert addresses.connect_seconds(10.0) == 10.0


def test_a_request_without_a_response_makes_an_address_suspect(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    aborted: list[str] = []
    with (
        addresses.under_way(FAR, lambda: aborted.append("write")),
        addresses.under_way(FAR, lambda: aborted.append("poll"), expected_seconds=20.0),
    ):
        hand_clock.advance(2.0)
        assert not addresses.suspicion()
        assert addresses.seconds_to_suspicion() == pytest.approx(0.5)
        hand_clock.advance(0.5)
        assert addresses.suspicion() == "no response within 2.5 s"
        addresses.judge(addresses.suspicion(), {FAR: None, NEAR: 0.2})
    assert addresses.current == NEAR
    assert sorted(aborted) == ["poll", "write"]
    assert addresses.state.failovers == 1


def test_a_slow_one_that_answers_probes_is_waited_for(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    with addresses.under_way(FAR, lambda: None):
        hand_clock.advance(4)
        addresses.judge(addresses.suspicion(), {FAR: 2.0, NEAR: 0.2})
        assert not addresses.suspicion()
        hand_clock.advance(5)
        assert addresses.suspicion(), "it is asked again"
    assert addresses.current == FAR


def test_an_address_is_kept_where_no_other_answers_either(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    with addresses.under_way(FAR, lambda: None):
        hand_clock.advance(4)
        addresses.judge(addresses.suspicion(), {FAR: None, NEAR: None})
    assert addresses.current == FAR
    assert addresses.state.failovers == 0


def test_one_that_answers_probes_but_no_requests_is_given_up_after_minutes(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    seconds = 0
    while addresses.current == FAR:
        addresses.record_unavailable(FAR)
        if suspicion := addresses.suspicion():
            addresses.judge(suspicion, {FAR: 0.01, NEAR: 0.01})
        hand_clock.advance(10)
        seconds += 10
    assert seconds == 130


def test_a_move_ends_the_waiting_poll_alone_and_the_tunnel_once_it_is_idle(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    aborted: list[str] = []
    with (
        addresses.under_way(FAR, lambda: aborted.append("write")),
        addresses.under_way(FAR, lambda: aborted.append("upload"), expected_seconds=float("inf")),
        addresses.under_way(FAR, lambda: aborted.append("poll"), expected_seconds=20.0),
    ):
        addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    assert aborted == ["poll"]
    assert not addresses.should_leave(NEAR, is_idle=True)
    assert addresses.should_leave(FAR, is_idle=True)
    assert not addresses.should_leave(FAR, is_idle=False)
    hand_clock.advance(600)
    assert addresses.should_leave(FAR, is_idle=False)


def test_a_failover_ends_the_tunnel_at_once(addresses: AccessPoints) -> None:
    addresses.record_failure(FAR)
    assert addresses.should_leave(FAR, is_idle=False)


def test_drained_addresses_are_left_and_used_only_where_no_other_answers(
    addresses: AccessPoints, hand_clock: HandClock
) -> None:
    addresses.record_probes({FAR: 0.080, NEAR: 0.010})
    accept(addresses, {NEAR: 0, "http://third": 100})
    assert addresses.current == NEAR, "until others are measured"
    addresses.record_probes({FAR: 0.080, NEAR: 0.010, "http://third": 0.3})
    assert addresses.current == "http://third"
    assert addresses.state.reason == f"{NEAR} is drained"
    addresses.record_failure("http://third")
    assert addresses.current == NEAR
    addresses.record_failure(NEAR)
    assert addresses.current == FAR, "the configured ones are the last resort"
    hand_clock.advance(60)
    rounds(addresses, {FAR: 0.080, NEAR: 0.010, "http://third": 0.3}, STEADY_ROUNDS)
    assert addresses.current == "http://third"


def test_an_address_that_is_no_longer_listed_is_left_and_forgotten(
    addresses: AccessPoints,
) -> None:
    accept(addresses, {"http://a": 100})
    addresses.record_probes({NEAR: 0.1, FAR: 0.1, "http://a": 0.1})
    assert addresses.current == "http://a"
    accept(addresses, {"http://b": 100})
    assert addresses.current == "http://a"
    addresses.record_probes({"http://a": 0.01, "http://b": 0.1, NEAR: 0.1, FAR: 0.1})
    assert addresses.current == "http://b"
    assert addresses.state.reason == "http://a was removed"
    assert sorted(addresses.urls) == sorted(["http://b", FAR, NEAR])


def test_many_addresses_are_probed_in_turn_and_the_near_ones_always(
    hand_clock: HandClock,
) -> None:
    points = AccessPoints(["http://configured"], monotonic=hand_clock.seconds)
    accept(points, {f"http://p{number}": 100 for number in range(64)})
    latencies = {f"http://p{number}": 0.01 + number / 1000 for number in range(64)}
    latencies["http://configured"] = 0.5
    first_rounds = 0
    while points.has_new:
        urls = points.urls_to_probe()
        assert len(urls) <= MAX_PROBES
        points.record_probes({url: latencies[url] for url in urls})
        first_rounds += 1
        hand_clock.advance(5)
    assert first_rounds <= 6
    probed: list[Sequence[str]] = []
    for _ in range(15):
        hand_clock.advance(60)
        probed.append(points.urls_to_probe())
        points.record_probes({url: latencies[url] for url in probed[-1]})
    assert max(map(len, probed)) == 9
    assert all(points.current in urls for urls in probed)
    assert {url for urls in probed for url in urls} == set(latencies)


class TestThousandAppliances:
    """Of 1,000 agents, all equally near to all access points."""

    WEIGHTS: dict[str, int] = {"http://a": 100, "http://b": 100, "http://c": 200}  # noqa: RUF012

    def agents(self, clock: HandClock) -> list[AccessPoints]:
        return [
            AccessPoints(["http://lb"], key=f"appliance-{number}", monotonic=clock.seconds)
            for number in range(1000)
        ]

    def settle(self, agents: Sequence[AccessPoints], weights: dict[str, int]) -> list[str]:
        for agent in agents:
            accept(agent, weights)
            rounds(agent, dict.fromkeys(agent.urls, 0.010), STEADY_ROUNDS)
        return [agent.current for agent in agents]

    def test_spread_by_weight(self, hand_clock: HandClock) -> None:
        choices = self.settle(self.agents(hand_clock), self.WEIGHTS)
        shares = [choices.count(url) / 10 for url in self.WEIGHTS]
        assert shares == pytest.approx([25, 25, 50], abs=3)

    def test_a_new_access_point_takes_its_share_and_moves_nobody_else(
        self, hand_clock: HandClock
    ) -> None:
        agents = self.agents(hand_clock)
        before = self.settle(agents, self.WEIGHTS)
        after = self.settle(agents, self.WEIGHTS | {"http://d": 100})
        moved = [new for old, new in zip(before, after, strict=True) if new != old]
        assert set(moved) == {"http://d"}
        assert len(moved) / 10 == pytest.approx(20, abs=3)
        assert all(agent.state.moves <= 2 for agent in agents)

    def test_a_lost_access_point_is_shared_by_the_others(self, hand_clock: HandClock) -> None:
        agents = self.agents(hand_clock)
        before = self.settle(agents, self.WEIGHTS)
        for agent in agents:
            agent.record_failure("http://c")
        after = [agent.current for agent in agents]
        assert all(
            new in {old, "http://a", "http://b"} for old, new in zip(before, after, strict=True)
        )
        assert after.count("http://a") / 10 == pytest.approx(50, abs=4)

    def test_a_changed_weight_moves_the_difference(self, hand_clock: HandClock) -> None:
        agents = self.agents(hand_clock)
        before = self.settle(agents, self.WEIGHTS)
        after = self.settle(agents, self.WEIGHTS | {"http://c": 100})
        moved = [old for old, new in zip(before, after, strict=True) if new != old]
        assert set(moved) == {"http://c"}
        assert len(moved) / 10 == pytest.approx(50 - 100 / 3, abs=3)
