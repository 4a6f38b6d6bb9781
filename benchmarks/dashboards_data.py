"""The data of the dashboards' benchmark: a fleet, its usage ledger, and its samples.

A day of samples goes through the store, which seals it. The other days are copies of that day's
segments with later times: a month of 1,000 appliances takes minutes instead of hours. What the
store would not have sealed yet is submitted, as an agent would.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

from sqlalchemy import insert, select

from benchmarks.bodies import SEED
from benchmarks.filling import repeat_first_day, seal, submit_all
from benchmarks.fleet import GPUS, gpu_uuid, gpu_walk
from benchmarks.gateway import TENANT, Gateway
from benchmarks.queries_data import DAY_NS, FIELDS, MINUTE_NS, MODEL, gpu_batch
from cli.database import open_database
from core.clock import from_ns, utc_now
from core.db import transaction
from core.ids import new_id
from dash_app.queries.job import CONTAINER_FIELDS
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from jobqueue.usage.models import UsageEntry
from protocol.job_spec import JobKind
from tenants.models import Appliance, ApplianceState, Tenant
from timeseries.duckdb.query.units import settled_before
from timeseries.open_store import open_store
from timeseries.points import Batch, Block
from timeseries.store import Store

HOUR_NS, STEP_NS, RECENT_STEP_NS = 60 * MINUTE_NS, 5 * MINUTE_NS, MINUTE_NS // 2
Measurements = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""The fields and tags of measurements."""
HOSTS: Measurements = {
    "cpu": (("usage_percent",), ()),
    "memory": (("used_percent", "used_bytes", "total_bytes"), ()),
    "disk": (("used_percent", "used_bytes", "total_bytes"), ("mount",)),
    "diskio": (("read_bytes_per_second", "written_bytes_per_second"), ("device",)),
    "network": (("received_bytes_per_second", "sent_bytes_per_second"), ("interface",)),
}
CONTAINERS: Measurements = {
    "attempt": (("cpu_percent", "memory_bytes"), ("attempt",)),
    "container": (CONTAINER_FIELDS, ("attempt",)),
}


@dataclass(frozen=True, slots=True)
class Filled:
    """The first appliance, and the job that runs on its GPUs all the time."""

    appliance_id: str
    job_id: str


