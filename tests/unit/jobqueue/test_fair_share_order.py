"""The order of a queue by points: what placement follows, and what positions show."""

# ruff: noqa: ANN401 - builders pass any field on

import heapq
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobqueue.fairshare.accounts import Projects
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.points import QueueOrder, Shares, order_queue
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.fairshare.usage import Account, decayed_seconds
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Job
from jobqueue.placement.views import queue_time
from jobqueue.projects.models import Project, ProjectQuota, QuotaResource
from jobqueue.queue.order import list_waiting
from jobqueue.queue.pending import explain_job, try_job
from jobqueue.states import AttemptState, JobState
from protocol.job_spec import JobRequest
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, dispatch, submit

FLEET = Resources(8, 64, 512 * GIB)
FAIR_TREE = OrderSettings(policy=OrderPolicy.FAIR_TREE)
DAY = timedelta(days=1)


def project(name: str, shares: int = 1, **changes: Any) -> Project:
    fields = {"id": name, "name": name, "tenant_id": "acme", "shares": shares, "created_at": NOON}
    return Project(**(fields | changes))


def waiting(name: str, project_id: str | None = None, **changes: Any) -> Job:
    """A waiting job of a user of its project, for one GPU."""
    fields: dict[str, Any] = {
        "id": name,
        "user_id": f"user of {project_id}",
        "project_id": project_id,
        "priority": 0,
        "gpus": 1,
        "cpus": 1.0,
        "memory_bytes": GIB,
    }
    fields |= changes
    at = fields.pop("submitted_at", NOON)
    return Job(**fields, submitted_at=at, queue_at=queue_time(at, fields["priority"]))


def order(
    jobs: list[Job],
    *projects: Project,
    settings: OrderSettings = FAIR_TREE,
    usage: dict[Account, float] | None = None,
    running: dict[Account, Resources] | None = None,
    now: datetime = NOON,
) -> QueueOrder:
    shares = Shares(
        projects=Projects({row.id: row for row in projects}, {}),
        usage=usage or {},
        running=running or {},
        fleet=FLEET,
    )
    jobs = sorted(jobs, key=lambda job: (job.queue_at, job.id))
    return order_queue(jobs, shares, settings, now=now)


def test_points_are_the_sum_of_values_times_weights() -> None:
    settings = OrderSettings(
        policy=OrderPolicy.FAIR_TREE,
        priority_weight=500,
        fair_share_weight=1000,
        age_weight=20,
        size_weight=80,
    )
    jobs = [
        waiting("old", "a", submitted_at=NOON - 3 * DAY, priority=-50, gpus=4),
        waiting("new", "b"),
    ]
    usage = {Account("a", "user of a"): 1.0}
    queue = order(jobs, project("a"), project("b"), settings=settings, usage=usage)
    assert queue.ids == ["new", "old"]
    parts = {part.name: (part.value, part.points) for part in queue.parts(1)}
    assert parts == {
        "priority": (-0.5, -250),
        "fair_share": (0.5, 500),
        "age": (3, 60),
        "size": (0.5, 40),
    }
    assert queue.points["old"] == pytest.approx(350)
    assert (queue.ranks, queue.user_count) == ([1, 2], 2)


def test_a_job_of_the_last_user_comes_first_in_the_end() -> None:
    # Of two users, the second has 500 points less; two and a half days of waiting make up for it.
    usage = {Account("a", "user of a"): 1e9}
    old = waiting("old", "a", submitted_at=NOON - timedelta(days=2, hours=11.5))
    for later, ids in ((timedelta(), ["new", "old"]), (timedelta(hours=1), ["old", "new"])):
        new = waiting("new", "b", submitted_at=NOON + later)
        queue = order([old, new], project("a"), project("b"), usage=usage, now=NOON + later)
        assert queue.ids == ids


def test_jobs_without_a_project_are_a_sibling_with_one_share() -> None:
    usage = {Account("a", "user of a"): 6.0, Account("", "user of None"): 3.0}
    queue = order([waiting("in", "a"), waiting("out")], project("a", shares=3), usage=usage)
    assert queue.ids == ["in", "out"]  # 3/4 over 6/9, and 1/4 over 3/9


def test_usage_of_a_project_that_is_gone_counts_as_without_one() -> None:
    usage = {Account("gone", "user of None"): 1.0, Account("a", "user of a"): 0.5}
    queue = order([waiting("out"), waiting("in", "a")], project("a"), usage=usage)
    assert queue.ids == ["in", "out"]


def test_drf_serves_the_lowest_dominant_share_and_0_5_is_exactly_the_promise() -> None:
    settings = OrderSettings(policy=OrderPolicy.DRF, age_weight=1)
    running = {Account("a", "user of a"): Resources(4, 4, GIB)}
    jobs = [waiting("first", "a"), waiting("second", "b", gpus=0, cpus=8)]
    queue = order(jobs, project("a"), project("b"), settings=settings, running=running)
    assert queue.ids == ["second", "first"]
    # Level 1: half of the GPUs run, and half of the shares are its own. So 2 ^ -1.
    assert [queue.parts(place)[1].value for place in (0, 1)] == [1, 0.5]


