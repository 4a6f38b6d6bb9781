"""The agent runs challenges beside no job: one that comes ends them."""

from pathlib import Path
from threading import Event

import pytest

from collector.jobs.attempts import AttemptRunner
from collector.jobs.challenges import ChallengeRuns
from jobqueue.executors.base import Challenges
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from jobqueue.executors.simulated.executor import SimulatedExecutor
from plugins.simulation.config import SimulationConfig
from protocol.attempts import AttemptSpec, DesiredState
from protocol.challenges import ChallengeOrder, ChallengeResult
from tests.fixtures.polling import eventually
from tests.unit.collector.hand_clock import HandClock

CONFIG = SimulationConfig(seed="acme/dgx-1")
ORDER = ChallengeOrder(
    number=7, seed=3, image="python:3.13-slim", leaves=8, steps=2, rounds=1, cpu_words=512,
    cpu_leaves=8, busy_seconds=0.0,
)  # fmt: skip
JOB = AttemptSpec(attempt_id="a", job_id="j", name="train", image="train:1")


def executor_of(clock: HandClock, challenges: Challenges) -> SimulatedExecutor:
    return SimulatedExecutor(
        clock, on_work=lambda *_: None, on_end=lambda *_: None, challenges=challenges
    )


def runner_of(folder: Path, clock: HandClock, challenges: Challenges) -> AttemptRunner:
    executor = executor_of(clock, challenges)
    return AttemptRunner(executor, state_path=folder / "attempts.json", clock=clock)


class EndlessChallenges:
    """Runs until it is cancelled."""

    def __init__(self) -> None:
        self.started, self.cancelled = Event(), Event()

    def run(self, order: ChallengeOrder) -> ChallengeResult:
        self.started.set()
        self.cancelled.wait(30)
        return ChallengeResult(number=order.number, is_interrupted=True)

    def cancel(self) -> None:
        self.cancelled.set()


def test_an_ordered_challenge_is_answered_once(tmp_path: Path, hand_clock: HandClock) -> None:
    runner = runner_of(tmp_path, hand_clock, SimulatedChallenges(hand_clock))
    runner.set_desired(DesiredState(generation=1, challenge=ORDER))
    runner.step()
    runs = runner.challenges
    eventually(lambda: runs.result_of(ORDER) is not None, within_seconds=10)
    first = runs.result_of(ORDER)
    runner.step()
    assert runs.result_of(ORDER) is first
    assert first is not None
    assert first.answer is not None
    runner.close()


def test_a_job_ends_the_challenge_before_it_starts(tmp_path: Path, hand_clock: HandClock) -> None:
    endless = EndlessChallenges()
    executor = executor_of(hand_clock, endless)
    runner = AttemptRunner(executor, state_path=tmp_path / "attempts.json", clock=hand_clock)
    runner.set_desired(DesiredState(generation=1, challenge=ORDER))
    runner.step()
    assert endless.started.wait(10)
    runner.set_desired(DesiredState(generation=2, attempts=[JOB], challenge=ORDER))
    runner.step()
    assert endless.cancelled.is_set()
    result = eventually(lambda: runner.challenges.result_of(ORDER), within_seconds=10)
    assert result.is_interrupted
    assert [seen.attempt_id for seen in executor.observe()] == ["a"]
    runner.close()


def test_no_challenge_starts_beside_a_job(tmp_path: Path, hand_clock: HandClock) -> None:
    endless = EndlessChallenges()
    runner = runner_of(tmp_path, hand_clock, endless)
    runner.set_desired(DesiredState(generation=1, attempts=[JOB], challenge=ORDER))
    runner.step()
    runner.step()
    assert not endless.started.is_set()
    runner.close()


def test_a_job_ends_the_challenge_of_an_agent_that_was_killed(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    endless = EndlessChallenges()
    runner = runner_of(tmp_path, hand_clock, endless)
    runner.set_desired(DesiredState(generation=1, attempts=[JOB]))
    runner.step()
    assert endless.cancelled.is_set()
    runner.close()


def test_a_restarted_agent_waits_for_the_portal(tmp_path: Path, hand_clock: HandClock) -> None:
    runner = runner_of(tmp_path, hand_clock, SimulatedChallenges(hand_clock))
    runner.set_desired(DesiredState(generation=1, challenge=ORDER))
    endless = EndlessChallenges()
    restarted = runner_of(tmp_path, hand_clock, endless)
    restarted.step()
    assert not endless.started.is_set()
    restarted.close()


@pytest.mark.parametrize("has_challenges", [False, True])
def test_without_an_order_nothing_runs(hand_clock: HandClock, *, has_challenges: bool) -> None:
    challenges = SimulatedChallenges(hand_clock) if has_challenges else None
    runs = ChallengeRuns(challenges, connect=None, wake=lambda: None)
    runs.follow(None, has_attempts=False)
    assert runs.result_of(ORDER) is None
    runs.close()
