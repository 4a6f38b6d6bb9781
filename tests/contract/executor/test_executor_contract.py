"""The contract of all executors: the simulated one, and one with a real Docker engine.

One-time attempts and services are tested on the executors that run them.
"""

import re

import msgspec
import pytest

from jobqueue.executors.base import Executor
from protocol.attempts import AttemptObservation, Health, ObservedState, StopReason
from protocol.job_spec import HealthCheck, HealthCheckKind
from tests.contract.executor.conftest import Bench
from tests.fixtures.polling import eventually

pytestmark = pytest.mark.timeout(180)


def observation_of(executor: Executor, attempt_id: str) -> AttemptObservation | None:
    return next((seen for seen in executor.observe() if seen.attempt_id == attempt_id), None)


def until_state(executor: Executor, attempt_id: str, *states: ObservedState) -> AttemptObservation:
    def probe() -> AttemptObservation | None:
        seen = observation_of(executor, attempt_id)
        return seen if seen is not None and seen.state in states else None

    seen = eventually(probe, within_seconds=60)
    assert seen is not None
    return seen


def until_ended(executor: Executor, attempt_id: str) -> AttemptObservation:
    return until_state(executor, attempt_id, *(state for state in ObservedState if state.is_final))


def whole_log(executor: Executor, attempt_id: str) -> bytes:
    return executor.read_log(attempt_id, offset=0, limit=1_000_000)


def test_an_attempt_runs_and_succeeds(quick_bench: Bench) -> None:
    spec = quick_bench.spec(seconds=1)
    quick_bench.executor.start(spec)
    running = until_state(quick_bench.executor, spec.attempt_id, ObservedState.RUNNING)
    ended = until_ended(quick_bench.executor, spec.attempt_id)
    assert ended.state is ObservedState.SUCCEEDED
    assert ended.exit_code == 0
    assert running.started_at_ns is not None
    assert ended.finished_at_ns is not None
    assert ended.finished_at_ns >= running.started_at_ns


def test_a_nonzero_exit_code_is_a_failure_with_that_code(quick_bench: Bench) -> None:
    spec = quick_bench.spec(exit_code=7)
    quick_bench.executor.start(spec)
    ended = until_ended(quick_bench.executor, spec.attempt_id)
    assert (ended.state, ended.exit_code) == (ObservedState.FAILED, 7)
    assert ended.reason == "exit_code"


def test_an_image_that_does_not_exist_fails_the_attempt_and_names_the_image(bench: Bench) -> None:
    if not bench.runs_images:
        return  # the next test is about it
    spec = bench.spec(image=bench.missing_image)
    bench.executor.start(spec)
    ended = until_ended(bench.executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "image_not_found")
    assert "missing" in ended.message


