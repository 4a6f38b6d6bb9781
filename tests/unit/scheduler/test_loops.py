"""The scheduler seals old samples with roll-ups, then deletes them."""

from collections.abc import Collection, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from alerting.models import Rule
from alerting.states import Comparison
from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.settings import ServerSettings
from scheduler.loops import Scheduler
from tenants.fleet.events import EventKind, add_event
from tenants.models import ApplianceEvent
from tests.cast import Cast, FrozenClock, make_appliance
from timeseries.duckdb.cold import sealing
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import open_store
from timeseries.points import FieldValue, Point
from timeseries.store import (
    Aggregate,
    NeededField,
    RangeQuery,
    ScanQuery,
    StoreUnavailableError,
    write,
)

ACME = {"tenant": "acme", "appliance": "a1"}
FIVE_MINUTES, HOUR = timedelta(minutes=5), timedelta(hours=1)
# Older than samples, roll-ups by five minutes and by hour are kept: 14, 90 and 730 days.
AGES = {"young": 2, "fine": 20, "coarse": 100, "too old": 800}


@pytest.fixture(autouse=True)
def few_samples_are_worth_roll_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_SHARE", 100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with closing(DuckDBStore(tmp_path / "samples.duckdb")) as opened:
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path)


@pytest.fixture
def scheduler(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: DuckDBStore,
    clock: FrozenClock,
) -> Scheduler:
    """A scheduler that is not started: its jobs run when the test calls them."""
    return Scheduler(settings, sessions=sessions, store=store, clock=clock)


def write_all_ages(store: DuckDBStore, now: datetime) -> None:
    """Write ten minutes of samples, one every 50 seconds, of each age."""
    for days in AGES.values():
        begin_ns = to_ns(now - timedelta(days=days))
        points = [
            Point("gpu", {}, {"power_watts": float(at)}, begin_ns + at * NS_PER_SECOND)
            for at in range(0, 600, 50)
        ]
        assert write(store, points, identity=ACME) == []


def samples_of(store: DuckDBStore, age: str, now: datetime) -> int:
    begin_ns = to_ns(now - timedelta(days=AGES[age]))
    query = ScanQuery(
        measurement="gpu", start_ns=begin_ns, end_ns=begin_ns + to_ns_of(HOUR), tenants=None
    )
    return sum(map(len, store.scan(query)))


def means_of(store: DuckDBStore, age: str, now: datetime, *, step: timedelta) -> list[float]:
    """Return the mean of each window of an hour's samples of some age."""
    begin_ns = to_ns(now - timedelta(days=AGES[age]))
    query = RangeQuery(
        measurement="gpu",
        fields=("power_watts",),
        start_ns=begin_ns,
        end_ns=begin_ns + to_ns_of(HOUR),
        step_ns=to_ns_of(step),
        aggregate=Aggregate.AVG,
        tenants=("acme",),
    )
    return [value for series in store.query_range(query) for value in series.values]


def to_ns_of(width: timedelta) -> int:
    return int(width.total_seconds()) * NS_PER_SECOND


def test_old_samples_are_gone_and_queries_by_five_minutes_and_hour_still_answer(
    scheduler: Scheduler, store: DuckDBStore, clock: FrozenClock
) -> None:
    write_all_ages(store, clock.now)

    scheduler.tasks["expire_samples"].run()

    sample_counts = {age: samples_of(store, age, clock.now) for age in AGES}
    assert sample_counts == {"young": 12, "fine": 0, "coarse": 0, "too old": 0}
    by_minutes = {age: means_of(store, age, clock.now, step=FIVE_MINUTES) for age in AGES}
    assert by_minutes["young"] == by_minutes["fine"] == [125.0, 425.0]
    by_hour = {age: means_of(store, age, clock.now, step=HOUR) for age in AGES}
    assert by_hour["young"] == by_hour["fine"] == by_hour["coarse"] == [275.0]
    assert by_hour["too old"] == []


