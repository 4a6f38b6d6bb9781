"""Services: instances, health, rolling updates, and what starts them again."""

# ruff: noqa: ANN401 - helpers pass any field on

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.models import Attempt, Job
from jobqueue.queue.service import job_events
from jobqueue.queue.stopping import stop_array
from jobqueue.services.rolling_updates import (
    advance_updates,
    roll_back,
    update_progress,
    update_service,
)
from jobqueue.services.scaling import scale_service, service_instances
from jobqueue.states import AttemptState, JobState, Reason, UpdateState
from protocol.attempts import Health, ObservedState
from protocol.job_spec import HealthCheck, HealthCheckKind, JobKind
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, observed, report, submit

CHECK = HealthCheck(kind=HealthCheckKind.HTTP, port=8000, path="/health")


def run(session: Session, cast: Cast, *, instances: int = 3, **changes: Any) -> Job:
    """Submit a service of Alice's and let all of its instances run."""
    add_appliance(session, cast.acme, "dgx-01")
    first = submit(
        session, cast.alice, "web", kind=JobKind.SERVICE, gpus=1, instances=instances, **changes
    )
    settle(session, first)
    return first


def settle(session: Session, job: Job, health: Health = Health.UNKNOWN, **changes: Any) -> None:
    """Place what waits, end what should stop, and let the rest run."""
    for _ in range(2):
        for attempt in attempts(session, job):
            stops = attempt.stop_reason or attempt.job.stop_requested_at
            state = ObservedState.STOPPED if stops else ObservedState.RUNNING
            report(session, attempt, state, health=health, **changes)
            report(session, attempt, state, health=health, **changes)
        dispatch(session, now=NOON + timedelta(minutes=2))


def attempts(session: Session, job: Job) -> list[Attempt]:
    """Return the attempts of a service's instances that are on an appliance."""
    allocated = (AttemptState.STARTING, AttemptState.RUNNING)
    ids = select(Job.id).where((Job.id == job.id) | (Job.array_id == job.id))
    statement = select(Attempt).where(Attempt.job_id.in_(ids), Attempt.state.in_(allocated))
    return list(session.scalars(statement.execution_options(populate_existing=True)).unique())


def images(session: Session, job: Job) -> list[str]:
    """Return the image of each instance that has not ended."""
    return [instance.image for instance in service_instances(session, job)]


def step(session: Session, *, minutes: float = 3) -> None:
    """Take a step of the updates, some minutes past noon."""
    advance_updates(session, now=NOON + timedelta(minutes=minutes))


def change(session: Session, cast: Cast, job: Job, **changes: Any) -> None:
    """Let Alice update a service."""
    update_service(session, scope_of(cast.alice), job.id, changes, box=BOX, now=NOON)


def test_each_instance_is_a_job_with_its_own_placement_and_check(
    session: Session, cast: Cast
) -> None:
    first = run(session, cast, health_check=CHECK)
    instances = service_instances(session, first)
    assert [(instance.array_index, instance.state) for instance in instances] == [
        (index, JobState.RUNNING) for index in range(3)
    ]
    specs = desired_state(session, attempts(session, first)[0].appliance_id, box=BOX).attempts
    assert [spec.health_check for spec in specs] == [CHECK] * 3
    assert len({uuid for spec in specs for uuid in spec.gpu_uuids}) == 3


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"instances": 2}, {"instances"}),
        ({"health_check": CHECK}, {"health_check"}),
        ({"kind": JobKind.SERVICE, "instances": 0, "array": "0-3"}, {"instances", "array"}),
        (
            {
                "kind": JobKind.SERVICE,
                "health_check": HealthCheck(
                    kind=HealthCheckKind.HTTP, path="health", max_failures=0
                ),
            },
            {"health_check"},
        ),
    ],
)
def test_wrong_instances_and_checks_are_errors_of_their_fields(
    session: Session, cast: Cast, changes: dict[str, Any], fields: set[str]
) -> None:
    with pytest.raises(InvalidInputError) as failed:
        submit(session, cast.alice, **changes)
    assert failed.value.errors.keys() == fields


def test_scaling_adds_and_stops_instances(session: Session, cast: Cast) -> None:
    first = run(session, cast, instances=1)
    alice = scope_of(cast.alice)
    scale_service(session, alice, first.id, 3, now=NOON)
    settle(session, first)
    assert [instance.array_index for instance in service_instances(session, first)] == [0, 1, 2]
    scale_service(session, alice, service_instances(session, first)[2].id, 2, now=NOON)
    settle(session, first)
    instances = service_instances(session, first)
    assert [(instance.array_index, instance.instances) for instance in instances] == [
        (0, 2),
        (1, 2),
    ]
    assert len(attempts(session, first)) == 2
    with pytest.raises(InvalidInputError):
        scale_service(session, alice, first.id, 0, now=NOON)
    with pytest.raises(ForbiddenError):
        scale_service(session, scope_of(cast.bob), first.id, 3, now=NOON)
    stop_array(session, alice, first.id, now=NOON)
    with pytest.raises(ConflictError):
        scale_service(session, alice, first.id, 3, now=NOON)


