"""Gangs in the database: submitted, started and ended as a whole, and members that are lost."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.appliance_lifecycle import move_overdue, start_drain, sweep_attempts
from jobqueue.dispatch.snapshot import queue_order, read_snapshot
from jobqueue.dispatch.waiting_jobs import read_waiting
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.jobs.transitions import move_job
from jobqueue.models import Attempt, Job
from jobqueue.queue.pending import explain_job, try_job
from jobqueue.queue.resubmission import retry_job, set_priority
from jobqueue.queue.retention import delete_job
from jobqueue.queue.service import job_events
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState, Reason
from protocol.attempts import ObservedState
from protocol.job_spec import JobKind, JobRequest
from tenants.fleet.appliance_service import drain_appliance
from tenants.fleet.appliances import open_appliances
from tenants.models import ApplianceState
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit

LATER = NOON + timedelta(minutes=30)


def members(session: Session, leader: Job) -> list[Job]:
    """All members in the order of their rank."""
    of_gang = select(Job).where(Job.array_id == leader.id).order_by(Job.array_index)
    loaded = of_gang.execution_options(populate_existing=True)
    return list(session.scalars(loaded).unique())


def states(session: Session, leader: Job) -> list[str]:
    return [member.state.value for member in members(session, leader)]


def running(session: Session, cast: Cast, *, nodes: int = 2, **changes: Any) -> list[Attempt]:
    """The attempts of a gang that runs on as many appliances."""
    for number in range(nodes):
        network = {"address": f"192.0.2.{number + 1}", "can_make_networks": True}
        add_appliance(session, cast.acme, f"dgx-{number:02}", network=network)
    leader = submit(session, cast.alice, nodes=nodes, gpus=8, **changes)
    dispatch(session, now=NOON)
    for attempt in latest(session, leader):
        report(session, attempt, ObservedState.RUNNING)
    return latest(session, leader)


def latest(session: Session, leader: Job) -> list[Attempt]:
    """The latest attempt of each member."""
    return [member.attempts[-1] for member in members(session, leader)]


def test_all_members_start_in_one_transaction_once_all_fit(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    other = add_appliance(session, cast.acme, "dgx-02")
    blocking = submit(session, cast.alice, "blocking", gpus=1)
    dispatch(session, now=NOON)
    leader = submit(session, cast.bob, nodes=2, gpus=8)
    dispatch(session, now=NOON)
    waiting = members(session, leader)
    assert [(member.state, member.reason) for member in waiting] == [
        (JobState.QUEUED, Reason.WAITING_FOR_RESOURCES)
    ] * 2
    assert waiting[0].message.startswith("1 of 2 members fit now, and all start together.")
    assert not any(member.attempts for member in waiting), "a waiting gang holds nothing"
    for member in waiting:
        explanation = explain_job(session, scope_of(cast.bob), member.id, now=NOON)
        assert explanation is not None
        assert (explanation.position, explanation.queue_length) == (1, 1)
    session.refresh(blocking)
    assert blocking.attempt is not None
    report(session, blocking.attempt, ObservedState.SUCCEEDED)
    dispatch(session, now=LATER)
    assert states(session, leader) == ["starting", "starting"]
    placed = {
        member.attempt.appliance.name for member in members(session, leader) if member.attempt
    }
    assert placed == {"dgx-01", other.name}


def test_a_gang_does_not_start_while_an_appliance_of_it_is_just_drained(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    drained = add_appliance(session, cast.acme, "dgx-02")
    leader = submit(session, cast.alice, nodes=2, gpus=8)

    def drain_and_read(*arguments: Any, **options: Any) -> Any:
        drain_appliance(session, scope_of(cast.alice), drained.id, now=NOON)
        session.flush()
        return open_appliances(*arguments, **options)

    monkeypatch.setattr("jobqueue.dispatch.dispatcher.open_appliances", drain_and_read)
    dispatch(session, now=NOON)
    assert not any(member.attempts for member in members(session, leader))


def test_a_failed_member_stops_the_others(session: Session, cast: Cast) -> None:
    first, second = running(session, cast)
    report(session, first, ObservedState.FAILED, exit_code=1, reason="exit_code")
    session.refresh(second)
    assert second.stop_reason is Reason.MEMBER_ENDED
    report(session, second, ObservedState.FAILED, exit_code=137, reason="signal")
    ended = members(session, first.job)
    assert [(member.state, member.reason) for member in ended] == [
        (JobState.FAILED, Reason.EXIT_CODE),
        (JobState.STOPPED, Reason.MEMBER_ENDED),
    ]


def test_a_gang_restarts_as_a_whole_as_often_as_retries_allow(session: Session, cast: Cast) -> None:
    first, second = running(session, cast, on_member_loss="restart", max_retries=1)
    report(session, second, ObservedState.FAILED, exit_code=1, reason="exit_code")
    dispatch(session, now=LATER)
    assert states(session, first.job) == ["running", "queued"], "it waits until all have stopped"
    report(session, first, ObservedState.SUCCEEDED)
    assert states(session, first.job) == ["queued", "queued"], "also one that ended well meanwhile"
    dispatch(session, now=LATER)
    assert states(session, first.job) == ["starting", "starting"]
    first, second = latest(session, first.job)
    report(session, first, ObservedState.FAILED, exit_code=1, reason="exit_code")
    report(session, second, ObservedState.STOPPED)
    assert states(session, first.job) == ["failed", "stopped"], "the retry of one counts for all"


def test_a_gang_without_a_lost_member_goes_on_where_that_was_asked_for(
    session: Session, cast: Cast
) -> None:
    first, second = running(
        session, cast, on_member_loss="continue", max_retries=1, retry_on=["appliance"]
    )
    second.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=LATER)
    assert states(session, first.job) == ["running", "queued"]
    add_appliance(session, cast.acme, "dgx-09")
    dispatch(session, now=LATER)
    dispatch(session, now=LATER + timedelta(minutes=5))
    assert states(session, first.job) == ["running", "starting"], "the member is placed by itself"
    stop_job(session, scope_of(cast.alice), second.job_id, now=LATER)
    assert first.job.stop_requested_at is None


def test_a_lost_member_of_a_gang_that_goes_on_has_its_own_size_in_the_queue(
    session: Session, cast: Cast
) -> None:
    ordering = OrderSettings(policy=OrderPolicy.FAIR_TREE, size_weight=100)
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(ordering=ordering))
    _, second = running(
        session, cast, on_member_loss="continue", max_retries=1, retry_on=["appliance"]
    )
    second.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=LATER)
    whole = submit(session, cast.alice, "whole", nodes=2, gpus=8)
    snapshot = read_snapshot(session, cast.acme.id, now=LATER + timedelta(minutes=5))
    queue = queue_order(session, cast.acme.id, snapshot)
    sizes = {ident: queue.parts(place)[-1].value for place, ident in enumerate(queue.ids)}
    total = sum(len(view.gpus) for view in snapshot.appliances)
    assert sizes == {second.job_id: 8 / total, whole.id: 16 / total}


def test_a_gang_that_has_not_started_never_starts_without_a_member(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    add_appliance(session, cast.acme, "dgx-02")
    submit(session, cast.alice, "blocking", gpus=8)
    leader = submit(session, cast.alice, nodes=2, gpus=8, on_member_loss="continue")
    dispatch(session, now=NOON)
    stop_job(session, scope_of(cast.alice), members(session, leader)[1].id, now=NOON)
    assert states(session, leader) == ["stopped", "stopped"]


def test_a_lost_appliance_ends_the_gang_and_a_drained_one_moves_it(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast)
    second.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=LATER)
    report(session, first, ObservedState.STOPPED)
    assert states(session, first.job) == ["stopped", "lost"]


def test_a_preempted_gang_stops_and_starts_again_as_a_whole(session: Session, cast: Cast) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(allows_preemption=True))
    first, _ = running(session, cast, is_preemptible=True)
    urgent = submit(session, cast.alice, "urgent", gpus=8)
    dispatch(session, now=LATER)
    stopping = latest(session, first.job)
    assert [attempt.stop_reason for attempt in stopping] == [Reason.PREEMPTED] * 2
    for attempt in stopping:
        report(session, attempt, ObservedState.STOPPED)
    dispatch(session, now=LATER)
    session.refresh(urgent)
    assert urgent.state is JobState.STARTING
    assert states(session, first.job) == ["queued", "queued"]


def test_one_stop_or_priority_is_for_all_members(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.alice)
    add_appliance(session, cast.acme, "dgx-01")
    add_appliance(session, cast.acme, "dgx-02", gpus=8)
    submit(session, cast.alice, "blocking", gpus=8)
    leader = submit(session, cast.alice, nodes=2, gpus=8)
    dispatch(session, now=NOON)
    last = members(session, leader)[-1]
    set_priority(session, scope, last.id, 5, now=NOON)
    assert {member.priority for member in members(session, leader)} == {5}
    stop_job(session, scope, last.id, now=NOON)
    assert states(session, leader) == ["stopped", "stopped"]
    retried = retry_job(session, scope, last.id, box=BOX, now=NOON)
    assert (retried.nodes, len(members(session, retried))) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"nodes": 5, "gpus": 4}, "nodes", "which hold 4. Enter at most 4 nodes"),
        ({"nodes": 2, "array": "0-3"}, "nodes", "A gang can't be an array"),
        ({"nodes": 2, "kind": JobKind.SERVICE}, "nodes", "set instances"),
        ({"nodes": 2, "max_retries": 1}, "on_member_loss", "choose restart or continue"),
        ({"nodes": 2, "on_member_loss": "panic"}, "on_member_loss", "is not one of: stop"),
        ({"nodes": 0}, "nodes", "enter 1 to 256"),
    ],
)
def test_a_gang_that_can_never_start_is_refused_with_what_would_work(
    session: Session, cast: Cast, changes: dict[str, Any], field: str, expected: str
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    add_appliance(session, cast.acme, "dgx-02")
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.alice, **changes)
    assert expected in refused.value.errors[field][0]
    request = JobRequest(name="train", image="python:3.13", nodes=4, gpus=4)
    explanation = try_job(session, scope_of(cast.alice), request, now=NOON)
    assert explanation.decision.reason == "All 4 members fit on dgx-01, dgx-02."


def test_an_appliance_that_is_lost_with_several_members_counts_as_one_retry(
    session: Session, cast: Cast
) -> None:
    for number in range(3):
        add_appliance(session, cast.acme, f"dgx-{number:02}")
    leader = submit(
        session,
        cast.alice,
        nodes=2,
        gpus=4,
        on_member_loss="restart",
        max_retries=2,
        retry_on=["appliance"],
    )
    now = NOON
    for _ in range(2):
        dispatch(session, now=now)
        first, second = latest(session, leader)
        assert first.appliance_id == second.appliance_id
        first.appliance.state = ApplianceState.LOST
        session.flush()
        sweep_attempts(session, now=now)
        assert states(session, leader) == ["queued", "queued"]
        now += timedelta(hours=1)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_member_that_exits_with_0_when_it_is_preempted_starts_again_with_the_others(
    session: Session, cast: Cast, *, is_first: bool
) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(allows_preemption=True))
    first, second = running(session, cast, is_preemptible=True)
    urgent = submit(session, cast.alice, "urgent", gpus=8)
    dispatch(session, now=LATER)
    session.refresh(first)
    session.refresh(second)
    ends = [(first, ObservedState.SUCCEEDED), (second, ObservedState.STOPPED)]
    for attempt, end in ends if is_first else reversed(ends):
        report(session, attempt, end)
    assert states(session, first.job) == ["queued", "queued"]
    dispatch(session, now=LATER)
    session.refresh(urgent)
    assert urgent.state is JobState.STARTING
    assert urgent.attempt is not None
    report(session, urgent.attempt, ObservedState.SUCCEEDED)
    dispatch(session, now=LATER + timedelta(hours=1))
    assert states(session, first.job) == ["starting", "starting"]


def test_members_that_exit_with_0_when_they_are_drained_move(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    leader = submit(session, cast.alice, nodes=2, gpus=4)
    dispatch(session, now=NOON)
    first, second = latest(session, leader)
    start_drain(session, scope_of(cast.alice), first.appliance_id, wait=timedelta(0), now=NOON)
    session.flush()
    move_overdue(session, now=NOON)
    session.expire_all()
    report(session, first, ObservedState.STOPPED)
    report(session, second, ObservedState.SUCCEEDED)
    assert states(session, leader) == ["queued", "queued"]


def test_a_preempted_member_that_exits_with_0_ends_when_a_user_stopped_the_gang(
    session: Session, cast: Cast
) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(allows_preemption=True))
    first, second = running(session, cast, is_preemptible=True)
    submit(session, cast.alice, "urgent", gpus=8)
    dispatch(session, now=LATER)
    stop_job(session, scope_of(cast.alice), first.job_id, now=LATER)
    session.expire_all()
    report(session, first, ObservedState.SUCCEEDED)
    report(session, second, ObservedState.STOPPED)
    assert states(session, first.job) == ["succeeded", "stopped"]


def test_a_gang_of_which_a_part_was_just_stopped_is_not_placed_as_a_single_job(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    leader = submit(session, cast.alice, nodes=2, gpus=4)
    [whole] = read_waiting(session, cast.acme.id, [leader.id], (), now=NOON)
    assert len(whole.members) == 2
    # Stopping an array does that in parts, the last tasks first.
    move_job(session, members(session, leader)[1].id, JobState.STOPPED)
    assert not read_waiting(session, cast.acme.id, [leader.id], (), now=NOON)


def test_a_gang_does_not_restart_without_a_member_that_was_deleted(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, on_member_loss="restart", max_retries=1)
    report(session, second, ObservedState.SUCCEEDED)
    delete_job(session, scope_of(cast.alice), second.job_id, now=LATER)
    session.expire_all()
    report(session, first, ObservedState.FAILED, exit_code=1, reason="exit_code")
    assert states(session, first.job) == ["failed"], "it would wait forever to be complete"


def history(session: Session, cast: Cast, member: Attempt) -> list[str]:
    events = job_events(session, scope_of(cast.alice), member.job_id)
    return [event.message for event in events]


def test_the_others_name_the_member_that_failed(session: Session, cast: Cast) -> None:
    first, second, third = running(session, cast, nodes=3)
    report(session, third, ObservedState.FAILED, exit_code=1, reason="exit_code")
    session.expire_all()
    failed = f"ember 2 ({third.appliance.name}) failed: exit code 1."
    assert first.job.message == f"Stopped: m{failed}", "already while it stops"
    assert f"M{failed}" in history(session, cast, first)
    report(session, first, ObservedState.STARTING, message="Pulling.")
    for other in (first, second):
        report(session, other, ObservedState.STOPPED)
        assert (other.job.state, other.job.message) == (JobState.STOPPED, f"Stopped: m{failed}")


def test_a_gang_that_restarts_names_the_member_that_was_lost(session: Session, cast: Cast) -> None:
    first, second = running(session, cast, on_member_loss="restart", max_retries=1)
    second.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=LATER)
    report(session, first, ObservedState.STOPPED)
    assert f"member 1 ({second.appliance.name}) was lost" in first.job.message


def test_the_first_of_a_gang_that_goes_on_has_the_end_of_a_member_in_its_history(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, on_member_loss="continue")
    report(session, second, ObservedState.FAILED, exit_code=3, reason="exit_code")
    name = second.appliance.name
    assert history(session, cast, first)[-1] == f"Member 1 ({name}) failed: exit code 3."
    assert first.stop_reason is None


@pytest.mark.parametrize("framework", ["mpi", "ray"])
def test_members_that_the_first_one_leads_succeed_with_it(
    session: Session, cast: Cast, framework: str
) -> None:
    first, second, third = running(
        session, cast, nodes=3, framework=framework, command=["mpirun", "train"]
    )
    report(session, first, ObservedState.SUCCEEDED, exit_code=0)
    session.expire_all()
    assert second.stop_reason is Reason.FIRST_MEMBER_ENDED
    report(session, second, ObservedState.STOPPED, exit_code=143)
    assert (second.job.exit_code, second.job.message) == (
        None,
        "Ended with the first member, which succeeded.",
    )
    third.appliance.state = ApplianceState.LOST
    session.flush()
    sweep_attempts(session, now=LATER)
    assert states(session, first.job) == ["succeeded"] * 3


def test_a_failed_first_member_of_a_led_gang_fails_as_any_other(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, framework="mpi", command=["mpirun", "train"])
    report(session, first, ObservedState.FAILED, exit_code=1, reason="exit_code")
    report(session, second, ObservedState.STOPPED)
    assert states(session, first.job) == ["failed", "stopped"]


def test_a_led_gang_whose_first_member_failed_restarts_as_a_whole(
    session: Session, cast: Cast
) -> None:
    first, second = running(
        session,
        cast,
        framework="ray",
        command=["python", "train.py"],
        on_member_loss="restart",
        max_retries=1,
    )
    report(session, first, ObservedState.FAILED, exit_code=1, reason="exit_code")
    report(session, second, ObservedState.STOPPED)
    assert states(session, first.job) == ["queued", "queued"]


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"framework": "horovod"}, "framework", "is not one of: none, torch"),
        ({"framework": "torch", "kind": JobKind.SERVICE}, "framework", "not for a service"),
        ({"framework": "torch", "array": "0-3"}, "framework", "not for an array"),
        (
            {"framework": "torch", "nodes": 2, "network": "bridge"},
            "network",
            "Choose gang, or host",
        ),
        ({"network": "mesh"}, "network", "is not one of: bridge, gang, host"),
        ({"network": "gang", "array": "0-3"}, "network", "connects the members of a gang"),
        ({"framework": "mpi", "nodes": 2}, "command", "its first member runs"),
        (
            {"framework": "ray", "nodes": 2, "on_member_loss": "continue"},
            "on_member_loss",
            "choose stop or restart",
        ),
    ],
)
def test_a_framework_that_could_not_work_is_refused(
    session: Session, cast: Cast, changes: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        submit(session, cast.alice, **changes)
    assert expected in refused.value.errors[field][0]


def test_a_framework_with_one_member_needs_no_gang(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    assert submit(session, cast.alice, framework="torch").nodes == 1
