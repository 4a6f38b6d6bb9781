"""A small fleet with ten minutes of samples: what every dashboard test looks at."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from typing import cast as cast_type

import pytest
from flask.testing import FlaskClient
from sqlalchemy.orm import Session, undefer

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from dash_app.reports.builders import build
from dash_app.reports.report import Report, ReportBy, ReportKind, Request
from dash_app.reports.source import Source
from dash_app.timerange import Controls, Span
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.job_spec import JobKind
from tenants.models import Appliance, Tenant, User
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.conftest import Fill, LazyStore
from tests.unit.dash_app.browsing import Browser, served
from tests.unit.dash_app.reporting import DAY, NOW, BuildReport
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Point
from timeseries.store import Store, write

GIB = 1024**3
SAMPLES = 60


@dataclass(frozen=True, slots=True)
class Fleet:
    """acme's two appliances and globex's one; a job of alice holds GPU 0 of the first."""

    first: Appliance
    second: Appliance
    foreign: Appliance
    job: Job
    foreign_job: Job


@pytest.fixture
def span(clock: FrozenClock) -> Span:
    """The last hour, as the page's controls ask for it."""
    return Controls().span(clock.now)


@pytest.fixture(scope="session")
def fleet_samples() -> Iterator[DuckDBStore]:
    """A store with the samples of the fleet, once a test has written them."""
    store = DuckDBStore(":memory:")
    yield store
    store.close()


@pytest.fixture
def fleet_of_three(
    prefill: Callable[[Fill], str],
    sessions: SessionFactory,
    store: Store,
    fleet_samples: DuckDBStore,
) -> Fleet:
    """Two GPUs each, a sample every 10 s over the last ten minutes."""
    appliances, jobs = json.loads(prefill(_add_fleet))
    with sessions() as session:
        first, second, foreign = (
            session.get_one(Appliance, ident, options=[undefer("*")]) for ident in appliances
        )
        job, foreign_job = (session.get_one(Job, ident) for ident in jobs)
    fleet = Fleet(first, second, foreign, job, foreign_job)

    def write_samples(store: Store) -> None:
        _write_samples(store, fleet.first, level=80.0, holder=fleet.job)
        _write_samples(store, fleet.second, level=20.0, holder=None)
        _write_samples(store, fleet.foreign, level=50.0, holder=fleet.foreign_job)

    if not fleet_samples.measurements(tenants=None):
        write_samples(fleet_samples)
    cast_type("LazyStore", store).show(fleet_samples, write_samples)
    return fleet


def _add_fleet(session: Session, cast: Cast) -> str:
    first = make_appliance(session, cast.acme, "dgx-01", inventory=_has("a"))
    second = make_appliance(session, cast.acme, "dgx-02", inventory=_has("b"))
    foreign = make_appliance(session, cast.globex, "globex-01", inventory=_has("c"))
    job = _running(session, first, cast.acme, cast.alice, name="train")
    foreign_job = _running(session, foreign, cast.globex, cast.charlie, name="secret")
    return json.dumps([[first.id, second.id, foreign.id], [job.id, foreign_job.id]])


def _has(letter: str) -> dict[str, Any]:
    return {
        "hostname": letter,
        "cpu_count": 64,
        "memory_bytes": 512 * GIB,
        "gpus": [
            {"index": i, "uuid": f"GPU-{letter}{i}", "model": "H100", "memory_bytes": 80 * GIB}
            for i in range(2)
        ],
    }


def _running(
    session: Session, appliance: Appliance, tenant: Tenant, user: User, *, name: str
) -> Job:
    started_at = appliance.enrolled_at - timedelta(minutes=8)
    job = Job(
        tenant_id=tenant.id,
        user_id=user.id,
        name=name,
        kind=JobKind.BATCH,
        image="pytorch",
        gpus=1,
        memory_bytes=GIB,
        state=JobState.RUNNING,
        submitted_at=started_at,
        queue_at=started_at,
        started_at=started_at,
    )
    session.add(job)
    session.flush()
    uuid = appliance.inventory["gpus"][0]["uuid"]
    session.add(
        Attempt(
            job_id=job.id,
            tenant_id=tenant.id,
            appliance_id=appliance.id,
            number=1,
            state=AttemptState.RUNNING,
            gpu_uuids=[uuid],
            bound_at=started_at,
            assigned_at=started_at,
            started_at=started_at,
        )
    )
    session.flush()
    return job