def test_what_has_expired_is_still_listed_while_its_hours_are_kept(
    scheduler: Scheduler, store: DuckDBStore, clock: FrozenClock
) -> None:
    write_all_ages(store, clock.now)
    last_years = Point("room", {}, {"temperature_celsius": 21.0}, to_ns(clock.now) - to_ns_of(HOUR))
    write(store, [last_years], identity=ACME)
    clock.advance(365 * 86_400)

    scheduler.tasks["expire_samples"].run()

    assert store.measurements(tenants=("acme",)) == ["gpu", "room"]
    assert store.fields("room", tenants=("acme",)) == {"temperature_celsius": "float"}
    clock.advance(366 * 86_400)
    scheduler.tasks["expire_samples"].run()
    assert store.measurements(tenants=("acme",)) == []


def test_samples_expire_as_the_clock_goes_on(
    scheduler: Scheduler, store: DuckDBStore, clock: FrozenClock
) -> None:
    then = clock.now
    write_all_ages(store, then)
    scheduler.tasks["expire_samples"].run()
    clock.advance(12 * 86_400)
    scheduler.tasks["expire_samples"].run()
    assert samples_of(store, "young", then) == 12

    clock.advance(2 * 86_400)
    scheduler.tasks["expire_samples"].run()

    assert samples_of(store, "young", then) == 0
    assert means_of(store, "young", then, step=FIVE_MINUTES) == [125.0, 425.0]


def test_a_field_that_a_rule_reads_outlives_its_samples(
    settings: ServerSettings,
    sessions: SessionFactory,
    tmp_path: Path,
    clock: FrozenClock,
    cast: Cast,
) -> None:
    for tenant, is_enabled in ((cast.acme, True), (cast.globex, False)):
        with sessions.begin() as session:
            session.add(
                Rule(
                    tenant_id=tenant.id,
                    created_at=clock.now,
                    name="Warm room",
                    measurement="room",
                    field="inlet_celsius",
                    operator="-",
                    other_field="outlet_celsius",
                    aggregate="avg",
                    window_seconds=300.0,
                    comparison=Comparison.ABOVE,
                    warning_threshold=30.0,
                    is_enabled=is_enabled,
                )
            )
    values: dict[str, FieldValue] = {
        "inlet_celsius": 21.0,
        "outlet_celsius": 29.0,
        "humidity_percent": 40.0,
    }
    point = Point("room", {}, values, to_ns(clock.now))
    url = f"duckdb:///{tmp_path}/opened.duckdb"
    with closing(open_store(url)) as store:
        for tenant in (cast.acme, cast.globex):
            write(store, [point], identity={"tenant": tenant.id, "appliance": "a1"})
        clock.advance(30 * 86_400)

        Scheduler(settings, sessions=sessions, store=store, clock=clock).tasks[
            "expire_samples"
        ].run()

        assert list(store.fields("room", tenants=(cast.acme.id,))) == [
            "inlet_celsius",
            "outlet_celsius",
        ]
        assert store.fields("room", tenants=(cast.globex.id,)) == {}


class _FailsToSeal(DuckDBStore):
    """A store whose samples can't be moved into files."""

    def maintain(self, *, now_ns: int, needed: Collection[NeededField] = ()) -> int:  # noqa: ARG002
        raise StoreUnavailableError(f"Nothing was sealed until {now_ns}.")


def test_nothing_expires_that_could_not_be_sealed(
    settings: ServerSettings,
    sessions: SessionFactory,
    tmp_path: Path,
    clock: FrozenClock,
) -> None:
    with closing(_FailsToSeal(tmp_path / "failing.duckdb")) as store:
        write_all_ages(store, clock.now)

        with pytest.raises(StoreUnavailableError):
            Scheduler(settings, sessions=sessions, store=store, clock=clock).tasks[
                "expire_samples"
            ].run()

        assert {samples_of(store, age, clock.now) for age in AGES} == {12}


def test_events_of_appliances_go_after_their_retention(
    scheduler: Scheduler, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "gpu-01", now=clock.now)
        for days in (179, 181, 400):
            at = clock.now - timedelta(days=days)
            add_event(session, appliance, EventKind.STATE, f"{days}", now=at)
    scheduler.tasks["expire_events"].run()
    with sessions() as session:
        assert list(session.scalars(select(ApplianceEvent.message))) == ["179"]