@pytest.mark.parametrize(
    "policy",
    [pytest.param(OrderPolicy.FAIR_TREE, marks=pytest.mark.nightly), OrderPolicy.DRF],
)
def test_endless_demand_is_served_by_shares_after_five_half_lives(policy: OrderPolicy) -> None:
    settings = OrderSettings(policy=policy, half_life_days=1)
    served = serve({"three": 3, "one": 1}, settings, half_lives=5)
    assert served["three"] / sum(served.values()) == pytest.approx(0.75, rel=0.02)


def serve(shares: dict[str, int], settings: OrderSettings, *, half_lives: int) -> dict[str, float]:
    """Serve projects that never run out of jobs on eight GPUs; return the hours by project."""
    lengths = random.Random(7)  # noqa: S311 - they need only differ
    projects = [project(name, count) for name, count in shares.items()]
    now, end = NOON, NOON + half_lives * settings.half_life
    ends: list[tuple[datetime, str]] = []
    runs: list[tuple[str, datetime, datetime]] = []
    queues = {name: [NOON] * 4 for name in shares}
    while now < end:
        while len(ends) < FLEET.gpus:
            name = next_project(projects, queues, runs, settings, now)
            queues[name] = [*queues[name][1:], now]
            until = now + timedelta(hours=lengths.uniform(0.2, 3))
            heapq.heappush(ends, (until, name))
            runs.append((name, now, until))
        now = heapq.heappop(ends)[0]
    hours = dict.fromkeys(shares, 0.0)
    for name, since, until in runs:
        hours[name] += (min(until, end) - since) / timedelta(hours=1)
    return hours


def next_project(
    projects: list[Project],
    queues: dict[str, list[datetime]],
    runs: list[tuple[str, datetime, datetime]],
    settings: OrderSettings,
    now: datetime,
) -> str:
    usage = {Account(row.id, f"user of {row.id}"): 0.0 for row in projects}
    running: dict[Account, Resources] = {}
    for name, since, until in runs:
        account = Account(name, f"user of {name}")
        ended_at = min(until, now)
        usage[account] += decayed_seconds(since, ended_at, at=now, half_life=settings.half_life)
        if until > now:
            running[account] = running.get(account, Resources()).plus(Resources(1, 1, GIB))
    jobs = [
        waiting(f"{name} {place}", name, submitted_at=at)
        for name, instants in queues.items()
        for place, at in enumerate(instants)
    ]
    queue = order(jobs, *projects, settings=settings, usage=usage, running=running, now=now)
    return queue.ids[0].split()[0]


@pytest.fixture
def shared(session: Session, cast: Cast) -> str:
    """Bob's jobs come first: Alice had an hour of the only GPU. Returns the busy job's id."""
    add_appliance(session, cast.acme, "mini", gpus=1)
    busy = submit(session, cast.alice, "busy", gpus=1, time_limit_seconds=7200)
    dispatch(session, now=NOON)
    settings = QueueSettings(ordering=FAIR_TREE)
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    return busy.id


def test_positions_count_what_guarantees_cover_first(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "mini", gpus=1)
    submit(session, cast.alice, "busy", gpus=1, time_limit_seconds=7200)
    dispatch(session, now=NOON)
    early, late = (submit(session, cast.alice, name, gpus=1) for name in ("early", "late"))
    vision = Project(tenant_id=cast.acme.id, name="vision", created_at=NOON)
    session.add(vision)
    session.flush()
    guaranteed = {"tenant_id": cast.acme.id, "project_id": vision.id, "guaranteed": 1}
    session.add(ProjectQuota(resource=QuotaResource.GPUS, **guaranteed))
    late.project_id = vision.id
    session.flush()
    positions = {}
    for job in (early, late):
        explanation = explain_job(session, scope_of(cast.alice), job.id, now=NOON)
        assert explanation is not None
        positions[job.name] = explanation.position
    assert positions == {"late": 1, "early": 2}
    listed = list_waiting(session, scope_of(cast.alice), now=NOON).items
    assert [queued.job.name for queued in listed] == ["late", "early"]


def test_placement_and_positions_follow_the_same_order(
    session: Session, cast: Cast, shared: str
) -> None:
    hers = submit(session, cast.alice, "hers", gpus=1, time_limit_seconds=60)
    his = submit(session, cast.bob, "his", gpus=1, time_limit_seconds=60)
    later = NOON + timedelta(hours=1)
    first, second = (
        explain_job(session, scope_of(cast.alice), job.id, now=later) for job in (his, hers)
    )
    assert first is not None
    assert second is not None
    assert [(first.position, first.rank), (second.position, second.rank)] == [(1, 1), (2, 2)]
    end = NOON + timedelta(hours=2)
    assert first.expected_start_at == end
    assert second.expected_start_at == end + timedelta(minutes=1)
    assert first.points == pytest.approx(1000 + 200 / 24)
    tried = try_job(
        session,
        scope_of(cast.bob),
        JobRequest(name="next", image="python:3.13", gpus=1),
        now=later,
    )
    assert (tried.position, tried.queue_length) == (2, 3)
    busy = session.get_one(Job, shared)
    busy.state = JobState.SUCCEEDED
    busy.attempts[-1].state = AttemptState.SUCCEEDED
    busy.attempts[-1].finished_at = later
    session.flush()
    dispatch(session, now=later)
    session.refresh(his)
    session.refresh(hers)
    assert (his.state, hers.state) == (JobState.STARTING, JobState.QUEUED)
