"""The data of the dashboards' benchmark: a fleet, its usage ledger, and its samples.

A day of samples goes through the store, which seals it. The other days are copies of that day's
segments with later times: a month of 1,000 appliances takes minutes instead of hours. What the
store would not have sealed yet is submitted, as an agent would.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from benchmarks.shared.filling import (
    Samples,
    appliance_rows,
    insert_rows,
    repeat_first_day,
    running_job,
    seal,
    submit,
)
from benchmarks.shared.fleet import GPUS, MINUTE_NS, MODEL, block_of, gpu_batch
from benchmarks.shared.servers import opened, writing
from core.clock import from_ns, utc_now
from core.ids import new_id
from dash_app.queries.job import CONTAINER_FIELDS
from jobqueue.usage.models import UsageEntry
from tenants.models import Appliance, Tenant
from tests.deployment import Deployment
from timeseries.duckdb.query.units import settled_before
from timeseries.points import Batch
from timeseries.store import DAY_NS, HOUR_NS, Store

STEP_NS, RECENT_STEP_NS = 5 * MINUTE_NS, MINUTE_NS // 2
HOURS_OF_A_JOB = 6
_TRAFFIC = "{0}_bytes_per_second"
# The fields of measurements, and the tag that names their devices.
HOSTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "cpu": (("usage_percent",), ""),
    "memory": (("used_percent", "used_bytes", "total_bytes"), ""),
    "disk": (("used_percent", "used_bytes", "total_bytes"), "mount"),
    "diskio": ((_TRAFFIC.format("read"), _TRAFFIC.format("written")), "device"),
    "network": ((_TRAFFIC.format("received"), _TRAFFIC.format("sent")), "interface"),
}
CONTAINERS = {
    "attempt": (("cpu_percent", "memory_bytes"), "attempt"),
    "container": (CONTAINER_FIELDS, "attempt"),
}


@dataclass(frozen=True, slots=True)
class Filled:
    """A tenant's appliances, and the job that runs on the first one's GPUs all the time."""

    tenant_id: str
    appliance_ids: Sequence[str]
    job_id: str


def fill(deployment: Deployment, *, appliances: int, days: int) -> Filled:
    """Fill database and store up to now."""
    filled = _fill_database(deployment, appliances, days)
    now_ns = time.time_ns()
    sealed_until_ns = settled_before(now_ns)
    first_ns = (now_ns // DAY_NS - days) * DAY_NS
    recent_ns = max(sealed_until_ns, now_ns - HOUR_NS) // RECENT_STEP_NS * RECENT_STEP_NS
    with opened(deployment.settings.resolved_timeseries_url) as store:
        _write(store, filled, range(first_ns, first_ns + DAY_NS, STEP_NS))
        seal(store, now_ns=first_ns + 2 * DAY_NS)
        repeat_first_day(store, days, until_ns=sealed_until_ns)
        _write(store, filled, range(sealed_until_ns, now_ns - HOUR_NS, STEP_NS))
        _write(store, filled, range(recent_ns, now_ns, RECENT_STEP_NS))
    return filled


def _fill_database(deployment: Deployment, appliances: int, days: int) -> Filled:
    now = utc_now()
    with writing(deployment) as session:
        tenant_id = session.scalars(select(Tenant.id).where(Tenant.slug == "acme")).one()
        rows = list(appliance_rows(tenant_id, appliances, now=now))
        for row in rows:
            row.update(_health(row["inventory"]["gpus"]))
        insert_rows(session, Appliance, rows)
        ids = [row["id"] for row in rows]
        job = running_job(
            tenant_id,
            ids[0],
            now=now - timedelta(days=days),
            name="train",
            gpus=GPUS,
            gpu_uuids=[gpu["uuid"] for gpu in rows[0]["inventory"]["gpus"]],
        )
        session.add(job)
        session.flush()
        for day in range(days):
            insert_rows(session, UsageEntry, list(_ledger(tenant_id, ids, day)))
        return Filled(tenant_id, ids, job.id)


def _write(store: Store, filled: Filled, times: range) -> None:
    """Submit the samples of all appliances at some times."""

    def samples() -> Samples:
        for number, appliance_id in enumerate(filled.appliance_ids):
            identity = {"tenant": filled.tenant_id, "appliance": appliance_id}
            job = "" if number else filled.job_id
            yield identity, gpu_batch(number, times, job=job)
            yield identity, _batch(HOSTS, times)
            if job:
                yield identity, _batch(CONTAINERS, times, job=job)

    # Shortly after an hour was settled, nothing is between it and the last hour.
    if times:
        submit(store, samples())


def _batch(
    measurements: Mapping[str, tuple[tuple[str, ...], str]], times: range, *, job: str = ""
) -> Batch:
    values = [50.0 + at % 7 for at in range(len(times))]
    blocks = []
    for measurement, (fields, device_tag) in measurements.items():
        tags = ({device_tag: "data0"} if device_tag else {}) | ({"job": job} if job else {})
        columns = dict.fromkeys(fields, values)
        blocks.append(block_of(measurement, [tags], columns=columns, times_ns=times))
    return Batch(tuple(blocks))


def _health(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of a healthy appliance."""
    appliance_class = f"{GPUS} x flagship"
    gpu_states = [
        {"index": gpu["index"], "uuid": gpu["uuid"], "state": "healthy", "tier": "flagship"}
        for gpu in gpus
    ]
    health = {"state": "healthy", "gpus": gpu_states, "appliance_class": appliance_class}
    return {"health": health, "health_state": "healthy", "appliance_class": appliance_class}


def _ledger(tenant_id: str, appliance_ids: Sequence[str], day: int) -> Iterator[dict[str, Any]]:
    """Yield jobs of six hours on all GPUs of each appliance, four of them a day."""
    midnight = from_ns(time.time_ns() // DAY_NS * DAY_NS) - timedelta(days=day)
    for number, appliance_id in enumerate(appliance_ids):
        for hour in range(24):
            ident = f"job-{number}-{day}-{hour // HOURS_OF_A_JOB}"
            yield {
                "id": new_id(),
                "hour_at": midnight + timedelta(hours=hour),
                "tenant_id": tenant_id,
                "user_id": None,
                "job_id": ident,
                "job_name": "train",
                "attempt_id": ident,
                "appliance_id": appliance_id,
                "gpu_model": MODEL,
                "revision": 0,
                "allocated_milliseconds": GPUS * 3_600_000,
                "used_milliseconds": GPUS * 2_400_000,
                "idle_milliseconds": GPUS * 1_100_000,
                "energy_joules": GPUS * 1_800_000,
                "recorded_at": midnight,
            }
