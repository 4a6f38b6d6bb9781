"""The metrics that a job reports, on its dashboard."""

from core.clock import to_ns
from core.db import SessionFactory
from dash_app.queries.job import job_detail, reported_names
from tests.cast import Cast, FrozenClock, scope_of
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import Store, write


def test_each_metric_has_a_chart_with_its_steps(
    *, sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        appliance = add_appliance(session, cast, "dgx-01", now=clock.now)
        job = run_job(session, cast, now=clock.now)
        tags = {"job": job.id, "attempt": job.attempts[0].id}
        identity = {"tenant": cast.acme.id, "appliance": appliance.id}
    points = [
        Point(
            "job_metric",
            {**tags, "name": name},
            {"value": value, "step": float(step)},
            to_ns(clock.now) + step * 10_000_000_000,
        )
        for step in range(1, 4)
        for name, value in (("loss", 1 / step), ("eval/score", -float(step)))
    ]
    write(store, points, identity=identity)
    clock.advance(60)
    scope = scope_of(cast.bob)
    with sessions() as session:
        detail = job_detail(session, store, scope, job.id, now=clock.now)
        assert reported_names(store, scope, detail.job, now=clock.now) == ["eval/score", "loss"]
        other = scope_of(cast.charlie)
        assert reported_names(store, other, detail.job, now=clock.now) == []
    assert list(detail.training) == ["eval/score", "loss"]
    (line,) = detail.training["loss"].lines
    assert (line.name, line.notes) == ("attempt 1", ("step 1", "step 2", "step 3"))
    low, high = detail.training["eval/score"].limits
    assert low is not None
    assert low < -3
    assert high is not None
    assert high > -1
