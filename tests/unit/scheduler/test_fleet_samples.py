"""The portal's own samples, and the alerts that its rule pack raises from them."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import select, update

from alerting.evaluation import Evaluator, evaluate_rules
from alerting.models import Alert
from alerting.states import AlertState
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from scheduler.loops import Scheduler
from tenants.models import Appliance, ApplianceState, Tenant
from tests.cast import Cast, FrozenClock, make_appliance
from timeseries.store import LatestQuery, Store


def test_an_unreachable_appliance_alerts_and_a_retired_one_does_not(
    sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast, tmp_path: Path
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
            .values(state=ApplianceState.ONLINE, clock_skew_seconds=-2.5)
        )
        session.execute(
            update(Appliance)
            .where(Appliance.id.in_([made["down"], made["retired"]]))
            .values(state=ApplianceState.UNREACHABLE)
        )
        session.execute(
            update(Appliance).where(Appliance.id == made["retired"]).values(retired_at=clock.now)
        )
    scheduler.offer_rules()

    for _ in range(30):
        clock.advance(15)
        scheduler.record_fleet()
        evaluate_rules(
            Evaluator(sessions=sessions, store=store), now=clock.now + timedelta(seconds=1)
        )

    with transaction(sessions) as session:
        alerts = session.scalars(select(Alert).where(Alert.state == AlertState.FIRING)).all()
        found = {(alert.rule.pack_key, alert.tags["appliance"]) for alert in alerts}
    assert found == {("appliance-down", made["down"])}
    latest = store.latest(
        LatestQuery(
            measurement="appliance_status",
            fields=("reachable", "clock_offset_seconds"),
            since_ns=0,
            tenants=(cast.acme.id,),
        )
    )
    assert {one.tags["appliance"]: one.values for one in latest} == {
        made["up"]: {"reachable": 1.0, "clock_offset_seconds": 2.5},
        made["down"]: {"reachable": 0.0},
    }
