"""Agents that lie about their hardware are refused, each by at least two independent signs."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from collector.inventory import simulated_devices
from core.clock import to_ns
from marketplace.verification import sample_checks
from plugins.simulation.config import GIB, SimulationConfig
from protocol.challenges import ChallengeOrder, ChallengeResult
from tenants.models import Appliance, VerificationState
from tests.cast import Cast, FrozenClock
from tests.unit.marketplace.verifying import Agent, Verifying, smaller
from timeseries.points import Point

H100 = "NVIDIA H100 80GB HBM3"


def test_an_honest_appliance_passes(portal: Verifying, cast: Cast) -> None:
    agent = portal.agent(cast.acme, "dgx-01")
    portal.send_history(agent)
    portal.challenge(agent)
    assert portal.signs(agent) == set()
    assert portal.row(agent).state is VerificationState.PASSED


def test_one_that_claims_eight_gpus_and_has_one_smaller_is_refused(
    portal: Verifying, cast: Cast
) -> None:
    config = SimulationConfig(seed="acme/liar", gpu_model=H100)
    real = simulated_devices(config)[:1]
    # An A100 with 40 GB, whose name alone was changed.
    lesser = smaller(
        real, memory_bytes=40 * GIB, processor_count=108, read_bytes_per_second=1.4e12,
        compute_capability="8.0",
    )  # fmt: skip
    agent = portal.agent(cast.acme, "liar", config=config, real=lesser)
    portal.send_history(agent)
    portal.challenge(agent)
    row = portal.row(agent)
    assert row.state is VerificationState.FAILED
    assert portal.signs(agent) == {"gpu_missing", "memory_missing", "driver_differs", "too_slow"}
    assert "38.8 GiB could be filled" in row.reason


class Guessing(Agent):
    """It answers for eight GPUs without having them: with other words, and figures of its own."""

    def answer(self, order: ChallengeOrder) -> ChallengeResult:
        honest = super().answer(order)
        wrong = super().answer(msgspec.structs.replace(order, seed=order.seed ^ 1))
        assert honest.answer is not None
        assert wrong.answer is not None
        devices = [honest.answer.devices[0], *wrong.answer.devices[1:]]
        answer = msgspec.structs.replace(honest.answer, devices=devices, seconds=0.0)
        return msgspec.structs.replace(honest, answer=answer)


def test_one_that_guesses_answers_and_sits_idle_is_refused(portal: Verifying, cast: Cast) -> None:
    agent = portal.agent(cast.acme, "liar", kind=Guessing)
    agent.is_idle = True
    portal.challenge(agent)
    assert portal.signs(agent) == {"wrong_answer", "idle_while_challenged"}


class Replaying(Agent):
    """It sends the samples of a quiet time again and again."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type] # as they come
        self.recorded: list[Sequence[Point]] = []

    def replay(self, number: int, time_ns: int) -> list[Point]:
        points = self.recorded[number % len(self.recorded)]
        return [Point(point.measurement, point.tags, point.fields, time_ns) for point in points]


def test_one_that_replays_old_samples_is_refused(
    portal: Verifying, cast: Cast, clock: FrozenClock
) -> None:
    agent = portal.agent(cast.acme, "liar", kind=Replaying)
    assert isinstance(agent, Replaying)
    start_at = clock.now - timedelta(hours=2)
    times = [start_at + timedelta(seconds=10 * number) for number in range(720)]
    agent.recorded = [agent.samples(at, is_busy=False) for at in times[:120]]
    points = [point for reading in agent.recorded for point in reading]
    for number, at in enumerate(times[120:], 120):
        points += agent.replay(number, to_ns(at))
    portal.write(agent, points)
    portal.tasks.verify_appliances()
    order = portal.order(agent)
    assert order is not None
    for number in range(720, 724):
        clock.advance(10)
        portal.write(agent, agent.replay(number, to_ns(clock.now)))
    portal.report(agent, agent.answer(order))
    clock.advance(60)
    portal.tasks.verify_appliances()
    assert portal.signs(agent) == {
        "replayed_samples", "energy_runs_backward", "idle_while_challenged",
    }  # fmt: skip
    assert portal.row(agent).state is VerificationState.FAILED


