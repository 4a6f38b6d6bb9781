from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.errors import NotFoundError
from dash_app.charts import Line, Summary
from dash_app.queries.appliance import appliance_detail
from dash_app.queries.gpu import gpu_detail
from dash_app.queries.job import job_detail
from dash_app.timerange import Span
from jobqueue.models import Job
from jobqueue.states import JobState
from protocol.job_spec import JobKind
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.dash_app.conftest import Fleet
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from timeseries.points import Point
from timeseries.store import Store, write


def test_every_gpu_has_its_own_line_and_color_in_every_panel(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = appliance_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, span=span
    )
    for key in ("gpu-utilization_percent", "gpu-power_watts"):
        lines = seen.charts[key].lines
        assert [(line.name, line.color) for line in lines] == [("GPU 0", 0), ("GPU 1", 1)]


def test_the_gpu_table_names_the_job(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = appliance_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, span=span
    )
    assert [gpu.job.name if gpu.job else "" for gpu in seen.gpus] == ["train", ""]


def test_unused_cpu_modes_are_not_drawn(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = appliance_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, span=span
    )
    assert [line.name for line in seen.charts["cpu"].lines] == ["user", "nice"]


def test_the_loopback_is_not_drawn(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = appliance_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, span=span
    )
    assert [line.name for line in seen.charts["network"].lines] == ["eth0 in"]