def test_an_update_replaces_one_instance_after_the_other(session: Session, cast: Cast) -> None:
    first = run(session, cast, env={"A": "1"})
    before = {attempt.id for attempt in attempts(session, first)}
    change(session, cast, first, image="python:3.14")
    step(session)
    assert sorted(images(session, first)) == ["python:3.13", "python:3.13", "python:3.14"]
    for replaced in (1, 2):
        settle(session, first)
        running = attempts(session, first)
        assert len(running) == 3
        assert len({attempt.id for attempt in running} - before) == replaced
        step(session)
    settle(session, first)
    assert images(session, first) == ["python:3.14"] * 3
    step(session)
    progress = update_progress(session, scope_of(cast.bob), first.id)
    assert (progress.state, progress.updated, progress.changed) == (UpdateState.DONE, 3, ["image"])
    assert {instance.env["A"] for instance in service_instances(session, first)} == {"1"}
    assert {instance.state for instance in service_instances(session, first)} == {JobState.RUNNING}


def test_the_next_instance_waits_until_the_one_before_has_stopped_and_started(
    session: Session, cast: Cast
) -> None:
    first = run(session, cast, instances=2, health_check=CHECK)
    settle(session, first, Health.UNHEALTHY)
    change(session, cast, first, image="python:3.14")
    for _ in range(3):
        step(session)
        assert sorted(images(session, first)) == ["python:3.13", "python:3.14"]
    assert update_progress(session, scope_of(cast.bob), first.id).state is UpdateState.ROLLING


def test_the_next_instance_follows_when_one_is_healthy(session: Session, cast: Cast) -> None:
    first = run(session, cast, instances=2, health_check=CHECK)
    change(session, cast, first, env={"A": "2"})
    step(session)
    settle(session, first, Health.STARTING)
    step(session)
    assert [instance.revision for instance in service_instances(session, first)] == [2, 1]
    settle(session, first, Health.HEALTHY)
    step(session)
    assert [instance.revision for instance in service_instances(session, first)] == [2, 2]


def test_an_update_fails_at_an_unhealthy_instance_and_is_rolled_back(
    session: Session, cast: Cast
) -> None:
    first = run(session, cast, health_check=CHECK)
    alice = scope_of(cast.alice)
    change(session, cast, first, image="python:bad", stop_grace_seconds=60)
    step(session)
    settle(session, first, Health.UNHEALTHY, message="Health check: GET /health: status 500.")
    step(session)
    progress = update_progress(session, alice, first.id)
    assert progress.changed == ["image", "stop_grace_seconds"]
    assert [
        attempt.job.options
        for attempt in attempts(session, first)
        if attempt.job.image == "python:bad"
    ] == [{"stop_grace_seconds": 60}]
    assert (progress.state, progress.updated) == (UpdateState.FAILED, 1)
    assert "status 500" in progress.message
    assert sorted(images(session, first)) == ["python:3.13", "python:3.13", "python:bad"]
    untouched = {
        attempt.id for attempt in attempts(session, first) if attempt.job.image == "python:3.13"
    }
    roll_back(session, alice, first.id, now=NOON)
    for _ in range(4):
        step(session)
        settle(session, first, Health.HEALTHY)
    assert images(session, first) == ["python:3.13"] * 3
    assert {attempt.job.options for attempt in attempts(session, first)} == {None}
    assert untouched <= {attempt.id for attempt in attempts(session, first)}
    assert update_progress(session, alice, first.id).state is UpdateState.DONE


def test_an_update_keeps_secrets_and_belongs_to_their_user(session: Session, cast: Cast) -> None:
    first = run(session, cast, instances=1, secrets={"TOKEN": "old", "KEY": "k"})
    change(session, cast, first, secrets={"TOKEN": "new"})
    change(session, cast, first, image="python:3.14")
    step(session)
    settle(session, first)
    appliance_id = attempts(session, first)[0].appliance_id
    spec = desired_state(session, appliance_id, box=BOX).attempts[0]
    assert (spec.image, spec.secrets) == ("python:3.14", {"TOKEN": "new", "KEY": "k"})
    with pytest.raises(InvalidInputError):
        change(session, cast, first, name="other")
    bobs = submit(session, cast.bob, "api", kind=JobKind.SERVICE, secrets={"TOKEN": "x"})
    with pytest.raises(ForbiddenError):
        change(session, cast, bobs, image="python:3.14")


def test_health_and_restarts_are_on_the_attempt_and_in_the_history(
    session: Session, cast: Cast
) -> None:
    first = run(session, cast, instances=1, health_check=CHECK)
    attempt = attempts(session, first)[0]
    report(session, attempt, ObservedState.RUNNING, health=Health.HEALTHY)
    report(
        session,
        attempt,
        ObservedState.RUNNING,
        health=Health.UNHEALTHY,
        restarts=2,
        message="Health check: no answer.",
    )
    assert (attempt.health, attempt.restarts) == (Health.UNHEALTHY, 2)
    assert attempt.job.message == "Health check: no answer."
    report(session, attempt, ObservedState.RUNNING, health=Health.HEALTHY, restarts=0)
    assert (attempt.health, attempt.restarts, attempt.job.message) == (Health.HEALTHY, 2, "")
    events = len(job_events(session, scope_of(cast.alice), first.id))
    report(session, attempt, ObservedState.RUNNING, health=Health.HEALTHY)
    assert len(job_events(session, scope_of(cast.alice), first.id)) == events


def test_a_service_whose_container_disappears_starts_again(session: Session, cast: Cast) -> None:
    first = run(session, cast, instances=1)
    attempt = attempts(session, first)[0]
    gone = [observed(attempt, ObservedState.FAILED, reason="executor_error")]
    apply_report(session, attempt.appliance_id, gone, now=NOON + timedelta(minutes=5))
    session.refresh(first)
    assert (first.state, first.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RETRY)
    dispatch(session, now=NOON + timedelta(minutes=6))
    assert len(attempts(session, first)) == 1
