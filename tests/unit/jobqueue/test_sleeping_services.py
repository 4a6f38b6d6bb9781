"""Services that fall asleep without requests, and what wakes them."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from core.clock import to_ns
from core.errors import ConflictError
from jobqueue.models import Job, ServiceScaler
from jobqueue.queue.stopping import stop_array, stop_job
from jobqueue.services.autoscaling.evaluation import scale_services
from jobqueue.services.autoscaling.instances import wake_service
from jobqueue.services.autoscaling.service import set_autoscaling
from jobqueue.services.rolling_updates import advance_updates, update_progress, update_service
from jobqueue.services.scaling import service_instances
from jobqueue.states import JobState, UpdateState
from protocol.attempts import Health, ObservedState
from protocol.autoscaling import Autoscaling, ScalingWindow
from protocol.job_spec import HealthCheck, HealthCheckKind
from tests.cast import BOX, NOON, scope_of
from tests.unit.jobqueue.builders import dispatch, report
from tests.unit.jobqueue.scaled_service import TICK, Service, make
from timeseries.points import Point
from timeseries.store import write

__all__ = ["make"]


def test_it_sleeps_and_wakes_on_a_request(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(35, count=4)
    service.tick(0, count=6)
    assert service.states == ["running", "asleep", "asleep", "asleep"]
    service.tick(0, count=8)
    assert service.states == ["asleep"] * 4
    assert "no requests for 120 s" in service.events[-2]
    with service.sessions() as session:
        assert not service.attempts(session)
        assert dispatch(session, now=service.at).total() == 0

    service.at += timedelta(hours=3)
    assert service.wake()
    assert service.wake(), "it is awake already"
    assert service.events.count("Woken by a request of Alice.") == 1
    service.settle()
    service.tick(1)
    assert service.states == ["running", "asleep", "asleep", "asleep"]
    assert any(event.startswith("Awake after") for event in service.events)
    with service.sessions() as session:
        scaler = session.get_one(ServiceScaler, service.id)
        assert scaler.woken_at is None
        assert scaler.wake_seconds is not None


def test_an_instance_that_ends_well_when_it_is_put_to_sleep_sleeps_all_the_same(
    make: Callable[..., Service],
) -> None:
    service = make()
    service.tick(0, count=7)
    service.at += timedelta(seconds=TICK)
    scale_services(service.sessions, service.store, now=service.at)
    scale_services(service.sessions, service.store, now=service.at + timedelta(seconds=TICK))
    service.settle(state=ObservedState.SUCCEEDED)
    assert service.states == ["asleep"]


def test_a_request_while_it_falls_asleep_wakes_it_once_it_has_stopped(
    make: Callable[..., Service],
) -> None:
    service = make()
    while not any(event.startswith("Stopping") for event in service.events):
        service.at += timedelta(seconds=TICK)
        scale_services(service.sessions, service.store, now=service.at)
    assert not service.wake()
    service.settle()
    assert service.wake()
    service.settle()
    assert service.states == ["running"]


def test_a_service_that_starts_slowly_is_not_put_to_sleep_before_it_serves(
    make: Callable[..., Service],
) -> None:
    service = make()
    service.tick(0, count=9)
    assert service.states == ["asleep"]
    assert service.wake()
    for _ in range(10):  # longer than zero_seconds
        service.at += timedelta(seconds=TICK)
        scale_services(service.sessions, service.store, now=service.at)
    assert service.states == ["queued"]
    service.settle()
    service.tick()
    assert service.states == ["running"]
    service.tick(0, count=9)
    assert service.states == ["asleep"]


def test_without_autoscaling_no_instance_is_left_asleep(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(35, count=4)
    while not any(event.startswith("Stopping") for event in service.events):
        service.at += timedelta(seconds=TICK)
        scale_services(service.sessions, service.store, now=service.at)
    with service.sessions.begin() as session:
        set_autoscaling(session, scope_of(service.cast.alice), service.id, None, now=service.at)
    service.settle()
    assert set(service.states) == {"running"}


def test_without_autoscaling_a_service_that_falls_asleep_starts_again(
    make: Callable[..., Service],
) -> None:
    service = make()
    while not any(event.startswith("Stopping") for event in service.events):
        service.at += timedelta(seconds=TICK)
        scale_services(service.sessions, service.store, now=service.at)
    with service.sessions.begin() as session:
        set_autoscaling(session, scope_of(service.cast.alice), service.id, None, now=service.at)
    service.settle()
    assert service.states == ["running"]


def test_a_service_that_sleeps_stops_at_once(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(15, count=2)
    service.tick(0, count=12)
    with service.sessions.begin() as session:
        alice = scope_of(service.cast.alice)
        stop_job(session, alice, service.id, now=service.at)
        assert session.get_one(Job, service.id).state is JobState.STOPPED
        while not stop_array(session, alice, service.id, now=service.at)[1]:
            pass
    assert service.states == []
    with service.sessions.begin() as session, pytest.raises(ConflictError, match="has ended"):
        wake_service(session, session.get_one(Job, service.id), "", now=service.at)
    service.tick()
    with service.sessions() as session:
        assert session.get(ServiceScaler, service.id) is None


def test_samples_of_a_queue_scale_it_from_none(make: Callable[..., Service]) -> None:
    tags = {"queue": "work"}
    policy = Autoscaling(
        min_instances=0,
        max_instances=4,
        metric="samples",
        samples="broker.length",
        tags=tags,
        target=100,
        zero_seconds=60,
    )
    service = make(policy, ports=[])
    service.tick(count=6)
    assert service.states == ["asleep"]
    with service.sessions() as session:
        identity = {"tenant": session.get_one(Job, service.id).tenant_id}
    at_ns = to_ns(service.at) + 10**9
    others = Point("broker", {"queue": "mail"}, {"length": 9000.0}, at_ns)
    points = [Point("broker", tags, {"length": 250.0}, at_ns), others]
    write(service.store, points, identity=identity)
    service.tick()
    assert service.states == ["running"] * 3


def test_a_window_of_its_schedule_wakes_it(make: Callable[..., Service]) -> None:
    window = ScalingWindow(
        schedule="30 12 * * *", duration_seconds=3600, min_instances=2, max_instances=2
    )
    policy = Autoscaling(
        min_instances=0, max_instances=1, metric="schedule", zero_seconds=60, windows=[window]
    )
    service = make(policy)
    service.tick(count=6)
    assert service.states == ["asleep"]
    service.at = NOON + timedelta(minutes=31)
    service.tick()
    assert service.states == ["running"] * 2
    service.at = NOON + timedelta(hours=2)
    service.tick(count=2)
    assert service.states == ["asleep"] * 2


def test_an_update_reaches_instances_that_sleep(make: Callable[..., Service]) -> None:
    service = make()
    service.tick(35, count=4)
    service.tick(0, count=6)
    with service.sessions.begin() as session:
        alice = scope_of(service.cast.alice)
        update_service(session, alice, service.id, {"env": {"A": "1"}}, box=BOX, now=service.at)
    for _ in range(4):
        service.at += timedelta(seconds=30)
        with service.sessions.begin() as session:
            advance_updates(session, now=service.at)
        service.settle()
    with service.sessions() as session:
        assert update_progress(session, alice, service.id).state is UpdateState.DONE
        instances = service_instances(session, session.get_one(Job, service.id))
        assert {instance.env["A"] for instance in instances} == {"1"}
        assert {(instance.autoscaling or {})["max_instances"] for instance in instances} == {6}
    assert service.states == ["running", "asleep", "asleep", "asleep"]


def test_a_service_with_a_health_check_wakes_when_it_is_healthy(
    make: Callable[..., Service],
) -> None:
    check = HealthCheck(kind=HealthCheckKind.TCP, port=8000)
    service = make(health_check=check)
    service.tick(0, count=10)
    assert service.wake()
    service.tick(0)
    assert not any(event.startswith("Awake") for event in service.events)
    service.at += timedelta(seconds=20)
    with service.sessions.begin() as session:
        [attempt] = service.attempts(session)
        report(session, attempt, ObservedState.RUNNING, health=Health.HEALTHY)
    scale_services(service.sessions, service.store, now=service.at)
    assert service.events[-1] == "Awake after 35 s."
