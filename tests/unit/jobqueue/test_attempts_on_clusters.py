"""Attempts on clusters in the database: what reports change, and from when on they are charged."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory
from core.ids import new_id
from jobqueue.dispatch.appliance_lifecycle import sweep_attempts
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.fairshare.usage import Account, charge_ended, read_usage
from jobqueue.jobs.end_notices import take_preemption_notices
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState, Reason
from jobqueue.usage.efficiency import Hardware, hardware_of
from jobqueue.usage.ledger import SETTLE, UNKNOWN_MODEL, record_usage
from jobqueue.usage.live import Live, live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from jobqueue.usage.totals import UsageBy, allocated_now, usage_sum, usage_totals
from protocol.attempts import AttemptObservation, ObservedState
from protocol.clusters import node_gpu_uuid, requested_gpus
from tenants.models import ApplianceState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, observed, report
from tests.unit.jobqueue.cluster_attempts import (
    HOUR,
    MINUTE,
    MODEL,
    add_connector,
    add_node,
    assign,
    messages,
    submit,
)
from tests.unit.jobqueue.cluster_builders import full
from tests.unit.jobqueue.cluster_builders import report as cluster_report
from timeseries.store import Store


def test_a_job_waits_in_the_queue_of_the_cluster_and_runs_on_a_node_with_its_gpus(
    session: Session, cast: Cast
) -> None:
    connector = add_connector(session, cast.acme, full("n1"))
    n1 = add_node(session, connector)
    attempt = assign(session, cast, gpus=2)
    assert (attempt.appliance_id, attempt.is_on_cluster) == (connector.id, True)
    assert attempt.gpu_uuids == requested_gpus(2)
    assert attempt.job.state is JobState.STARTING
    assert attempt.job.message == "No appliance is free. slurm-a queues the job."

    events = len(messages(session, attempt.job))
    for words in ("Pending in Slurm: Resources", "Pending in Slurm: Priority"):
        report(session, attempt, ObservedState.STARTING, message=words)
        assert attempt.job.message == words
    assert len(messages(session, attempt.job)) == events

    [before] = desired_state(session, connector.id, box=BOX).attempts
    report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=[3, 1])
    assert (attempt.state, attempt.node_id) == (AttemptState.RUNNING, n1.id)
    assert attempt.gpu_uuids == [node_gpu_uuid(n1.id, 1), node_gpu_uuid(n1.id, 3)]
    # The agent gets the same spec as before.
    [after] = desired_state(session, connector.id, box=BOX).attempts
    assert after == before
    assert after.gpu_uuids == requested_gpus(2)

    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    assert session.get_one(Job, attempt.job_id).state == "succeeded"


@pytest.mark.parametrize(
    "indices", [[], [0], [0, 0], [0, 4], [0, 99], [-1, 2], [0, 1, 2], [0, 1, 1]]
)
def test_gpus_that_make_no_sense_stay_those_that_were_requested(
    session: Session, cast: Cast, indices: list[int]
) -> None:
    n1 = add_node(session, add_connector(session, cast.acme))
    attempt = assign(session, cast, gpus=2)
    report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=indices)
    assert (attempt.node_id, attempt.gpu_uuids) == (n1.id, requested_gpus(2))
    assert hardware_of(attempt.job) == Hardware(80 * GIB, 64)


def test_a_node_that_is_reported_later_is_stored_then(session: Session, cast: Cast) -> None:
    connector = add_connector(session, cast.acme)
    attempt = assign(session, cast, gpus=1)
    report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=[2])
    assert not attempt.node_id
    assert hardware_of(attempt.job) == Hardware()
    n1 = add_node(session, connector)
    report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=[2])
    assert (attempt.node_id, attempt.gpu_uuids) == (n1.id, [node_gpu_uuid(n1.id, 2)])
    # It stays on the first one, whatever comes late.
    add_node(session, connector, "n2")
    report(session, attempt, ObservedState.RUNNING, node="n2", gpu_indices=[0])
    assert attempt.node_id == n1.id


def test_gpus_that_are_reported_after_the_node_are_stored_then(
    session: Session, cast: Cast
) -> None:
    connector = add_connector(session, cast.acme)
    n1, _ = add_node(session, connector), add_node(session, connector, "n2")
    attempt = assign(session, cast, gpus=1)
    for name, indices in (("n1", []), ("n2", [0]), ("n1", [9])):
        report(session, attempt, ObservedState.RUNNING, node=name, gpu_indices=indices)
        assert (attempt.node_id, attempt.gpu_uuids) == (n1.id, requested_gpus(1))
    for index in (2, 3):
        report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=[index])
        assert attempt.gpu_uuids == [node_gpu_uuid(n1.id, 2)]


def test_an_agent_that_is_no_connector_names_no_node(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    row = add_node(session, dgx)
    attempt = assign(session, cast, gpus=1)
    uuids = list(attempt.gpu_uuids)
    report(session, attempt, ObservedState.RUNNING, node="n1", gpu_indices=[2])
    assert (attempt.node_id, attempt.gpu_uuids) == (None, uuids)
    assert row.id not in {view.id for view in tenant_views(session, cast.acme.id)}


def test_jobs_of_before_an_agent_became_a_connector_are_not_in_its_queue(
    session: Session, cast: Cast
) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    attempt = assign(session, cast, gpus=1)
    report(session, attempt, ObservedState.RUNNING)
    reported = msgspec.to_builtins(cluster_report(full("n1"), max_waiting=1))
    dgx.inventory = {**dgx.inventory, "executors": ["slurm"], "cluster": reported}
    dgx.report_id = new_id()
    session.flush()
    job = submit(session, cast.alice, gpus=1)
    dispatch(session, now=NOON + MINUTE)
    session.refresh(job)
    assert job.state is JobState.STARTING


@pytest.mark.parametrize("state", [ObservedState.FAILED, ObservedState.STOPPED])
def test_a_job_that_the_cluster_preempts_is_queued_again_without_a_retry(
    session: Session, cast: Cast, state: ObservedState
) -> None:
    add_node(session, add_connector(session, cast.acme))
    attempt = assign(session, cast, gpus=2, notify=["email"])
    report(session, attempt, ObservedState.RUNNING, node="n1")
    words = "job 17 has a higher QOS"
    report(session, attempt, state, reason="preempted_by_cluster", message=words)
    job = attempt.job
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPED, Reason.PREEMPTED_BY_CLUSTER)
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.PREEMPTED_BY_CLUSTER)
    assert job.message == (
        "Attempt 1 made room for another job of the cluster; queued again. The cluster preempted "
        f"it: {words}"
    )
    assert messages(session, job)[-1] == job.message
    assert job.queue_at == NOON
    [notice] = take_preemption_notices(session, now=NOON + MINUTE)
    assert f"The cluster preempted it: {words}" in notice.text

    # The cluster's next report shows what the other job has taken.
    dispatch(session, now=NOON + 80 * timedelta(seconds=1))
    session.refresh(job)
    assert job.state is JobState.QUEUED
    dispatch(session, now=NOON + 2 * MINUTE)
    session.refresh(job)
    assert job.attempt is not None
    assert (job.state, job.attempt.number) == (JobState.STARTING, 2)
    assert (job.attempt.node_id, job.attempt.gpu_uuids) == (None, requested_gpus(2))


def test_a_preempted_job_that_a_user_stops_is_stopped(session: Session, cast: Cast) -> None:
    add_connector(session, cast.acme)
    attempt = assign(session, cast, gpus=2)
    attempt.job.stop_requested_at = NOON
    session.flush()
    report(session, attempt, ObservedState.FAILED, reason="preempted_by_cluster")
    assert (attempt.job.state, attempt.job.reason) == (JobState.STOPPED, Reason.STOPPED_BY_USER)


@pytest.mark.parametrize(("retry_on", "state"), [([], "failed"), (["appliance"], "queued")])
def test_a_node_that_fails_is_a_failure_of_the_appliance(
    session: Session, cast: Cast, retry_on: list[str], state: str
) -> None:
    add_node(session, add_connector(session, cast.acme))
    attempt = assign(session, cast, gpus=2, retry_on=retry_on, max_retries=len(retry_on))
    report(session, attempt, ObservedState.RUNNING, node="n1")
    report(session, attempt, ObservedState.FAILED, reason="node_failed", message="NODE_FAIL on n1")
    assert (attempt.state, attempt.reason) == (AttemptState.FAILED, Reason.NODE_FAILED)
    assert attempt.job.state == state


@pytest.mark.parametrize("reason", ["start_failed", "invalid_job", "image_pull_failed"])
def test_failed_starts_never_quarantine_a_connector(
    session: Session, cast: Cast, reason: str
) -> None:
    connector = add_connector(session, cast.acme)
    for number in range(4):
        attempt = assign(session, cast, name=f"job-{number}")
        report(session, attempt, ObservedState.FAILED, reason=reason, message="prolog failed")
    session.refresh(connector)
    assert connector.quarantined_at is None


def test_attempts_of_a_lost_connector_are_lost(session: Session, cast: Cast) -> None:
    connector = add_connector(session, cast.acme, full("n1"))
    attempt = assign(session, cast, gpus=2)
    connector.state = ApplianceState.UNREACHABLE
    session.flush()
    sweep_attempts(session, now=NOON + MINUTE)
    session.refresh(attempt.job)
    assert attempt.job.reason is Reason.APPLIANCE_UNREACHABLE
    # It is back, and tells what ended meanwhile.
    connector.state = ApplianceState.ONLINE
    session.flush()
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    assert attempt.job.state is JobState.SUCCEEDED
    lost = assign(session, cast, name="other", gpus=2)
    connector.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=NOON + MINUTE)
    session.refresh(lost)
    assert lost.state is AttemptState.LOST


def test_a_job_that_the_cluster_preempts_again_and_again_pauses_for_longer(
    session: Session, cast: Cast
) -> None:
    add_connector(session, cast.acme)
    attempt, now = assign(session, cast), NOON
    pauses = []
    for _ in range(5):
        seen = observed(attempt, ObservedState.FAILED, reason="preempted_by_cluster")
        apply_report(session, attempt.appliance_id, [seen], now=now)
        job = session.get_one(Job, attempt.job_id)
        session.refresh(job)
        assert job.retry_at is not None
        pauses.append((job.retry_at - now).total_seconds())
        now = job.retry_at
        dispatch(session, now=now)
        session.refresh(job)
        assert job.attempt is not None
        attempt = job.attempt
    assert pauses == [30, 30, 40, 80, 160]


@pytest.mark.parametrize("indices", [[0, 1], []])
def test_an_attempt_is_charged_from_its_start_on_the_cluster(
    sessions: SessionFactory, store: Store, cast: Cast, indices: list[int]
) -> None:
    with sessions.begin() as session:
        add_node(session, add_connector(session, cast.acme, full("n1")))
        attempt = assign(session, cast, gpus=2)
    account, half_life = Account("", cast.alice.id), timedelta(days=3650)
    day = Period(NOON - 12 * HOUR, NOON + 12 * HOUR)

    def allocated(*, now_after: timedelta) -> list[Any]:
        """Return the GPU-seconds of fair shares and of the live usage, and the GPUs of now."""
        now = NOON + now_after
        with sessions.begin() as session:
            usage = read_usage(session, cast.acme.id, half_life=half_life, now=now)
            live = live_use(session, store, scope_of(cast.alice), day, now=now)
            total = usage_sum(session, scope_of(cast.alice), day, live=live)
            of_now = allocated_now(session, scope_of(cast.alice))
            return [usage[account].gpus, total.allocated_gpu_seconds, of_now]

    assert allocated(now_after=30 * MINUTE) == [0, 0, (0, 0)]
    assert record_usage(sessions, store, now=NOON + HOUR + SETTLE) == 0

    def tell(state: ObservedState, *, after: timedelta, **changes: Any) -> None:
        with sessions.begin() as session:
            seen = observed(attempt, state, node="n1", gpu_indices=indices, **changes)
            apply_report(session, attempt.appliance_id, [seen], now=NOON + after)

    began = {"started_at_ns": to_ns(NOON + 90 * MINUTE)}
    tell(ObservedState.RUNNING, after=90 * MINUTE, **began)
    # Decay takes a little off what was used.
    assert allocated(now_after=2 * HOUR) == [pytest.approx(3600, abs=5), 3600, (2, 1)]
    assert record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE) == 1
    tell(
        ObservedState.SUCCEEDED,
        after=150 * MINUTE,
        finished_at_ns=to_ns(NOON + 150 * MINUTE),
        **began,
    )
    assert record_usage(sessions, store, now=NOON + 3 * HOUR + SETTLE) == 1
    with sessions.begin() as session:
        totals = usage_totals(
            session, scope_of(cast.alice), day, by=UsageBy.GPU_MODEL, live=Live()
        ).items
        assert [(row.key, row.allocated_gpu_seconds) for row in totals] == [(MODEL, 7200)]
        charge_ended(session, cast.acme.id, half_life=half_life, now=NOON + 3 * HOUR)
        usage = read_usage(session, cast.acme.id, half_life=half_life, now=NOON + 3 * HOUR)
        assert usage[account].gpus == pytest.approx(7200, abs=10)


@pytest.mark.parametrize(
    ("models", "charged"), [(["H100", "H100"], "H100"), (["H100", "A100"], UNKNOWN_MODEL)]
)
def test_an_attempt_on_an_unknown_node_is_not_charged_as_on_the_gpus_of_its_connector(
    sessions: SessionFactory, store: Store, cast: Cast, models: list[str], charged: str
) -> None:
    with sessions.begin() as session:
        nodes = [full(model.lower(), gpu_model=model) for model in models]
        connector = add_connector(session, cast.acme, *nodes)
        assert connector.gpu_model not in {"", *models}
        attempt = assign(session, cast, gpus=2)
        report(session, attempt, ObservedState.RUNNING, started_at_ns=to_ns(NOON))
    assert record_usage(sessions, store, now=NOON + HOUR + SETTLE) == 1
    with sessions() as session:
        assert session.scalars(select(UsageEntry.gpu_model)).all() == [charged]


def test_an_attempt_that_never_left_the_queue_of_the_cluster_is_free(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_connector(session, cast.acme, full("n1"))
        attempt = assign(session, cast, gpus=2)
    seen = AttemptObservation(
        attempt_id=attempt.id, state=ObservedState.FAILED, reason="invalid_job", message="QOSLimit"
    )
    with sessions.begin() as session:
        apply_report(session, attempt.appliance_id, [seen], now=NOON + 30 * MINUTE)
    assert record_usage(sessions, store, now=NOON + HOUR + SETTLE) == 0
    with sessions.begin() as session:
        charge_ended(session, cast.acme.id, half_life=timedelta(days=7), now=NOON + HOUR)
        usage = read_usage(session, cast.acme.id, half_life=timedelta(days=7), now=NOON + HOUR)
        assert usage[Account("", cast.alice.id)].gpus == 0
        assert session.scalar(select(func.count()).where(Attempt.is_charged.is_(False))) == 0