def test_two_agents_on_one_gpu_are_refused_by_what_they_report(
    portal: Verifying, cast: Cast, clock: FrozenClock
) -> None:
    config = SimulationConfig(seed="acme/shared", gpu_count=1)
    first = portal.agent(cast.acme, "first", config=config)
    portal.challenge(first)
    assert portal.row(first).state is VerificationState.PASSED
    clock.advance(timedelta(days=2).total_seconds())
    # The other agent runs on the same host, and half of the GPU is left for it.
    half = smaller(first.real, memory_bytes=80 * GIB, read_bytes_per_second=0.5 * 2.9e12)
    second = portal.agent(cast.acme, "second", config=config, real=half)
    with portal.sessions.begin() as session:
        row = session.get_one(Appliance, second.appliance_id)
        row.inventory = {**row.inventory, "boot_id": "boot-first"}
    second.claimed = msgspec.structs.replace(second.claimed, boot_id="boot-first")
    first.real = half
    portal.due(first, second)
    portal.challenge(first, second)
    seen = {"slowed_by_other", "too_slow"}
    assert portal.signs(second) == {"shared_uuid", "shared_slot", *seen}
    assert portal.signs(first) == seen
    assert "'first'" in portal.row(second).reason


def test_one_that_lists_gpus_of_another_maker_so_that_none_is_challenged_is_refused(
    portal: Verifying, cast: Cast
) -> None:
    liar = portal.agent(cast.acme, "liar", real=[])
    gpus = [msgspec.structs.replace(gpu, uuid=f"AMD-{gpu.index}") for gpu in liar.claimed.gpus]
    liar.claimed = msgspec.structs.replace(liar.claimed, gpus=gpus)
    with portal.sessions.begin() as session:
        row = session.get_one(Appliance, liar.appliance_id)
        row.inventory = msgspec.to_builtins(liar.claimed)
    portal.challenge(liar)
    assert portal.row(liar).state is VerificationState.FAILED
    assert portal.signs(liar) == {"uuid_differs"}


def test_one_that_sends_too_many_samples_to_check_is_seen_idle_all_the_same(
    portal: Verifying, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = portal.agent(cast.acme, "busybody", config=SimulationConfig(seed="x", gpu_count=1))
    agent.is_idle = True
    for _ in range(3):
        portal.send_history(agent)
        portal.clock.advance(3600)
    # What it sends in the hour of the challenge is less.
    monkeypatch.setattr(sample_checks, "MAX_SAMPLES", 200)
    portal.challenge(agent)
    assert portal.signs(agent) == {"idle_while_challenged"}


def test_a_copied_inventory_fails_nobody_who_enrolls_again(
    portal: Verifying, cast: Cast, clock: FrozenClock
) -> None:
    config = SimulationConfig(seed="acme/copied", gpu_count=1)
    first = portal.agent(cast.acme, "first", config=config)
    portal.challenge(first)
    clock.advance(3600)
    # Globex ran a job there, and reports what it saw.
    copy = portal.agent(cast.globex, "copy", config=config)
    portal.challenge(copy)
    assert "shared_uuid" in portal.signs(copy)
    clock.advance(3600)
    with portal.sessions.begin() as session:
        session.get_one(Appliance, first.appliance_id).retired_at = clock.now
    second = portal.agent(cast.acme, "second", config=config)
    portal.due(copy)
    portal.challenge(second)
    assert portal.signs(second) == set()
    assert "shared_uuid" in portal.signs(copy)


def test_a_copied_inventory_keeps_no_appliance_of_others_busy(
    portal: Verifying, cast: Cast, clock: FrozenClock
) -> None:
    config = SimulationConfig(seed="acme/copied", gpu_count=1)
    first = portal.agent(cast.acme, "first", config=config)
    portal.challenge(first)
    copy = portal.agent(cast.globex, "copy", config=config)
    for _ in range(3):
        clock.advance(600)
        portal.due(copy)
        portal.challenge(copy)
    assert portal.row(first).challenge_number == 1
    clock.advance(timedelta(days=1).total_seconds())
    portal.due(copy)
    portal.tasks.verify_appliances()
    assert portal.row(first).challenge_number == 2


def test_a_gpu_with_another_uuid_for_each_agent_is_caught_by_its_speed(
    portal: Verifying, cast: Cast, clock: FrozenClock
) -> None:
    configs = [SimulationConfig(seed=name, gpu_count=2) for name in ("first", "second")]
    agents = [portal.agent(cast.acme, config.seed, config=config) for config in configs]
    portal.challenge(*agents)
    assert {portal.row(agent).state for agent in agents} == {VerificationState.PASSED}
    clock.advance(timedelta(days=3).total_seconds())
    for agent in agents:
        agent.real = smaller(agent.real, memory_bytes=40 * GIB, read_bytes_per_second=1.5e12)
    portal.due(agents[0])
    portal.challenge(*agents)
    for agent in agents:
        assert portal.signs(agent) == {"memory_missing", "slowed_by_other", "too_slow"}
