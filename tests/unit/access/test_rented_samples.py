"""Samples of a rented job reach its customer, and nothing of the appliance does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from timeit import timeit

import pytest
from sqlalchemy import select, update

from access.identity.agent_registry import Agent
from access.ingest.job_tags import FORGET_AFTER, JobTags
from access.ingest.rented_samples import SLACK
from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Attempt
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from tenants.models import Appliance, LateSamples
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.rentals import Rental, rent
from tests.unit.access.conftest import SECRET, AgentAPI
from tests.unit.jobqueue.builders import inventory
from timeseries.lineprotocol.parser import parse
from timeseries.store import LatestQuery, Store


@dataclass(frozen=True, slots=True)
class Site:
    """A rented job on acme's dgx-01, and the agent there."""

    agent: AgentAPI
    rental: Rental


@pytest.fixture
def site(
    api: AgentAPI, sessions: SessionFactory, cast: Cast, dgx: Appliance, clock: FrozenClock
) -> Iterator[Site]:
    with sessions.begin() as session:
        row = session.get_one(Appliance, dgx.id)
        row.inventory = inventory("dgx-01")
        rental = rent(session, cast.charlie, row, now=clock.now)
    with AgentAPI.open(api.url, api.app, secret=SECRET) as agent:
        yield Site(agent, rental)


def tags_of(store: Store, measurement: str, field: str, tenant_id: str) -> list[Mapping[str, str]]:
    """Return the tags of the latest samples of a measurement that a tenant has."""
    names = ("appliance", "job", "gpu", "host", "image", "name", "attempt")
    query = LatestQuery(
        measurement=measurement,
        fields=(field,),
        since_ns=0,
        tenants=(tenant_id,),
        group_by=names,
    )
    rows = store.latest(query)
    return [{name: value for name, value in row.tags.items() if value} for row in rows]


def lines(job: str, at_ns: int) -> str:
    """The samples of an agent, with tags and fields that name its host."""
    return "".join(
        f"{line} {at_ns}\n"
        for line in (
            f"gpu,gpu=0,host=frankfurt-7,job={job} utilization_percent=50,secret_watts=1",
            f'gpu,gpu=0,job={job} power_watts=9,where="frankfurt-7"',
            f"container,container=c,image=globex/secret:1,job={job} cpu_percent=10",
            f"job_metric,attempt=a,name=loss,job={job} value=0.5",
            f"scraped,instance=frankfurt-7,job={job} tokens=7",
            "cpu,host=frankfurt-7 usage_percent=3",
        )
    )


def test_customer_and_provider_get_their_parts(
    site: Site, store: Store, cast: Cast, dgx: Appliance, clock: FrozenClock
) -> None:
    job, contract = site.rental.job.id, site.rental.grant.contract_id
    assert site.agent.write(lines(job, to_ns(clock.now))).status_code == 204
    customer, provider = cast.globex.id, cast.acme.id
    copied = {"appliance": contract, "job": job, "gpu": "0"}
    assert tags_of(store, "gpu", "utilization_percent", customer) == [copied]
    assert tags_of(store, "gpu", "secret_watts", customer) == []
    assert tags_of(store, "gpu", "where", customer) == []
    (container,) = tags_of(store, "container", "cpu_percent", customer)
    assert container["image"] == "globex/secret:1"
    assert [row["name"] for row in tags_of(store, "job_metric", "value", customer)] == ["loss"]
    assert tags_of(store, "cpu", "usage_percent", customer) == []
    assert tags_of(store, "scraped", "tokens", customer) == []
    (hardware,) = tags_of(store, "gpu", "utilization_percent", provider)
    assert (hardware["appliance"], hardware["job"]) == (dgx.id, job)
    assert tags_of(store, "container", "cpu_percent", provider) == []
    assert tags_of(store, "job_metric", "value", provider) == []
    assert tags_of(store, "cpu", "usage_percent", provider) != []


def test_samples_of_another_time_are_rejected(
    site: Site, sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    job, started_at = site.rental.job.id, clock.now
    with sessions.begin() as session:
        ended = update(Attempt).where(Attempt.id == site.rental.attempt.id)
        session.execute(ended.values(finished_at=started_at + timedelta(minutes=1)))
    clock.advance(3600)
    inside = started_at + timedelta(seconds=30)
    outside = started_at + timedelta(minutes=1) + SLACK + timedelta(seconds=1)
    body = "".join(
        f"container,image=i,job={job} cpu_percent={at.minute} {to_ns(at)}\n"
        for at in (inside, outside)
    )
    response = site.agent.write(body)
    assert response.status_code == 400
    assert "line 2: its job did not run at this time" in response.text
    assert len(tags_of(store, "container", "cpu_percent", cast.globex.id)) == 1


def test_late_samples_are_noted_for_the_customers_rules(
    site: Site, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    started_at = clock.now
    clock.advance(1800)
    job, contract = site.rental.job.id, site.rental.grant.contract_id
    line = f"gpu,gpu=0,job={job} utilization_percent=50 {to_ns(started_at)}\n"
    assert site.agent.write(line).status_code == 204
    with sessions() as session:
        notes = {note.tenant_id: note.appliance_id for note in session.scalars(select(LateSamples))}
    assert notes[cast.globex.id] == contract
    assert cast.acme.id in notes


def test_an_end_is_seen_within_a_minute(
    site: Site, sessions: SessionFactory, clock: FrozenClock
) -> None:
    job = site.rental.job.id
    line = f"gpu,gpu=0,job={job} utilization_percent=50"
    assert site.agent.write(f"{line} {to_ns(clock.now)}\n").status_code == 204
    with sessions.begin() as session:
        ended = update(Attempt).where(Attempt.id == site.rental.attempt.id)
        session.execute(ended.values(finished_at=clock.now))
    later = clock.advance(FORGET_AFTER.total_seconds() + SLACK.total_seconds())
    assert site.agent.write(f"{line} {to_ns(later)}\n").status_code == 400


def test_the_ledger_counts_what_a_rented_job_used(
    site: Site, sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    began_at, job = clock.now, site.rental.job.id
    uuid = site.rental.attempt.gpu_uuids[0]
    clock.advance(600)
    line = f"gpu,gpu=0,uuid={uuid},job={job} utilization_percent=50,power_watts=100"
    body = "".join(
        f"{line} {to_ns(began_at + timedelta(seconds=seconds))}\n" for seconds in range(0, 600, 10)
    )
    assert site.agent.write(body).status_code == 204
    period = Period(began_at, clock.now)
    with sessions() as session:
        by_user = {
            user.email: live_use(session, store, scope_of(user), period, now=clock.now).uses
            for user in (cast.alice, cast.charlie)
        }
    (live,) = by_user[cast.charlie.email]
    assert live.use.allocated_milliseconds == 600_000
    assert live.use.used_milliseconds == 300_000
    assert live.use.energy_joules == 60_000
    assert by_user[cast.alice.email] == ()


def test_appliances_without_rented_jobs_are_not_looked_at(clock: FrozenClock) -> None:
    """Routing a batch costs one comparison where no job is rented."""
    tags = JobTags(None, clock=clock)  # type: ignore[arg-type] # it reads nothing
    agents = [Agent("appliance", "tenant", "dgx-01")]
    batch = parse(
        "".join(f"gpu,gpu={gpu},job=x a={gpu} 1\n" for gpu in range(8)).encode(),
        precision="ns",
        default_time_ns=0,
    ).batch
    assert tags.routed(batch, agents) is None
    runs = 10_000
    assert timeit(lambda: tags.routed(batch, agents), number=runs) / runs < 20e-6