def _write_samples(store: Store, appliance: Appliance, *, level: float, holder: Job | None) -> None:
    identity = {"tenant": appliance.tenant_id, "appliance": appliance.id}
    points: list[Point] = []
    for back in range(SAMPLES, 0, -1):
        time_ns = to_ns(NOON) - back * 10 * NS_PER_SECOND
        points += _host_points(level, time_ns)
        for gpu in appliance.inventory["gpus"]:
            has_job = holder is not None and gpu["index"] == 0
            points.append(_gpu_point(gpu, level, time_ns, holder if has_job else None))
        if holder is not None:
            fields = {"cpu_percent": 400.0, "memory_bytes": 8 * GIB}
            points.append(Point("attempt", {"job": holder.id, "attempt": "1"}, fields, time_ns))
            rates = {"read_bytes_per_second": 5e6, "written_bytes_per_second": 1e6}
            points.append(Point("container", {"container": "c", "job": holder.id}, rates, time_ns))
    assert write(store, points, identity=identity) == []


def _host_points(level: float, time_ns: int) -> list[Point]:
    return [
        Point(
            "cpu",
            {},
            {
                "usage_percent": level,
                "user_percent": level - 5,
                "nice_percent": 5.0,
                "guest_percent": 0.0,
            },
            time_ns,
        ),
        Point(
            "memory",
            {},
            {"used_bytes": 64 * GIB, "total_bytes": 512 * GIB, "used_percent": 12.5},
            time_ns,
        ),
        Point("disk", {"mount": "/"}, {"used_percent": 30.0}, time_ns),
        Point("disk", {"mount": "/data"}, {"used_percent": 70.0}, time_ns),
        Point("network", {"interface": "lo"}, {"received_bytes_per_second": 9e9}, time_ns),
        Point("network", {"interface": "eth0"}, {"received_bytes_per_second": 1e6}, time_ns),
    ]


def _gpu_point(gpu: dict[str, Any], level: float, time_ns: int, holder: Job | None) -> Point:
    tags = {"gpu": str(gpu["index"]), "uuid": gpu["uuid"], "model": gpu["model"]}
    if holder is not None:
        tags["job"] = holder.id
    fields = {
        "utilization_percent": level,
        "power_watts": level * 5,
        "throttled": 0,
        "memory_used_bytes": 40 * GIB,
        "memory_total_bytes": 80 * GIB,
        "temperature_celsius": 60.0,
    }
    return Point("gpu", tags, fields, time_ns)


@pytest.fixture
def build_report(sessions: SessionFactory, store: Store, cast: Cast) -> BuildReport:
    """Builds alice's report on the day, or another user's."""

    def build_one(
        kind: ReportKind, by: ReportBy, user: User | None = None, **options: object
    ) -> Report:
        request = replace(Request(kind=kind, by=by, period=DAY), **options)  # type: ignore[arg-type]
        scope = scope_of(user or cast.alice)
        with sessions() as session:
            source = Source(session=session, store=store, scope=scope, request=request, now=NOW)
            return build(source)

    return build_one


@pytest.fixture
def appliances(sessions: SessionFactory, cast: Cast) -> tuple[Appliance, Appliance]:
    """acme's appliances in Lyon and Porto, enrolled a day before noon."""
    with sessions.begin() as session:
        early = NOON - timedelta(days=1)
        lyon = make_appliance(session, cast.acme, "dgx-01", now=early)
        porto = make_appliance(session, cast.acme, "dgx-02", now=early)
        lyon.site, porto.site = "Lyon", "Porto"
        return lyon, porto


@pytest.fixture
def client(
    sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock, fleet_of_three: Fleet
) -> FlaskClient:
    assert fleet_of_three
    return served(sessions, store, cast, clock)


@pytest.fixture
def alice(client: FlaskClient) -> Browser:
    return Browser(client, "alice")


@pytest.fixture
def charlie(client: FlaskClient) -> Browser:
    return Browser(client, "charlie")
