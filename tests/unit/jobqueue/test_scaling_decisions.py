"""Decisions of services that scale: wishes, damping, bursts, sleep, windows."""

# ruff: noqa: ANN401 - helpers pass any field on

from datetime import timedelta
from typing import Any

import pytest

from jobqueue.services.autoscaling.decision import Decision, Memory, Observation, bounds, decide
from protocol.autoscaling import Autoscaling, ScalingWindow
from tests.cast import NOON
from tests.unit.jobqueue.noisy_day import follow, follow_naively, noisy_day

POLICY = Autoscaling(
    min_instances=1, max_instances=10, metric="requests_per_second", target=50, down_seconds=300
)


def see(awake: int, load: float | None, **changes: Any) -> Observation:
    """Return what a service does whose instances all serve."""
    fields: dict[str, Any] = {"ready": awake, "burst": load, "is_used": bool(load), **changes}
    return Observation(awake=awake, load=load, **fields)


def decided(policy: Autoscaling, seen: Observation, memory: Memory | None = None) -> Decision:
    """Decide at noon."""
    return decide(policy, memory or Memory(), seen, now=NOON)


def after(policy: Autoscaling, *steps: tuple[float, Observation]) -> list[int]:
    """Return the decisions some seconds past noon."""
    memory, wanted = Memory(), list[int]()
    for seconds, seen in steps:
        decision = decide(policy, memory, seen, now=NOON + timedelta(seconds=seconds))
        memory = decision.memory
        wanted.append(decision.wanted)
    return wanted


def test_the_load_over_the_target_is_rounded_up_and_explained() -> None:
    decision = decided(POLICY, see(2, 180.0))
    assert decision.wanted == 4
    assert decision.why == "180 requests/s over 2 instances, target 50"


@pytest.mark.parametrize("load", [91.0, 100.0, 109.0])
def test_close_to_the_target_nothing_changes(load: float) -> None:
    assert decided(POLICY, see(2, load)).wanted == 2


def test_a_decision_adds_as_many_as_the_policy_allows_and_no_more_than_the_most() -> None:
    assert decided(POLICY, see(1, 1000.0)).wanted == 1 + POLICY.max_step
    assert decided(POLICY, see(9, 1000.0)).wanted == POLICY.max_instances


def test_it_shrinks_only_when_the_load_was_low_for_the_window() -> None:
    steps = [(0, see(4, 200.0)), (15, see(4, 40.0)), (299, see(4, 40.0)), (300, see(4, 40.0))]
    assert after(POLICY, *steps) == [4, 4, 4, 1]


def test_it_grows_only_when_the_load_was_high_for_the_window() -> None:
    slow = Autoscaling(max_instances=10, metric="requests_per_second", target=50, up_seconds=60)
    steps = [(0, see(2, 99.0)), (15, see(2, 140.0)), (59, see(2, 140.0)), (60, see(2, 140.0))]
    assert after(slow, *steps) == [2, 2, 2, 3]


def test_a_burst_is_not_waited_out_and_does_not_shrink_for_a_minute() -> None:
    slow = Autoscaling(
        max_instances=10,
        metric="requests_per_second",
        target=50,
        up_seconds=600,
        down_seconds=0,
    )
    steps = [
        (0, see(1, 50.0)),
        (15, see(1, 80.0, burst=200.0)),
        (30, see(4, 80.0, burst=20.0)),
        (76, see(4, 20.0)),
    ]
    assert after(slow, *steps) == [1, 4, 4, 1]


def test_utilization_counts_the_instances_that_serve() -> None:
    policy = Autoscaling(max_instances=10, metric="gpu_utilization", target=60)
    decision = decided(policy, see(3, 2 * 90.0, ready=2))
    assert decision.wanted == 3, "the one that starts is for it"
    assert decision.why == "GPUs utilized by 90 % over 2 instances, target 60"


def test_without_samples_nothing_changes() -> None:
    decision = decided(POLICY, see(3, None))
    assert decision.wanted == 3
    assert "not known" in decision.why


def test_it_sleeps_after_the_time_without_requests_and_not_before() -> None:
    policy = Autoscaling(
        min_instances=0, max_instances=2, target=4, zero_seconds=600, down_seconds=60
    )
    used, unused, unused_alone = see(2, 8.0), see(2, 0.0), see(1, 0.0)
    shrinking = [(0, used), (240, unused), (299, unused), (300, unused)]
    steps = [*shrinking, (599, unused_alone), (600, unused_alone)]
    assert after(policy, *steps) == [2, 2, 2, 1, 1, 0]
    asleep = decided(policy, see(0, 0.0), Memory(busy_at=NOON.timestamp() - 900))
    assert (asleep.wanted, asleep.why) == (0, "no requests for 900 s")


def test_samples_wake_a_service_that_sleeps() -> None:
    policy = Autoscaling(
        min_instances=0, max_instances=5, metric="samples", samples="redis.length", target=10
    )
    assert decided(policy, see(0, 25.0)).wanted == 3
    assert decided(policy, see(0, 0.0)).wanted == 0


def test_an_obstacle_refuses_more_instances_but_not_fewer() -> None:
    obstacle = "1 instance waits for an appliance"
    refused = decided(POLICY, see(2, 180.0, obstacle=obstacle))
    assert (refused.wanted, refused.is_refused) == (2, True)
    assert refused.why.endswith(obstacle)
    fewer = decided(
        Autoscaling(max_instances=5, target=50, down_seconds=0), see(4, 10.0, obstacle=obstacle)
    )
    assert (fewer.wanted, fewer.is_refused) == (1, False)


def test_a_window_has_other_bounds_while_it_is_open() -> None:
    window = ScalingWindow(
        schedule="0 8 * * *", duration_seconds=6 * 3600, min_instances=3, max_instances=8
    )
    policy = Autoscaling(min_instances=0, max_instances=2, metric="schedule", windows=[window])
    assert bounds(policy, now=NOON) == (3, 8)
    assert bounds(policy, now=NOON + timedelta(hours=2)) == (0, 2)
    assert decided(policy, see(0, None)).wanted == 3
    assert bounds(policy, now=NOON - timedelta(hours=4)) == (3, 8), "at the very beginning"


def test_a_noisy_day_causes_no_flapping() -> None:
    loads = noisy_day()
    policy = Autoscaling(max_instances=20, metric="requests_per_second", target=20)
    ours, naive = follow(loads, policy), follow_naively(loads, policy)
    # Of 5,760 decisions; the day has 22 bursts and silences.
    assert ours.reversals <= 90
    assert naive.reversals > 3000
    assert ours.changes < naive.changes / 20
    assert ours.short_share < naive.short_share / 4
