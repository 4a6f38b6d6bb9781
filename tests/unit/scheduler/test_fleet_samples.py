"""The portal's own samples, and the alerts that its rule pack raises from them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from alerting.evaluation.evaluator import Evaluator
from alerting.models import Alert, Rule
from alerting.states import AlertState, Severity
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from protocol.attempts import Health, ObservedState
from protocol.job_spec import HealthCheck, HealthCheckKind, JobKind
from scheduler.loops import Scheduler
from tenants.lifecycle.message_budgets import ALERTS, MESSAGES, MessageBudgets, count_message
from tenants.models import Appliance, ApplianceState, Tenant
from tests.cast import NOON, Cast, FrozenClock, make_appliance
from tests.unit.alerting.helpers import evaluate_rules
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit
from timeseries.store import LatestQuery, Store

Watch = Callable[[Scheduler, str], None]


@pytest.fixture
def watch(sessions: SessionFactory, store: Store, clock: FrozenClock) -> Watch:
    """Record the fleet for ten minutes, and evaluate the offered rules about a measurement."""
    evaluator = Evaluator(sessions=sessions, store=store)

    def watch_fleet(scheduler: Scheduler, measurement: str) -> None:
        scheduler.tasks["offer_rules"].run()
        with transaction(sessions) as session:
            session.execute(delete(Rule).where(Rule.measurement != measurement))
        for _ in range(10):
            clock.advance(60)
            scheduler.tasks["record_fleet"].run()
            evaluate_rules(evaluator, now=clock.now + timedelta(seconds=1))

    return watch_fleet


def test_unreachable_and_quarantined_appliances_alert_and_a_retired_one_does_not(
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    cast: Cast,
    watch: Watch,
    tmp_path: Path,
) -> None:
    scheduler = Scheduler(
        ServerSettings(data_dir=tmp_path), sessions=sessions, store=store, clock=clock
    )
    with transaction(sessions) as session:
        acme = session.get_one(Tenant, cast.acme.id)
        made = {name: make_appliance(session, acme, name).id for name in ("up", "down", "retired")}
        session.execute(
            update(Appliance)
            .where(Appliance.id == made["up"])
            .values(state=ApplianceState.ONLINE, clock_skew_seconds=-2.5, quarantined_at=clock.now)
        )
        session.execute(
            update(Appliance)
            .where(Appliance.id.in_([made["down"], made["retired"]]))
            .values(state=ApplianceState.UNREACHABLE)
        )
        session.execute(
            update(Appliance).where(Appliance.id == made["retired"]).values(retired_at=clock.now)
        )
    watch(scheduler, "appliance_status")

    with transaction(sessions) as session:
        alerts = session.scalars(select(Alert).where(Alert.state == AlertState.FIRING)).all()
        firing = {(alert.rule.pack_key, alert.tags["appliance"]) for alert in alerts}
    assert firing == {("appliance-down", made["down"]), ("appliance-quarantined", made["up"])}
    latest = store.latest(
        LatestQuery(
            measurement="appliance_status",
            fields=("reachable", "quarantined", "clock_offset_seconds"),
            since_ns=0,
            tenants=(cast.acme.id,),
        )
    )
    assert {series.tags["appliance"]: series.values for series in latest} == {
        made["up"]: {"reachable": 1.0, "quarantined": 1.0, "clock_offset_seconds": 2.5},
        made["down"]: {"reachable": 0.0, "quarantined": 0.0},
    }


def test_an_unhealthy_service_alerts_and_those_that_are_well_or_unreachable_do_not(
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    cast: Cast,
    watch: Watch,
    tmp_path: Path,
) -> None:
    scheduler = Scheduler(
        ServerSettings(data_dir=tmp_path), sessions=sessions, store=store, clock=clock
    )
    check = HealthCheck(kind=HealthCheckKind.TCP, port=80)
    healths = {
        "well": Health.HEALTHY,
        "unchecked": Health.UNKNOWN,
        "starts": Health.STARTING,
        "fails": Health.UNHEALTHY,
        "silent": Health.UNHEALTHY,
    }
    with transaction(sessions) as session:
        hosts = {name: add_appliance(session, cast.acme, f"on-{name}") for name in healths}
        for name, health in healths.items():
            job = submit(
                session,
                cast.alice,
                name,
                kind=JobKind.SERVICE,
                health_check=check if health else None,
                appliance_id=hosts[name].id,
            )
            dispatch(session, now=NOON)
            session.refresh(job)
            assert job.attempt
            report(session, job.attempt, ObservedState.RUNNING)
            report(session, job.attempt, ObservedState.RUNNING, health=health, restarts=2)
        hosts["silent"].state = ApplianceState.UNREACHABLE
    watch(scheduler, "service_status")

    with transaction(sessions) as session:
        firing = session.scalars(select(Alert).where(Alert.state == AlertState.FIRING))
        alerts = [
            (alert.rule.pack_key, alert.tags["service"], alert.severity)
            for alert in firing
            if "service" in alert.tags
        ]
    assert alerts == [("service-unhealthy", "fails", Severity.CRITICAL)]
    latest = store.latest(
        LatestQuery(
            measurement="service_status",
            fields=("healthy", "restarts"),
            since_ns=0,
            tenants=(cast.acme.id,),
            group_by=("service",),
        )
    )
    assert {series.tags["service"]: series.values for series in latest} == {
        "well": {"healthy": 1.0, "restarts": 2.0},
        "unchecked": {"healthy": 1.0, "restarts": 2.0},
        "starts": {"restarts": 2.0},
        "fails": {"healthy": 0.0, "restarts": 2.0},
    }


def test_a_tenant_that_uses_up_its_budget_of_messages_about_alerts_is_warned(
    *,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    cast: Cast,
    watch: Watch,
    tmp_path: Path,
) -> None:
    settings = ServerSettings(
        data_dir=tmp_path,
        max_alert_messages_per_tenant_per_hour=10,
        max_messages_per_tenant_per_hour=20,
    )
    scheduler = Scheduler(settings, sessions=sessions, store=store, clock=clock)
    budgets = MessageBudgets.of(settings)
    with transaction(sessions) as session:
        for subject in (*[ALERTS] * 9, MESSAGES):
            assert count_message(session, cast.acme.id, subject, budgets, now=clock.now) is None
    watch(scheduler, "outgoing_messages")
    with transaction(sessions) as session:
        [alert] = session.scalars(select(Alert).where(Alert.state == AlertState.FIRING)).all()
        summary = (alert.rule.pack_key, alert.tenant_id, alert.severity, alert.value)
    assert summary == ("message-budget", cast.acme.id, Severity.WARNING, 90.0)
    [latest] = store.latest(
        LatestQuery(
            measurement="outgoing_messages",
            fields=("used_percent", "alerts_used_percent"),
            since_ns=0,
            tenants=(cast.acme.id,),
        )
    )
    assert latest.values == {"used_percent": 5.0, "alerts_used_percent": 90.0}