def fill(gateway: Gateway, *, appliances: int, days: int) -> Filled:
    """Fill database and store up to now."""
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        tenant_id = session.scalars(select(Tenant.id).where(Tenant.slug == TENANT)).one()
        rows = [_appliance(tenant_id, number) for number in range(appliances)]
        session.execute(insert(Appliance), rows)
        job = _job(tenant_id, rows[0], days)
        session.add(job)
        session.flush()
        for day in range(days):
            session.execute(insert(UsageEntry), list(_ledger(tenant_id, rows, day)))
        filled = Filled(str(rows[0]["id"]), job.id)
    ids = [str(row["id"]) for row in rows]
    store = open_store(gateway.settings.resolved_timeseries_url)
    try:
        now_ns = time.time_ns()
        sealed_until_ns = settled_before(now_ns)
        first_ns = (now_ns // DAY_NS - days) * DAY_NS
        write(store, tenant_id, ids, range(first_ns, first_ns + DAY_NS, STEP_NS), filled.job_id)
        seal(store, now_ns=first_ns + 2 * DAY_NS)
        repeat_first_day(store, days, until_ns=sealed_until_ns)
        settling = range(sealed_until_ns, now_ns - HOUR_NS, STEP_NS)
        write(store, tenant_id, ids, settling, filled.job_id)
        since_ns = max(sealed_until_ns, now_ns - HOUR_NS) // RECENT_STEP_NS * RECENT_STEP_NS
        write(store, tenant_id, ids, range(since_ns, now_ns, RECENT_STEP_NS), filled.job_id)
    finally:
        store.close()
    return filled


def write(store: Store, tenant_id: str, ids: Iterable[str], times: range, job_id: str) -> None:
    """Submit the samples of appliances at some times; the job has the GPUs of the first one."""
    walk = [tuple(step[name] for name in FIELDS) for step in gpu_walk(Random(SEED))]  # noqa: S311

    def samples() -> Iterator[tuple[Mapping[str, str], Batch]]:
        for number, appliance_id in enumerate(ids):
            identity = {"tenant": tenant_id, "appliance": appliance_id}
            gpus = gpu_batch(walk, number, 0, times)
            yield identity, gpus if number else _of_job(gpus, job_id)
            yield identity, Batch(tuple(_blocks(HOSTS, times)))
            if not number:
                yield identity, _of_job(Batch(tuple(_blocks(CONTAINERS, times))), job_id)

    # Shortly after an hour was settled, nothing is between it and the last hour.
    if times:
        submit_all([store], samples())


def _of_job(batch: Batch, job_id: str) -> Batch:
    blocks = (
        replace(
            block, tags=(*block.tags, "job"), tag_sets=[(*tags, job_id) for tags in block.tag_sets]
        )
        for block in batch.blocks
    )
    return Batch(tuple(blocks))


def _blocks(measurements: Measurements, times: range) -> Iterator[Block]:
    for measurement, (fields, tags) in measurements.items():
        yield Block(
            measurement=measurement,
            tags=tags,
            tag_sets=[tuple("data0" for _ in tags)],
            tag_set_of=[0 for _ in times],
            fields=fields,
            kinds=tuple(float for _ in fields),
            values=tuple([50.0 + at % 7 for at in range(len(times))] for _ in fields),
            times_ns=list(times),
            positions=range(len(times)),
        )


def _appliance(tenant_id: str, number: int) -> dict[str, Any]:
    gpus = [
        {"index": gpu, "uuid": gpu_uuid(number, gpu), "model": MODEL, "memory_bytes": 80 * 2**30}
        for gpu in range(GPUS)
    ]
    health = {
        "state": "healthy",
        "gpus": [
            {"index": gpu["index"], "uuid": gpu["uuid"], "state": "healthy", "tier": "flagship"}
            for gpu in gpus
        ],
        "appliance_class": f"{GPUS} x flagship",
    }
    return {
        "id": new_id(),
        "tenant_id": tenant_id,
        "name": f"gpu-{number:04}",
        "site": f"site {number % 10}",
        "state": ApplianceState.ONLINE,
        "secret_hash": f"{number:064}",
        "inventory": {"hostname": f"gpu-{number:04}", "gpus": gpus},
        "health": health,
        "health_state": "healthy",
        "appliance_class": health["appliance_class"],
        "gpu_count": GPUS,
        "gpu_model": MODEL,
        "report_id": new_id(),
        "enrolled_at": utc_now(),
        "last_seen_at": utc_now(),
    }


def _job(tenant_id: str, appliance: Mapping[str, Any], days: int) -> Job:
    """Return a job that has run on all GPUs of an appliance since some days ago."""
    started_at = utc_now() - timedelta(days=days)
    attempt = Attempt(
        tenant_id=tenant_id,
        appliance_id=appliance["id"],
        number=1,
        state=AttemptState.RUNNING,
        gpu_uuids=[gpu["uuid"] for gpu in appliance["inventory"]["gpus"]],
        bound_at=started_at,
        started_at=started_at,
    )
    return Job(
        tenant_id=tenant_id,
        name="train",
        kind=JobKind.BATCH,
        image="pytorch",
        gpus=GPUS,
        memory_bytes=2**30,
        state=JobState.RUNNING,
        submitted_at=started_at,
        started_at=started_at,
        attempts=[attempt],
    )


def _ledger(tenant_id: str, rows: list[dict[str, Any]], day: int) -> Iterator[dict[str, Any]]:
    """Yield a job of six hours on all GPUs of each appliance, four times a day."""
    midnight = from_ns(time.time_ns() // DAY_NS * DAY_NS) - timedelta(days=day)
    for number, row in enumerate(rows):
        for turn in range(4):
            ident = f"job-{number}-{day}-{turn}"
            for hour in range(6):
                yield {
                    "id": new_id(),
                    "hour_at": midnight + timedelta(hours=6 * turn + hour),
                    "tenant_id": tenant_id,
                    "user_id": None,
                    "job_id": ident,
                    "job_name": "train",
                    "attempt_id": ident,
                    "appliance_id": row["id"],
                    "gpu_model": MODEL,
                    "revision": 0,
                    "allocated_milliseconds": GPUS * 3_600_000,
                    "used_milliseconds": GPUS * 2_400_000,
                    "idle_milliseconds": GPUS * 1_100_000,
                    "energy_joules": GPUS * 1_800_000,
                    "recorded_at": midnight,
                }