def test_an_executor_without_images_refuses_a_job_with_one(batch_bench: Bench) -> None:
    if batch_bench.runs_images:
        return
    spec = batch_bench.spec(image="hello:1")
    batch_bench.executor.start(spec)
    ended = until_ended(batch_bench.executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert "image" in ended.message


def test_starting_the_same_attempt_again_changes_nothing(bench: Bench) -> None:
    spec = bench.spec(seconds=30)
    bench.executor.start(spec)
    bench.executor.start(spec)
    first = until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    bench.executor.start(spec)
    assert bench.executor.observe() == [first]


def test_an_ended_attempt_is_not_run_again_by_a_late_start(batch_bench: Bench) -> None:
    spec = batch_bench.spec()
    batch_bench.executor.start(spec)
    ended = until_ended(batch_bench.executor, spec.attempt_id)
    batch_bench.executor.start(spec)
    assert observation_of(batch_bench.executor, spec.attempt_id) == ended


def test_a_service_runs_until_it_is_stopped(service_bench: Bench) -> None:
    spec = service_bench.service()
    service_bench.executor.start(spec)
    until_state(service_bench.executor, spec.attempt_id, ObservedState.RUNNING)
    service_bench.executor.stop(spec.attempt_id, grace_seconds=1)
    ended = until_ended(service_bench.executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.STOPPED, "stopped_by_user")


def test_the_health_of_a_service_is_that_of_its_check(service_bench: Bench) -> None:
    check = HealthCheck(
        kind=HealthCheckKind.COMMAND, command="true", interval_seconds=1, timeout_seconds=5
    )
    spec = msgspec.structs.replace(service_bench.service(), health_check=check)
    service_bench.executor.start(spec)

    def is_healthy() -> bool:
        seen = observation_of(service_bench.executor, spec.attempt_id)
        return seen is not None and seen.health is Health.HEALTHY

    eventually(is_healthy, within_seconds=60)
    service_bench.executor.stop(spec.attempt_id, grace_seconds=0)
    assert until_ended(service_bench.executor, spec.attempt_id).health is Health.UNKNOWN


def test_a_kind_that_the_executor_does_not_run_fails_and_names_another(
    one_kind_bench: Bench,
) -> None:
    spec = one_kind_bench.spec(is_service=not one_kind_bench.runs_services_only)
    one_kind_bench.executor.start(spec)
    ended = until_ended(one_kind_bench.executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "invalid_job")
    assert "Configure [" in ended.message


def test_stopping_at_the_time_limit_is_a_failure_with_that_reason(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    bench.executor.stop(spec.attempt_id, grace_seconds=0, reason=StopReason.TIME_LIMIT)
    bench.executor.stop(spec.attempt_id, grace_seconds=0)
    ended = until_ended(bench.executor, spec.attempt_id)
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "time_limit")


def test_stopping_before_it_runs_ends_it_as_stopped(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    bench.executor.stop(spec.attempt_id, grace_seconds=0)
    assert until_ended(bench.executor, spec.attempt_id).state is ObservedState.STOPPED


def test_stopping_an_unknown_attempt_is_ignored(bench: Bench) -> None:
    bench.executor.stop("unknown", grace_seconds=1)
    bench.executor.remove("unknown")
    assert bench.executor.observe() == []


def test_the_log_is_read_from_any_byte(batch_bench: Bench) -> None:
    spec = batch_bench.spec()
    batch_bench.executor.start(spec)
    until_ended(batch_bench.executor, spec.attempt_id)
    log = whole_log(batch_bench.executor, spec.attempt_id)
    assert b"hello" in log
    assert batch_bench.executor.read_log(spec.attempt_id, offset=2, limit=3) == log[2:5]
    assert batch_bench.executor.read_log(spec.attempt_id, offset=len(log), limit=10) == b""


def test_the_log_of_an_unknown_attempt_is_empty(bench: Bench) -> None:
    assert whole_log(bench.executor, "unknown") == b""


def test_the_log_can_be_read_while_the_attempt_runs(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    assert b"hello" in eventually(lambda: whole_log(bench.executor, spec.attempt_id))
    seen = observation_of(bench.executor, spec.attempt_id)
    assert seen is not None
    assert seen.state is ObservedState.RUNNING


def test_use_is_known_while_running_only(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    if bench.tells_usage:
        usage = eventually(lambda: bench.executor.usage(spec.attempt_id))
        assert usage is not None
        assert usage.memory_bytes > 0
    bench.executor.stop(spec.attempt_id, grace_seconds=0)
    until_ended(bench.executor, spec.attempt_id)
    assert bench.executor.usage(spec.attempt_id) is None


def test_a_removed_attempt_is_forgotten_with_its_log(batch_bench: Bench) -> None:
    spec = batch_bench.spec()
    batch_bench.executor.start(spec)
    until_ended(batch_bench.executor, spec.attempt_id)
    batch_bench.executor.remove(spec.attempt_id)
    assert observation_of(batch_bench.executor, spec.attempt_id) is None
    assert whole_log(batch_bench.executor, spec.attempt_id) == b""


def test_attempts_that_are_containers_are_known_by_the_containers_full_ids(bench: Bench) -> None:
    assert bench.executor.container_ids() == {}
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    containers = bench.executor.container_ids()
    assert list(containers.values()) == ([spec.attempt_id] if bench.has_containers else [])
    assert all(re.fullmatch("[0-9a-f]{64}", container_id) for container_id in containers)
    bench.executor.remove(spec.attempt_id)
    bench.executor.observe()
    assert bench.executor.container_ids() == {}


def test_the_next_agent_finds_running_attempts_again(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    before = until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    bench.executor.close()
    reopened = bench.reopen()
    assert until_state(reopened, spec.attempt_id, ObservedState.RUNNING) == before
    assert b"hello" in eventually(lambda: whole_log(reopened, spec.attempt_id))


def test_the_next_agent_knows_that_an_attempt_was_stopped(bench: Bench) -> None:
    spec = bench.spec(seconds=60)
    bench.executor.start(spec)
    until_state(bench.executor, spec.attempt_id, ObservedState.RUNNING)
    bench.executor.stop(spec.attempt_id, grace_seconds=0)
    bench.executor.close()
    reopened = bench.reopen()

    def end() -> AttemptObservation | None:
        # An agent stops it with every step: a signal to a job that just begins may be lost.
        reopened.stop(spec.attempt_id, grace_seconds=0)
        seen = {attempt.attempt_id: attempt for attempt in reopened.observe()}[spec.attempt_id]
        return seen if seen.state.is_final else None

    seen = eventually(end, within_seconds=60, every_seconds=0.5)
    assert seen is not None
    assert seen.state is ObservedState.STOPPED
