"""Retiring an appliance, and the jobs that keep it from that."""

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, NotFoundError
from jobqueue.dispatch.appliance_lifecycle import (
    retire_idle_appliance,
    running_job_names,
    sweep_attempts,
)
from jobqueue.placement.decisions import Action
from jobqueue.queue.service import submit_job
from jobqueue.states import AttemptState, JobState
from protocol.attempts import ObservedState
from protocol.inventory import Inventory
from protocol.job_spec import JobRequest
from tenants.fleet.appliance_service import reinstate_appliance
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import dispatch, report, start


def test_an_appliance_is_retired_once_its_jobs_have_ended(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=1)
    report(session, attempt, ObservedState.RUNNING)
    scope = scope_of(cast.alice)
    with pytest.raises(ConflictError, match=attempt.job.name):
        retire_idle_appliance(session, scope, attempt.appliance_id, now=NOON)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    assert running_job_names(session, attempt.appliance_id) == []
    assert (
        effective_status_of(retire_idle_appliance(session, scope, attempt.appliance_id, now=NOON))
        is EffectiveStatus.RETIRED
    )


def test_only_an_admin_of_the_tenant_retires_an_appliance(session: Session, cast: Cast) -> None:
    appliance_id = start(session, cast).appliance_id
    with pytest.raises(ForbiddenError):
        retire_idle_appliance(session, scope_of(cast.bob), appliance_id, now=NOON)
    with pytest.raises(NotFoundError):
        retire_idle_appliance(session, scope_of(cast.charlie), appliance_id, now=NOON)


def test_a_retired_appliance_gets_jobs_only_after_it_came_back_and_reported(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    request = JobRequest(name="next", image="acme/train:1", command=["train"])
    submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)
    appliance, scope = attempt.appliance, scope_of(cast.alice)
    retire_idle_appliance(session, scope, appliance.id, now=NOON)
    assert dispatch(session, now=NOON)[Action.ASSIGN] == 0
    reinstate_appliance(session, scope, appliance.id, now=NOON)
    record_heartbeat(
        session,
        appliance.id,
        inventory=msgspec.convert(appliance.inventory, Inventory),
        agent_version="",
        sent_at=NOON,
        now=NOON,
    )
    assert dispatch(session, now=NOON)[Action.ASSIGN] == 1


def test_an_attempt_on_a_retired_appliance_is_lost(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    attempt.appliance.retired_at = NOON
    session.flush()
    sweep_attempts(session, now=NOON)
    session.refresh(attempt)
    session.refresh(attempt.job)
    assert (attempt.state, attempt.job.state) == (AttemptState.LOST, JobState.LOST)
    assert "dgx-01 was retired" in attempt.message