def test_bob_cannot_read_globexs_appliance(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    with pytest.raises(NotFoundError) as foreign:
        appliance_detail(session, store, scope_of(cast.bob), fleet_of_three.foreign.id, span=span)
    with pytest.raises(NotFoundError) as missing:
        appliance_detail(session, store, scope_of(cast.bob), "nobody", span=span)
    assert foreign.value.code == missing.value.code


def test_an_unavailable_store_is_reported_in_every_panel(
    session: Session, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    lost = LostStore()
    scope, ident = scope_of(cast.alice), fleet_of_three.first.id
    seen = appliance_detail(session, lost, scope, ident, span=span)  # type: ignore[arg-type]
    assert {chart.problem for chart in seen.charts.values()} == {MESSAGE}
    assert lost.asked == 1


def test_a_gpu_shows_the_run_of_its_job(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = gpu_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, index="0", span=span
    )
    assert [band.label for band in seen.charts["utilization"].bands] == ["train"]
    # It started eight minutes ago and goes on.
    assert seen.runs[0].end_ns - seen.runs[0].start_ns == 480 * 10**9


def test_a_spike_shows_in_a_step_that_hides_it(
    *, session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    ident, at_ns = fleet_of_three.first.id, to_ns(clock.now) - 5 * 10**9
    tags = {"gpu": "0", "uuid": fleet_of_three.first.inventory["gpus"][0]["uuid"]}
    spike = Point("gpu", tags, {"power_watts": 999.0}, at_ns)
    write(store, [spike], identity={"tenant": cast.acme.id, "appliance": ident})

    def power(step_seconds: int) -> Line:
        step_ns = step_seconds * 10**9
        end_ns = -(-to_ns(clock.now) // step_ns) * step_ns
        wide = Span(end_ns - 4 * 10**5 * step_ns, end_ns, step_ns)
        scope = scope_of(cast.alice)
        return (
            gpu_detail(session, store, scope, ident, index="0", span=wide).charts["power"].lines[0]
        )

    assert max(high for _, high in power(600).extremes) == 999.0
    assert max(power(600).values) < 999.0
    assert power(10).extremes == ()


def test_a_free_gpu_shows_no_run(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = gpu_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, index="1", span=span
    )
    assert (seen.runs, seen.gpu.job) == ((), None)


def test_the_time_throttled_is_a_share_in_percent(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    seen = gpu_detail(
        session, store, scope_of(cast.alice), fleet_of_three.first.id, index="0", span=span
    )
    chart = seen.charts["throttled"]
    assert chart.field.endswith("_percent")
    assert set(chart.lines[0].values) == {0.0}


def test_a_gpu_that_is_not_there_is_not_found(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, span: Span
) -> None:
    scope, ident = scope_of(cast.alice), fleet_of_three.first.id
    for index in ("2", "x", "0' OR 1=1 --"):
        with pytest.raises(NotFoundError):
            gpu_detail(session, store, scope, ident, index=index, span=span)


def test_a_job_shows_its_own_gpu_from_its_start_to_now(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    seen = job_detail(session, store, scope_of(cast.alice), fleet_of_three.job.id, now=clock.now)
    assert seen.gpus == ((fleet_of_three.first.id, "0"),)
    assert [line.name for line in seen.charts["gpu-power_watts"].lines] == ["GPU 0"]
    assert seen.run_seconds == 480.0
    assert seen.span is not None
    assert seen.span.end_ns == to_ns(clock.now)


def test_a_jobs_cores_and_memory_are_drawn(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    seen = job_detail(session, store, scope_of(cast.alice), fleet_of_three.job.id, now=clock.now)
    assert set(seen.charts["attempt-cpu_percent"].lines[0].values) == {400.0}
    rates = {line.name: set(line.values) for line in seen.charts["attempt-diskio"].lines}
    assert rates == {"read": {5e6}, "write": {1e6}}


def test_charlie_cannot_read_acmes_job(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    with pytest.raises(NotFoundError):
        job_detail(session, store, scope_of(cast.charlie), fleet_of_three.job.id, now=clock.now)


def test_a_waiting_job_has_no_charts(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        job = Job(
            tenant_id=cast.acme.id,
            name="waits",
            kind=JobKind.BATCH,
            image="x",
            memory_bytes=1,
            state=JobState.QUEUED,
            submitted_at=clock.now - timedelta(minutes=1),
            queue_at=clock.now - timedelta(minutes=1),
        )
        session.add(job)
    with sessions() as session:
        seen = job_detail(session, store, scope_of(cast.alice), job.id, now=clock.now)
    assert (seen.span, seen.charts, seen.appliance) == (None, {}, None)


def test_energy_counts_the_time_between_samples_that_are_further_apart_than_steps(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    appliance = fleet_of_three.second
    end_ns, minute_ns = to_ns(clock.now) - 3600 * NS_PER_SECOND, 60 * NS_PER_SECOND
    points = [
        Point("gpu", {"gpu": "0"}, {"power_watts": 300.0}, end_ns - minutes * minute_ns)
        for minutes in range(1, 61)
    ]
    assert not write(
        store, points, identity={"tenant": appliance.tenant_id, "appliance": appliance.id}
    )
    # Half an hour and four minutes.
    span = Span(end_ns - 34 * minute_ns, end_ns, 15 * NS_PER_SECOND)
    seen = gpu_detail(session, store, scope_of(cast.alice), appliance.id, index="0", span=span)
    assert seen.energy_joules == 300 * 34 * 60


def test_the_figures_of_a_share_of_the_time_are_in_percent(
    session: Session, store: Store, cast: Cast, fleet_of_three: Fleet, clock: FrozenClock
) -> None:
    appliance = fleet_of_three.second
    end_ns = to_ns(clock.now) - 3600 * NS_PER_SECOND
    points = [
        Point("gpu", {"gpu": "0"}, {"throttled": at % 4 == 0}, end_ns - at * NS_PER_SECOND)
        for at in range(1, 41)
    ]
    assert not write(
        store, points, identity={"tenant": appliance.tenant_id, "appliance": appliance.id}
    )
    span = Span(end_ns - 60 * NS_PER_SECOND, end_ns, 10 * NS_PER_SECOND)
    seen = gpu_detail(session, store, scope_of(cast.alice), appliance.id, index="0", span=span)
    assert seen.charts["throttled"].lines[0].summary == Summary(0.0, 25.0, 100.0)
