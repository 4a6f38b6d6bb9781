"""The operators' dashboard: figures and charts across tenants, and who may see them."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.errors import ForbiddenError
from dash_app.charts import Summary
from dash_app.context import MINUTE, SharedCache
from dash_app.queries.platform import platform_figures
from dash_app.queries.platform_charts import platform_charts
from dash_app.timerange import Span
from jobqueue.models import Job
from jobqueue.states import JobState
from tenants.fleet.states import EffectiveStatus
from tenants.lifecycle.usage import StorageUse, store_usage
from tenants.models import Tenant, TenantQuota, TenantState
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.dash_app.browsing import Browser, served
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.points import Point
from timeseries.store import Store, write

DAY = timedelta(days=1)
MINUTE_NS = 60 * NS_PER_SECOND
PATH = "/dashboards/platform"


def test_each_tenant_has_its_own_totals(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    figures = platform_figures(session, store, scope_of(cast.olivia), now=NOON)
    acme, globex = sorted(figures.tenants, key=lambda tenant: tenant.name)
    assert (acme.appliances, acme.gpus, acme.active_jobs, acme.users) == (2, 4, 1, 2)
    assert (globex.appliances, globex.gpus, globex.active_jobs, globex.users) == (1, 2, 1, 1)
    assert acme.utilization_percent == pytest.approx(50.0)
    # Ten minutes of a job on one GPU that began eight minutes ago.
    assert acme.gpu_hours == pytest.approx(8 / 60)
    assert figures.by_status[EffectiveStatus.ONLINE] == figures.appliances == 3
    assert figures.utilization_percent == pytest.approx(50.0)
    assert figures.problem == ""


def test_the_platforms_utilization_is_the_mean_of_all_samples(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet
) -> None:
    foreign = fleet_of_three.foreign
    # Acme's four GPUs and globex's two have 60 samples each, of 50 % on average.
    points = [
        Point("gpu", {"gpu": "0"}, {"utilization_percent": 98.0}, to_ns(NOON) - at * MINUTE_NS)
        for at in range(11, 131)
    ]
    assert not write(store, points, identity={"tenant": foreign.tenant_id, "appliance": foreign.id})
    figures = platform_figures(session, store, scope_of(cast.olivia), now=NOON)
    assert {tenant.name: tenant.utilization_percent for tenant in figures.tenants} == {
        "Acme": 50.0,
        "Globex": 74.0,
    }
    assert figures.utilization_percent == (360 * 50 + 120 * 98) / 480
    span = Span(to_ns(NOON - DAY), to_ns(NOON), 600 * NS_PER_SECOND)
    charts = platform_charts(session, store, scope_of(cast.olivia), span=span, now=NOON)
    means = {line.name: line.summary for line in charts["utilization"].lines}
    assert means == {"Acme": Summary(20.0, 50.0, 80.0), "Globex": Summary(50.0, 74.0, 98.0)}


def test_totals_without_a_store_say_why_values_are_missing(
    session: Session, cast: Cast, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    lost: Any = LostStore()
    figures = platform_figures(
        session,
        lost,
        scope_of(cast.olivia),
        now=NOON,
    )
    assert figures.problem == MESSAGE
    assert figures.gpus == 6
    assert figures.utilization_percent is None
    assert figures.points_per_second is None


def test_a_tenants_admin_gets_no_totals(session: Session, store: Store, cast: Cast) -> None:
    with pytest.raises(ForbiddenError):
        platform_figures(session, store, scope_of(cast.alice), now=NOON)


def test_a_quota_that_is_nearly_reached_is_marked(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    session.add(TenantQuota(tenant_id=cast.acme.id, max_gpus=5, max_appliances=100))
    session.flush()
    figures = platform_figures(session, store, scope_of(cast.olivia), now=NOON)
    near = {
        tenant.slug: tenant.tightest_ratio for tenant in figures.tenants if tenant.is_near_a_quota
    }
    assert near == {"acme": pytest.approx(0.8)}


def test_charts_show_the_rate_by_tenant_and_storage_by_day(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    store_usage(session, {cast.acme.id: StorageUse(10, 4000)}, now=NOON - DAY)
    store_usage(session, {cast.acme.id: StorageUse(20, 8000)}, now=NOON)
    step_ns = 60 * NS_PER_SECOND
    span = Span(to_ns(NOON) - 10 * step_ns, to_ns(NOON), step_ns)
    charts = platform_charts(session, store, scope_of(cast.olivia), span=span, now=NOON)
    assert [line.name for line in charts["utilization"].lines] == ["Acme", "Globex"]
    ingest = {line.name: line.values for line in charts["ingest"].lines}
    # A sample every 10 s: on two hosts cpu, memory, 2 disks, 2 networks, 2 GPUs; an attempt and its
    # container.
    assert ingest["Acme"][-1] == pytest.approx((2 * 8 + 2) / 10)
    storage = {line.name: line.values for line in charts["storage"].lines}
    assert storage["Acme"] == [4000.0, 8000.0]
    (hours,) = [line for line in charts["hours"].lines if line.name == "Acme"]
    assert sum(hours.values) == pytest.approx(8 / 60)


def test_small_tenants_are_drawn_together(session: Session, store: Store, cast: Cast) -> None:
    tenants = [
        Tenant(slug=f"t{n}", name=f"T{n}", state=TenantState.ACTIVE, created_at=NOON)
        for n in range(12)
    ]
    session.add_all(tenants)
    session.flush()
    store_usage(session, {tenant.id: StorageUse(1, 100) for tenant in tenants}, now=NOON)
    span = Span(to_ns(NOON - DAY), to_ns(NOON), 3600 * NS_PER_SECOND)
    charts = platform_charts(session, store, scope_of(cast.olivia), span=span, now=NOON)
    assert len(charts["storage"].lines) == 9
    assert charts["storage"].lines[-1].name == "others"
    assert charts["storage"].lines[-1].values == [400.0]


def test_charts_without_a_store_say_so(session: Session, cast: Cast) -> None:
    span = Span(to_ns(NOON - DAY), to_ns(NOON), 3600 * NS_PER_SECOND)
    lost: Any = LostStore()
    charts = platform_charts(
        session,
        lost,
        scope_of(cast.olivia),
        span=span,
        now=NOON,
    )
    assert charts["utilization"].problem == charts["ingest"].problem == MESSAGE


def test_results_are_cached_for_a_minute_by_key(clock: FrozenClock) -> None:
    cache, calls = SharedCache(clock, ttl=MINUTE), []

    def compute() -> int:
        calls.append(1)
        return len(calls)

    assert [cache.get("a", compute), cache.get("a", compute), cache.get("b", compute)] == [1, 1, 2]
    clock.advance(60)
    assert cache.get("a", compute) == 3


def test_an_operator_sees_the_dashboard_and_a_tenants_admin_does_not(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    client = served(sessions, store, cast, clock)
    shown = Browser(client, "olivia").fill("page.children", url_pathname=PATH)
    assert "GPU-hours per day by tenant" in shown
    filled = Browser(client, "olivia").fill("platform-problem.children", platform_path_data=PATH)
    assert "Acme" in filled
    assert "Globex" in filled
    hidden = Browser(client, "alice").fill("page.children", url_pathname=PATH)
    assert "There is no dashboard" in hidden


def test_a_tenants_admin_cannot_get_the_cached_data_of_an_operator(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> None:
    assert fleet_of_three
    client = served(sessions, store, cast, clock)
    Browser(client, "olivia").fill("platform-problem.children", platform_path_data=PATH)
    answer = Browser(client, "alice").fill("platform-problem.children", platform_path_data=PATH)
    assert "Globex" not in answer
    assert "Acme" not in answer


def test_a_job_that_ended_is_not_active(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet
) -> None:
    session.get_one(Job, fleet_of_three.job.id).state = JobState.SUCCEEDED
    session.flush()
    figures = platform_figures(session, store, scope_of(cast.olivia), now=NOON)
    assert figures.active_jobs == 1
