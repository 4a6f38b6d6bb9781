"""Placement on appliances that are not well: no failed GPU is given, healthy ones come first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.models import Attempt
from jobqueue.placement.decisions import Action, Decision
from jobqueue.placement.views import ApplianceView, GPUView, JobView, RunningJob, Snapshot
from jobqueue.states import JobState, Reason
from protocol.health import ApplianceHealth, HealthState
from protocol.inventory import Inventory
from tenants.fleet.heartbeats import record_heartbeat
from tenants.models import Appliance
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import (
    GIB,
    add_appliance,
    appliance,
    busy,
    dispatch,
    gpu_uuid,
    inventory,
    job,
    plan,
    submit,
)
from tests.unit.portal.test_sign_in_cost import statements

HEALTHY, DEGRADED, FAILED = HealthState.HEALTHY, HealthState.DEGRADED, HealthState.FAILED


def decide(appliances: list[ApplianceView], *jobs: JobView) -> list[Decision]:
    snapshot = Snapshot(now=NOON, appliances=tuple(appliances), jobs=jobs)
    return plan(snapshot)


def ailing(
    view: ApplianceView, states: Mapping[int, HealthState], fault: str = "lost"
) -> ApplianceView:
    """The appliance with some of its GPUs, by their place, in another state."""
    gpus = [
        replace(gpu, state=states[place], failure=fault) if place in states else gpu
        for place, gpu in enumerate(view.gpus)
    ]
    return replace(view, gpus=tuple(gpus))


def view_of(session: Session, row: Appliance) -> ApplianceView:
    """The appliance as placement sees it."""
    session.flush()
    return next(view for view in tenant_views(session, row.tenant_id) if view.id == row.id)


def test_a_report_is_read_again_only_when_it_has_changed(
    session: Session, engine: Engine, cast: Cast
) -> None:
    row = add_appliance(session, cast.acme, "dgx-02", gpus=2)
    session.flush()

    def gpus_seen() -> tuple[int, int]:
        """Return the healthy GPUs that placement sees, and how often it reads reports."""
        with statements(engine) as sent:
            gpus = view_of(session, row).gpus
        reads = sum("appliances.inventory" in statement for statement in sent)
        return sum(gpu.state is HEALTHY for gpu in gpus), reads

    def beat(gpus: int, state: ApplianceHealth | None) -> None:
        record_heartbeat(
            session,
            row.id,
            inventory=msgspec.convert(inventory(row.name, gpus=gpus), Inventory),
            health=state,
            agent_version="",
            sent_at=NOON,
            now=NOON,
        )

    assert gpus_seen()[0] == 2
    beat(2, None)
    gpus_seen()
    beat(2, None)
    assert gpus_seen() == (2, 0)
    beat(4, None)
    assert gpus_seen() == (4, 1)
    failed = msgspec.convert(health(**{gpu_uuid(row.name, 0): FAILED}), ApplianceHealth)
    beat(4, failed)
    assert gpus_seen() == (3, 1)
    assert gpus_seen() == (3, 0)


def health(**states: HealthState) -> dict[str, Any]:
    """Return the health of GPUs that an agent reports, by UUID."""
    worst = DEGRADED if states else HEALTHY
    return {
        "state": worst.value,
        "gpus": [
            {
                "index": index,
                "uuid": uuid.replace("_", "-"),
                "state": state.value,
                "findings": [{"reason": "lost", "state": state.value, "detail": "Gone."}],
            }
            for index, (uuid, state) in enumerate(states.items())
        ],
    }


def test_a_failed_gpu_is_given_to_nobody() -> None:
    [decision] = decide([ailing(appliance("dgx-01"), {0: FAILED, 2: FAILED})], job("a", gpus=3))
    assert decision.gpu_uuids == tuple(gpu_uuid("dgx-01", index) for index in (1, 3, 4))


def test_a_job_for_all_gpus_is_refused_by_an_appliance_with_a_failed_one() -> None:
    view = ailing(appliance("dgx-01"), {5: FAILED})
    [decision] = decide([view], job("train", gpus=8))
    assert decision.action is Action.UNPLACED
    [rejection] = decision.rejections
    assert rejection.code == "gpus_failed"
    assert str(rejection) == "dgx-01: has 8 GPUs, 1 failed (lost), 8 requested"


def test_the_figures_of_a_busy_appliance_name_its_failed_gpus() -> None:
    view = ailing(busy("dgx-01", free_gpus=3), {7: FAILED})
    [decision] = decide([view], job("train", gpus=4))
    assert decision.action is Action.BIND
    assert str(decision.rejections[0]) == "dgx-01: 2 of 8 GPUs free, 1 failed, 4 requested"


def test_healthy_gpus_are_given_before_degraded_ones() -> None:
    view = ailing(appliance("dgx-01"), {0: DEGRADED, 1: DEGRADED})
    few, many = (decide([view], job("train", gpus=gpus))[0].gpu_uuids for gpus in (6, 7))
    assert few == tuple(gpu_uuid("dgx-01", index) for index in range(2, 8))
    assert many == (*few, gpu_uuid("dgx-01", 0))


def test_a_larger_healthy_gpu_is_given_before_a_smaller_degraded_one() -> None:
    gpus = (GPUView("small", 16 * GIB, DEGRADED, "XID"), GPUView("large", 80 * GIB))
    [decision] = decide([replace(appliance("mixed"), gpus=gpus)], job("train", gpus=1))
    assert decision.gpu_uuids == ("large",)


def test_an_appliance_with_healthy_gpus_goes_before_one_with_degraded_ones() -> None:
    ill = ailing(appliance("dgx-01"), dict.fromkeys(range(8), DEGRADED))
    [decision] = decide([ill, appliance("dgx-02")], job("train", gpus=1))
    assert decision.appliance_id == "dgx-02"
    assert decision.reason == "dgx-02 was the first free appliance with enough healthy GPUs."
    assert list(decision.rejections) == []


def test_degraded_gpus_are_better_than_waiting() -> None:
    ill = ailing(appliance("dgx-01"), dict.fromkeys(range(8), DEGRADED))
    [decision] = decide([ill, busy("dgx-02")], job("train", gpus=8))
    assert (decision.action, decision.appliance_id) == (Action.ASSIGN, "dgx-01")


def test_a_failed_appliance_accepts_only_jobs_without_gpus() -> None:
    view = replace(appliance("dgx-01"), failure="driver silent")
    clean, train = decide([view], job("clean"), job("train", gpus=1))
    assert train.action is Action.UNPLACED
    assert train.rejections[0].code == "appliance_failed"
    assert str(train.rejections[0]) == "dgx-01: failed (driver silent), accepts no GPU jobs"
    assert clean.action is Action.ASSIGN


def test_a_bound_job_moves_on_when_too_many_gpus_of_its_appliance_fail() -> None:
    ill = ailing(busy("dgx-01"), {0: FAILED})
    [decision] = decide([ill, busy("dgx-02")], job("train", gpus=8, bound_to="dgx-01"))
    assert (decision.action, decision.appliance_id) == (Action.BIND, "dgx-02")


STATES = st.sampled_from(list(HealthState))


def uuids_of(view: ApplianceView) -> set[str]:
    """The GPUs of an appliance that running jobs have."""
    return {uuid for running in view.running for uuid in running.gpu_uuids}


@st.composite
def fleets(draw: st.DrawFn) -> list[ApplianceView]:
    """Up to three appliances with GPUs in any state, some of them held."""
    views = []
    for number in range(draw(st.integers(1, 3))):
        name = f"dgx-{number}"
        gpus = tuple(
            GPUView(gpu_uuid(name, index), draw(st.sampled_from([16, 80])) * GIB, state, "lost")
            for index, state in enumerate(draw(st.lists(STATES, max_size=8)))
        )
        taken = [gpu.uuid for gpu in gpus if draw(st.booleans())]
        failure = draw(st.sampled_from(["", "", "driver silent"]))
        views.append(
            appliance(name, gpus=0)
            if not gpus
            else replace(
                appliance(name),
                gpus=gpus,
                failure=failure,
                running=[RunningJob(job_id=f"on-{name}", gpu_uuids=taken)],
            )
        )
    return views


@given(fleet=fleets(), asked=st.lists(st.integers(0, 8), min_size=1, max_size=6))
def test_no_plan_ever_uses_a_failed_or_held_gpu_or_one_twice(
    fleet: list[ApplianceView], asked: list[int]
) -> None:
    jobs = [job(f"job-{number}", gpus=gpus) for number, gpus in enumerate(asked)]
    decisions = decide(fleet, *jobs)
    given_uuids = [uuid for decision in decisions for uuid in decision.gpu_uuids]
    forbidden = {
        gpu.uuid
        for view in fleet
        for gpu in view.gpus
        if gpu.is_failed or view.failure or gpu.uuid in uuids_of(view)
    }
    assert forbidden.isdisjoint(given_uuids)
    assert len(given_uuids) == len(set(given_uuids))
    for decision, gpus in zip(decisions, asked, strict=True):
        assert len(decision.gpu_uuids) == (gpus if decision.action is Action.ASSIGN else 0)


@given(fleet=fleets(), gpus=st.integers(1, 8))
def test_a_degraded_gpu_is_only_given_where_no_healthy_one_is_left(
    fleet: list[ApplianceView], gpus: int
) -> None:
    [decision] = decide(fleet, job("train", gpus=gpus))
    if decision.action is not Action.ASSIGN:
        return
    view = next(view for view in fleet if view.id == decision.appliance_id)
    free = [gpu for gpu in view.gpus if gpu.uuid not in uuids_of(view)]
    healthy = {gpu.uuid for gpu in free if gpu.state is HEALTHY}
    degraded = set(decision.gpu_uuids) - healthy
    assert not degraded or healthy <= set(decision.gpu_uuids)


def test_placement_sees_what_the_agent_reported(session: Session, cast: Cast) -> None:
    row = add_appliance(session, cast.acme, "dgx-01", gpus=3)
    row.health = health(**{"GPU-dgx-01-0": FAILED, "GPU-dgx-01-1": DEGRADED})
    view = view_of(session, row)
    assert [(gpu.state, gpu.failure) for gpu in view.gpus] == [
        (FAILED, "lost"),
        (DEGRADED, "lost"),
        (HEALTHY, ""),
    ]
    assert view.failure == ""


def test_a_missing_gpu_still_counts_among_those_that_there_are(
    session: Session, cast: Cast
) -> None:
    row = add_appliance(session, cast.acme, "dgx-01", gpus=7)
    row.health = health(**{"GPU-dgx-01-7": FAILED})
    missing = view_of(session, row).gpus[-1]
    assert (missing.uuid, missing.memory_bytes) == ("GPU-dgx-01-7", 80 * GIB)
    assert (missing.state, missing.failure) == (FAILED, "lost")


def test_a_failed_appliance_is_seen_with_its_reason(session: Session, cast: Cast) -> None:
    row = add_appliance(session, cast.acme, "dgx-01")
    finding = {"reason": "driver_silent", "state": "failed", "detail": "No GPU could be read."}
    row.health = {"state": "failed", "findings": [finding]}
    assert view_of(session, row).failure == "driver silent"


@pytest.mark.parametrize("told", [None, {}, {"state": "sublime"}, {"state": "failed", "gpus": 1}])
def test_unknown_health_keeps_no_job_away(
    session: Session, cast: Cast, told: dict[str, Any] | None
) -> None:
    row = add_appliance(session, cast.acme, "dgx-01", gpus=1)
    row.health = told
    view = view_of(session, row)
    assert (view.failure, view.gpus[0].state) == ("", HEALTHY)


@pytest.mark.parametrize("field", ["cpu_count", "memory_bytes", "gpus"])
@pytest.mark.parametrize("amount", [-1, 2**64 - 1, 10**400])
def test_impossible_amounts_of_an_appliance_stop_no_other_one(
    session: Session, cast: Cast, field: str, amount: int
) -> None:
    broken = add_appliance(session, cast.acme, "dgx-00", gpus=1)
    stored = dict(broken.inventory)
    gpus = [{**stored["gpus"][0], "memory_bytes": amount}]
    broken.inventory = {**stored, field: gpus if field == "gpus" else amount}
    sound = add_appliance(session, cast.acme, "dgx-01", gpus=1)
    waiting = submit(session, cast.alice, gpus=1)
    dispatch(session, now=NOON)
    session.refresh(waiting)
    attempt = session.scalars(select(Attempt)).one()
    assert (waiting.state, attempt.appliance_id) == (JobState.STARTING, sound.id)


def test_a_job_that_only_failed_gpus_keep_from_running_waits_with_the_reason(
    session: Session, cast: Cast
) -> None:
    row = add_appliance(session, cast.acme, "dgx-01")
    row.health = health(**{"GPU-dgx-01-3": FAILED})
    waiting = submit(session, cast.alice, gpus=8)
    dispatch(session, now=NOON)
    session.refresh(waiting)
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, Reason.WAITING_FOR_APPLIANCE)
    assert "dgx-01: has 8 GPUs, 1 failed (lost), 8 requested" in waiting.message

    session.get_one(Appliance, row.id).health = health()
    dispatch(session, now=NOON)
    session.refresh(waiting)
    assert waiting.state is JobState.STARTING


def test_more_gpus_than_any_appliance_has_are_refused_at_once(session: Session, cast: Cast) -> None:
    row = add_appliance(session, cast.acme, "dgx-01")
    row.health = health(**{"GPU-dgx-01-3": FAILED})
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, gpus=9)
    assert caught.value.code == "exceeds_every_appliance"


def test_the_inventory_of_the_builders_names_the_gpus_used_here() -> None:
    assert inventory("dgx-01", gpus=1)["gpus"][0]["uuid"] == gpu_uuid("dgx-01", 0)
