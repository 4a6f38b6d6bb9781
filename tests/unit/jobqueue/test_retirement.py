"""Retiring an appliance, and the jobs that keep it from that."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, NotFoundError
from jobqueue.dispatch import dispatch
from jobqueue.executors.base import ObservedState
from jobqueue.retirement import jobs_held, retire
from jobqueue.service import JobRequest, submit_job
from jobqueue.states import AttemptState, JobState
from jobqueue.sweep import sweep_attempts
from tenants.fleet.appliances import record_heartbeat, reinstate_appliance
from tenants.fleet.life import LifeState, life_of
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import report, start


def test_an_appliance_is_retired_once_its_jobs_have_ended(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=1)
    report(session, attempt, ObservedState.RUNNING)
    scope = scope_of(cast.alice)
    with pytest.raises(ConflictError, match=attempt.job.name):
        retire(session, scope, attempt.appliance_id, now=NOON)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    assert jobs_held(session, attempt.appliance_id) == []
    assert life_of(retire(session, scope, attempt.appliance_id, now=NOON)) is LifeState.RETIRED


def test_retiring_is_an_admins_and_never_a_strangers(session: Session, cast: Cast) -> None:
    appliance_id = start(session, cast).appliance_id
    with pytest.raises(ForbiddenError):
        retire(session, scope_of(cast.bob), appliance_id, now=NOON)
    with pytest.raises(NotFoundError):
        retire(session, scope_of(cast.charlie), appliance_id, now=NOON)


def test_a_retired_appliance_gets_no_job_and_one_that_came_back_and_was_heard_does(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    request = JobRequest(name="next", image="acme/train:1", command=["train"])
    submit_job(session, scope_of(cast.bob), request, now=NOON)
    appliance, scope = attempt.appliance, scope_of(cast.alice)
    retire(session, scope, appliance.id, now=NOON)
    assert dispatch(session, now=NOON).assigned == 0
    reinstate_appliance(session, scope, appliance.id, now=NOON)
    record_heartbeat(
        session, appliance.id, inventory=appliance.inventory, agent_version="", sent_at=NOON,
        now=NOON,
    )  # fmt: skip
    assert dispatch(session, now=NOON).assigned == 1


def test_an_attempt_that_is_held_by_a_retired_appliance_is_lost(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    attempt.appliance.retired_at = NOON
    session.flush()
    assert sweep_attempts(session, now=NOON).lost == 1
    session.refresh(attempt)
    session.refresh(attempt.job)
    assert (attempt.state, attempt.job.state) == (AttemptState.LOST, JobState.LOST)
    assert attempt.message == "dgx-01 was retired while it held this job."
