"""Services that scale: decisions that are applied, obstacles, settings and history."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError
from jobqueue.holds.models import JobHold
from jobqueue.holds.service import set_hold
from jobqueue.models import Attempt, Job, JobEvent, ServiceScaler
from jobqueue.queue.resubmission import request_like
from jobqueue.queue.retention import NEWEST_ATTEMPTS, NEWEST_EVENTS, expire_history
from jobqueue.services.autoscaling import evaluation
from jobqueue.services.autoscaling.evaluation import MEASUREMENT, scale_services
from jobqueue.services.autoscaling.service import scaling_status, set_autoscaling
from jobqueue.services.autoscaling.traffic import Count, Traffic, advance
from jobqueue.services.scaling import scale_service, service_instances
from jobqueue.states import AttemptState, JobState, Reason
from jobqueue.usage.models import UsageHour
from protocol.attempts import ObservedState
from protocol.autoscaling import Autoscaling, ScalingWindow
from protocol.job_spec import JobKind
from tenants.quotas import Limits, set_limits
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit
from tests.unit.jobqueue.scaled_service import POLICY, WEB, Service, make
from timeseries.points import Point
from timeseries.store import LatestQuery, Store, write

__all__ = ["make"]


def test_it_grows_with_its_requests_and_says_why(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(5, count=2)
    assert service.states == ["running"]
    service.tick(35, count=4)
    assert service.states == ["running"] * 4
    grown = [event for event in service.events if event.startswith("Scaled")]
    assert grown[-1].startswith("Scaled from")
    assert "requests/s over" in grown[-1]
    assert "target 10" in grown[-1]
    with service.sessions() as session:
        status = scaling_status(session, scope_of(service.cast.alice), service.id)
        assert (status.awake, status.ready, status.wanted) == (4, 4, 4)
        job = session.get_one(Job, service.id)
        assert [i.array_index for i in service_instances(session, job)] == [0, 1, 2, 3]


def test_a_service_whose_policy_overflows_keeps_no_other_from_scaling(
    make: Callable[..., Service],
) -> None:
    service = make(replace(POLICY, target=5e-324))
    service.tick(35, count=4)
    assert service.states.count("running") == 6


def test_a_service_that_can_not_be_scaled_keeps_no_other_from_it(
    make: Callable[..., Service],
) -> None:
    service = make()
    with service.sessions.begin() as session:
        fields = {"kind": JobKind.SERVICE, "ports": WEB, "autoscaling": POLICY}
        broken = submit(session, service.cast.alice, "broken", **fields)
        session.get_one(ServiceScaler, broken.id).memory = {"wishes": "of another version"}
    service.tick(35, count=4)
    assert service.states.count("running") == 4


def test_an_instance_that_serves_stays_rather_than_one_that_waits(
    make: Callable[..., Service],
) -> None:
    service = make(gpus=4)
    service.tick(15, count=2)
    assert service.states == ["running", "running"]
    with service.sessions.begin() as session:
        # A job of another user has taken the place of the first one.
        submit(session, service.cast.alice, "other", gpus=4, priority=100)
        (first,) = [row for row in service.attempts(session) if row.job_id == service.id]
        first.stop_reason = Reason.PREEMPTED
        report(session, first, ObservedState.STOPPED)
        dispatch(session, now=service.at)
    assert service.states == ["queued", "running"]
    service.tick(5, count=10)
    assert service.states == ["asleep", "running"]


def test_instances_that_wait_keep_it_from_adding_others(make: Callable[..., Service]) -> None:
    service = make(gpus=4)
    service.tick(100, count=5)
    assert service.states.count("running") == 2
    waiting = service.states.count("queued")
    service.tick(100, count=5)
    assert service.states.count("queued") == waiting, "no others are added"
    refusals = [event for event in service.events if event.startswith("Not scaled up")]
    assert len(refusals) == 1
    assert "waits already" in refusals[0]


def test_a_spent_budget_keeps_it_from_growing_and_waking(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(5, count=2)
    with service.sessions.begin() as session:
        reason = "The budget vision is spent."
        tenant_id = session.get_one(Job, service.id).tenant_id
        set_hold(session, JobHold(source_id="b", tenant_id=tenant_id, reason=reason, held_at=NOON))
    service.tick(35, count=4)
    assert service.states == ["running"]
    assert "The budget vision is spent" in service.events[-1]
    service.tick(0, count=12)
    assert service.states == ["asleep"]
    with pytest.raises(ConflictError, match="vision is spent"):
        service.wake()


def test_an_instance_that_failed_is_not_replaced_at_once(make: Callable[..., Service]) -> None:
    service = make(Autoscaling(min_instances=2, max_instances=4, target=5), instances=2)
    with service.sessions.begin() as session:
        failed = service.attempts(session)[1]
        report(session, failed, ObservedState.FAILED, exit_code=1)
    service.tick(1, count=4)
    assert service.states == ["running"]
    assert "failed" in service.events[-1]
    service.at += timedelta(minutes=15)
    service.tick(1, count=2)
    assert service.states == ["running"] * 2


def test_the_job_quota_refuses_instances_with_its_reason(make: Callable[..., Service]) -> None:
    service = make()
    with service.sessions.begin() as session:
        olivia = scope_of(service.cast.olivia)
        set_limits(session, olivia, service.cast.acme.id, Limits(max_active_jobs=2))
    service.tick(60, count=5)
    assert len(service.states) <= 2
    with service.sessions() as session:
        status = scaling_status(session, scope_of(service.cast.alice), service.id)
        assert status.is_refused


def test_utilization_of_its_gpus_scales_it(make: Callable[..., Service]) -> None:
    policy = Autoscaling(max_instances=4, metric="gpu_utilization", target=50)
    service = make(policy)
    with service.sessions() as session:
        [attempt] = service.attempts(session)
        tags = {"job": service.id, "uuid": attempt.gpu_uuids[0], "gpu": "0"}
        points = [
            Point("gpu", tags, {"utilization_percent": 95.0}, to_ns(NOON) + seconds * 10**9)
            for seconds in range(5, 15, 5)
        ]
        identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    write(service.store, points, identity=identity)
    service.tick()
    assert service.states == ["running"] * 2
    assert "GPUs utilized by 95 % over 1 instance, target 50" in " ".join(service.events)


def test_its_load_is_stored_as_samples(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(5, count=3)
    query = LatestQuery(
        measurement=MEASUREMENT,
        fields=("requests_per_second", "concurrent_requests", "awake_instances"),
        since_ns=0,
        tenants=None,
        group_by=("job", "service"),
    )
    [latest] = service.store.latest(query)
    assert latest.tags == {"job": service.id, "service": "web"}
    assert latest.values["awake_instances"] == 1
    assert latest.values["requests_per_second"] == pytest.approx(5)
    assert latest.values["concurrent_requests"] == pytest.approx(0.5)


def test_a_service_that_scales_is_not_scaled_by_hand(make: Callable[..., Service]) -> None:
    service = make()
    with service.sessions() as session, pytest.raises(ConflictError, match="scales by itself"):
        scale_service(session, scope_of(service.cast.alice), service.id, 3, now=NOON)


def test_autoscaling_is_set_and_removed_later(make: Callable[..., Service]) -> None:
    service = make(None)
    alice, bob = scope_of(service.cast.alice), scope_of(service.cast.bob)
    with service.sessions.begin() as session:
        with pytest.raises(ForbiddenError):
            set_autoscaling(session, bob, service.id, POLICY, now=NOON)
        wrong = Autoscaling(min_instances=3, max_instances=2)
        with pytest.raises(InvalidInputError, match="max_instances"):
            set_autoscaling(session, alice, service.id, wrong, now=NOON)
        set_autoscaling(session, alice, service.id, POLICY, now=NOON)
    service.tick(15, count=2)
    service.tick(0, count=12)
    assert service.states == ["asleep"] * 2
    with service.sessions.begin() as session:
        set_autoscaling(session, alice, service.id, None, now=service.at)
    service.settle()
    assert service.states == ["running"]
    with service.sessions.begin() as session:
        scale_service(session, alice, service.id, 2, now=service.at)


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"kind": JobKind.BATCH}, {"autoscaling"}),
        ({"ports": []}, {"autoscaling"}),
        ({"instances": 7}, {"instances"}),
        ({"autoscaling": Autoscaling(metric="speed", target=1)}, {"autoscaling"}),
        ({"autoscaling": Autoscaling(target=float("nan"))}, {"autoscaling"}),
        ({"autoscaling": Autoscaling(metric="samples", samples="x")}, {"autoscaling"}),
        ({"autoscaling": Autoscaling(metric="schedule")}, {"autoscaling"}),
        (
            {
                "autoscaling": Autoscaling(
                    windows=[ScalingWindow(schedule="never", duration_seconds=60)]
                )
            },
            {"autoscaling"},
        ),
        (
            {"gpus": 0, "autoscaling": Autoscaling(metric="gpu_utilization", target=50)},
            {"autoscaling"},
        ),
    ],
)
def test_wrong_autoscaling_is_an_error_of_its_field(
    session: Session, cast: Cast, changes: dict[str, Any], errors: set[str]
) -> None:
    add_appliance(session, cast.acme, "dgx-01")
    fields: dict[str, Any] = {
        "kind": JobKind.SERVICE,
        "gpus": 1,
        "ports": WEB,
        "autoscaling": POLICY,
    }
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, **(fields | changes))
    assert set(caught.value.errors or {}) == errors


def test_a_copy_scales_alike_and_begins_with_the_fewest(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(35, count=4)
    with service.sessions() as session:
        request = request_like(session.get_one(Job, service.id))
    assert (request.autoscaling, request.instances) == (POLICY, 1)


def test_the_many_services_of_a_tenant_do_not_delay_that_of_another(
    sessions: SessionFactory, store: Store, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MAX_SERVICES", 2)
    with sessions.begin() as session:
        fields = {"kind": JobKind.SERVICE, "gpus": 1, "ports": WEB, "autoscaling": POLICY}
        idents = [
            submit(session, user, f"web-{number}", **fields).id
            for number, user in enumerate((cast.alice, cast.alice, cast.alice, cast.charlie))
        ]
        for minutes, ident in enumerate(idents):
            session.get_one(ServiceScaler, ident).evaluate_at = NOON + timedelta(minutes=minutes)
    at = NOON + timedelta(hours=1)
    assert scale_services(sessions, store, now=at) == 2
    with sessions() as session:
        scalers = [session.get_one(ServiceScaler, ident) for ident in idents]
        assert [scaler.evaluate_at > at for scaler in scalers] == [True, False, False, True]


def test_counts_of_processes_add_up_across_restarts_and_deleted_rows() -> None:
    traffic = advance(Traffic(), {"a": Count(100, 50.0)}, at=1000.0)
    assert traffic.rates(60) is None, "what was before the first look is not known"
    traffic = advance(traffic, {"a": Count(130, 59.0), "b": Count(15, 1.5)}, at=1015.0)
    assert traffic.rates(60) == pytest.approx((3.0, 0.7))
    traffic = advance(traffic, {"a": Count(30, 1.5)}, at=1030.0)
    assert traffic.rates(15) == pytest.approx((2.0, 0.1)), "another row of the same process"
    assert traffic.rates(60) == pytest.approx((2.5, 0.4))
    traffic = advance(traffic, {}, at=1045.0)
    assert not traffic.is_used


def test_the_history_of_a_service_is_bounded(make: Callable[..., Service]) -> None:
    service = make()
    old = NOON - timedelta(days=30)
    with service.sessions.begin() as session:
        [attempt] = service.attempts(session)
        attempt.number = 300
        session.flush()
        columns = {"job_id": service.id, "tenant_id": attempt.tenant_id}
        for number in range(1, 300):
            session.add(
                Attempt(
                    **columns,
                    appliance_id=attempt.appliance_id,
                    number=number,
                    state=AttemptState.STOPPED,
                    reason=Reason.SCALED_DOWN,
                    bound_at=old,
                    finished_at=old,
                    is_charged=True,
                )
            )
            states = {"state": JobState.ASLEEP, "reason": Reason.SCALED_DOWN}
            session.add_all(JobEvent(**columns, **states, message="", at=old) for _ in range(3))
        session.add(UsageHour(hour_at=NOON - timedelta(hours=1), recorded_at=NOON))
    deleted = 1
    while deleted:
        with service.sessions.begin() as session:
            deleted = expire_history(session, now=NOON)
    with service.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Attempt)) == NEWEST_ATTEMPTS
        old_events = select(func.count()).select_from(JobEvent).where(JobEvent.at == old)
        assert session.scalar(old_events) == NEWEST_EVENTS
