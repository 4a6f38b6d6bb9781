"""The explanation of a waiting job: position, what must free up, and the expected start."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from msgspec import structs
from sqlalchemy.orm import Session

from jobqueue.dispatch.snapshot import read_snapshot
from jobqueue.placement.decisions import Action
from jobqueue.placement.explanation import Explanation, explain_jobs
from jobqueue.placement.views import ApplianceView, Caps, JobView, RunningJob, Snapshot
from jobqueue.queue import pending
from jobqueue.queue.pending import explain_job, try_job
from jobqueue.queue.service import list_jobs
from protocol.job_spec import JobRequest
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import (
    GIB,
    add_appliance,
    appliance,
    dispatch,
    gpu_uuid,
    job,
    start,
    submit,
)


def minutes(number: int) -> datetime:
    return NOON + timedelta(minutes=number)


def used(name: str, *ends: int | None) -> ApplianceView:
    """An appliance of eight GPUs, of which each job with an end has two."""
    running = [
        RunningJob(
            job_id=f"{name}-{number}",
            gpu_uuids=[gpu_uuid(name, 2 * number), gpu_uuid(name, 2 * number + 1)],
            ends_at=None if end is None else minutes(end),
        )
        for number, end in enumerate(ends)
    ]
    return appliance(name, running=running)


def ask(fleet: list[ApplianceView], *jobs: JobView, caps: Caps | None = None) -> Snapshot:
    return Snapshot(now=NOON, appliances=fleet, jobs=jobs, caps=caps or Caps())


def explain(snapshot: Snapshot, job_id: str) -> Explanation:
    return explain_jobs(snapshot, [job_id])[job_id]


def test_the_most_relevant_reason_is_first_and_what_is_missing_is_named() -> None:
    fleet = [used("dgx-01", 5, 9, 20, 30), used("dgx-02", 5, 9, 20), appliance("mini", gpus=1)]
    explanation = explain(ask(fleet, job("train", gpus=4)), "train")
    assert [rejection.code for rejection in explanation.rejections] == ["gpus_busy", "too_few_gpus"]
    assert [example.appliance for example in explanation.rejections[0].examples] == [
        "dgx-02",
        "dgx-01",
    ]
    assert explanation.needs == "2 more GPUs on dgx-02"
    assert (explanation.position, explanation.queue_length) == (1, 1)
    assert explanation.expected_start_at == minutes(5)


def test_cores_and_memory_are_missing_too() -> None:
    fleet = [replace(used("dgx-01", 5), cpus=2.0, memory_bytes=GIB)]
    running = structs.replace(fleet[0].running[0], cpus=1.5, memory_bytes=GIB // 2)
    fleet = [replace(fleet[0], running=[running])]
    explanation = explain(ask(fleet, job("train", gpus=7, cpus=1, memory_bytes=GIB)), "train")
    assert (
        explanation.needs == "1 more GPU and 0.5 more CPU cores and 512 MiB more memory on dgx-01"
    )


def test_the_jobs_ahead_go_first() -> None:
    fleet = [used("dgx-01", 5, 9, 20, None)]
    ahead = job("a", gpus=2, time_limit=timedelta(minutes=30))
    explanation = explain(ask(fleet, ahead, job("b", gpus=4)), "b")
    assert (explanation.position, explanation.queue_length) == (2, 2)
    # a gets the two GPUs that are free in five minutes; b needs those of nine and twenty.
    assert explanation.expected_start_at == minutes(20)


def test_a_job_that_waits_for_one_without_a_limit_has_no_expected_start() -> None:
    explanation = explain(ask([used("dgx-01", 5, None)], job("train", gpus=8)), "train")
    assert explanation.expected_start_at is None
    assert explanation.decision.action is Action.BIND


def test_a_held_job_starts_when_its_user_has_fewer_gpus() -> None:
    view = used("dgx-01", 5)
    view = replace(view, running=[structs.replace(view.running[0], user_id="bob")])
    held = job("train", gpus=2, user_id="bob")
    explanation = explain(ask([view], held, caps=Caps(gpus_per_user=3)), "train")
    assert (explanation.decision.action, explanation.needs) == (Action.HELD, "")
    assert explanation.expected_start_at == minutes(5)


def test_a_free_appliance_is_named_with_now() -> None:
    explanation = explain(ask([appliance("dgx-01")], job("train", gpus=1)), "train")
    assert (explanation.decision.appliance_id, explanation.expected_start_at) == ("dgx-01", NOON)


def test_a_waiting_job_is_explained_and_a_dry_run_submits_nothing(
    session: Session, cast: Cast
) -> None:
    scope = scope_of(cast.alice)
    running = start(session, cast, gpus=6, time_limit_seconds=600)
    waiting = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    explanation = explain_job(session, scope, waiting.id, now=NOON)
    assert explanation is not None
    assert explanation.needs == "6 more GPUs on dgx-01"
    assert explanation.expected_start_at == NOON + timedelta(minutes=10)
    assert explain_job(session, scope, running.job_id, now=NOON) is None

    dry = try_job(session, scope, JobRequest(name="a", image="b", gpus=2), now=NOON)
    # It could delay the job that waits: it has no time limit.
    assert dry.decision.rejections[0].code == "reserved_for_earlier_job"
    short = JobRequest(name="a", image="b", gpus=2, time_limit_seconds=60)
    assert try_job(session, scope, short, now=NOON).decision.action is Action.ASSIGN
    assert list_jobs(session, scope).total == 2


def test_an_explanation_is_of_ones_own_tenant(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.globex, "dgx-01")
    dry = try_job(session, scope_of(cast.alice), JobRequest(name="a", image="b"), now=NOON)
    assert dry.decision.action is Action.UNPLACED
    assert list(dry.rejections) == []


def test_a_job_far_back_in_a_long_queue_is_explained_too(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MAX_BEFORE", 2)
    start(session, cast, gpus=8)
    waiting = [submit(session, cast.alice, f"job-{number}", gpus=8) for number in range(5)]
    dispatch(session, now=NOON)
    explanation = explain_job(session, scope_of(cast.alice), waiting[4].id, now=NOON)
    assert explanation is not None
    assert (explanation.position, explanation.queue_length) == (5, 5)
    assert (explanation.decision.action, explanation.expected_start_at) == (Action.STAY, None)
    new = JobRequest(name="a", image="b", gpus=8)
    dry = try_job(session, scope_of(cast.alice), new, now=NOON)
    assert (dry.position, dry.queue_length) == (6, 6)
    urgent = JobRequest(name="a", image="b", gpus=8, priority=1)
    assert try_job(session, scope_of(cast.alice), urgent, now=NOON).position == 1


def test_a_job_that_is_placed_while_its_explanation_is_read_has_none(
    session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    scope = scope_of(cast.alice)

    def place_and_read(session: Session, tenant_id: str, *, now: datetime) -> Snapshot:
        dispatch(session, now=now)
        return read_snapshot(session, tenant_id, now=now)

    monkeypatch.setattr(pending, "read_snapshot", place_and_read)
    soon = submit(session, cast.alice, gpus=1)
    assert explain_job(session, scope, soon.id, now=NOON) is None
    submit(session, cast.alice, "other", gpus=1)
    dry = try_job(session, scope, JobRequest(name="a", image="b", gpus=1), now=NOON)
    assert dry.decision.action is Action.ASSIGN
