"""The data of the dashboards' benchmark: a fleet, its usage ledger, and its samples.

A day of samples goes through the store, which seals it. The other days are copies of that day's
segments with later times: a month of 1,000 appliances takes minutes instead of hours. What the
store would not have sealed yet is submitted, as an agent would.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from sqlalchemy import insert, select

from benchmarks.bodies import SEED
from benchmarks.fleet import GPUS, gpu_uuid, gpu_walk
from benchmarks.gateway import TENANT, Gateway
from benchmarks.month import WINDOW_OF_FUTURES
from benchmarks.queries_data import DAY_NS, FIELDS, MINUTE_NS, MODEL, gpu_batch
from cli.database import open_database
from core.clock import from_ns, utc_now
from core.db import transaction
from core.ids import new_id
from jobqueue.usage.models import UsageEntry
from tenants.models import Appliance, ApplianceState, Tenant
from timeseries.duckdb.parquet import FAST_LEVEL, write_parquet
from timeseries.duckdb.rollup_sql import NEWEST_COLUMN
from timeseries.duckdb.schema import TIME_COLUMN
from timeseries.duckdb.sealing import settled_before
from timeseries.duckdb.segments import Segment
from timeseries.duckdb.store import DuckDBStore
from timeseries.open_store import open_store
from timeseries.points import Batch, Block
from timeseries.store import RejectedPoint, Resolution, Store

HOUR_NS, STEP_NS, RECENT_STEP_NS = 60 * MINUTE_NS, 5 * MINUTE_NS, MINUTE_NS // 2
HOSTS = {
    "cpu": (("usage_percent",), ()),
    "memory": (("used_percent", "used_bytes", "total_bytes"), ()),
    "disk": (("used_percent", "used_bytes", "total_bytes"), ("mount",)),
    "diskio": (("read_bytes_per_second", "written_bytes_per_second"), ("device",)),
    "network": (("received_bytes_per_second", "sent_bytes_per_second"), ("interface",)),
}


def fill(gateway: Gateway, *, appliances: int, days: int) -> str:
    """Fill database and store up to now; return the id of the first appliance."""
    with open_database(gateway.settings) as (_engine, sessions), transaction(sessions) as session:
        tenant_id = session.scalars(select(Tenant.id).where(Tenant.slug == TENANT)).one()
        rows = [_appliance(tenant_id, number) for number in range(appliances)]
        session.execute(insert(Appliance), rows)
        for day in range(days):
            session.execute(insert(UsageEntry), list(_ledger(tenant_id, rows, day)))
    ids = [str(row["id"]) for row in rows]
    store = open_store(gateway.settings.resolved_timeseries_url)
    if not isinstance(store, DuckDBStore):
        raise TypeError("the benchmark fills the embedded store only")
    try:
        now_ns = time.time_ns()
        sealed_until_ns = settled_before(now_ns)
        first_ns = (now_ns // DAY_NS - days) * DAY_NS
        write(store, tenant_id, ids, range(first_ns, first_ns + DAY_NS, STEP_NS))
        while store.maintain(now_ns=first_ns + 2 * DAY_NS):
            pass
        for day in range(1, days + 1):
            _repeat_first_day(store, day, until_ns=sealed_until_ns)
            click.echo(f"filled day {day} of {days}", err=True)
        write(store, tenant_id, ids, range(sealed_until_ns, now_ns - HOUR_NS, STEP_NS))
        since_ns = max(sealed_until_ns, now_ns - HOUR_NS) // RECENT_STEP_NS * RECENT_STEP_NS
        write(store, tenant_id, ids, range(since_ns, now_ns, RECENT_STEP_NS))
    finally:
        store.close()
    return ids[0]


def write(store: Store, tenant_id: str, ids: Iterable[str], times: range) -> None:
    """Submit the samples of appliances at some times."""
    walk = [tuple(one[name] for name in FIELDS) for one in gpu_walk(Random(SEED))]  # noqa: S311
    waiting = deque[Future[list[RejectedPoint]]]()
    for number, appliance_id in enumerate(ids):
        identity = {"tenant": tenant_id, "appliance": appliance_id}
        waiting.append(store.submit(gpu_batch(walk, number, 0, times), identity=identity))
        waiting.append(store.submit(Batch(tuple(_host_blocks(times))), identity=identity))
        while len(waiting) > WINDOW_OF_FUTURES:
            waiting.popleft().result()
    for one in waiting:
        one.result()


def _host_blocks(times: range) -> Iterator[Block]:
    for measurement, (fields, tags) in HOSTS.items():
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


def _repeat_first_day(store: DuckDBStore, days: int, *, until_ns: int) -> None:
    """Copy the segments of the first day to a later one, up to a whole hour."""
    manifest = store.manifest
    for measurement in manifest.measurements:
        first = min(one.oldest_ns for one in manifest.of(measurement))
        copied = [one for one in manifest.of(measurement) if one.oldest_ns < first + DAY_NS]
        copies = [_later(store, one, days * DAY_NS, until_ns=until_ns) for one in copied]
        with store.database.cursor() as cursor:
            cursor.begin()
            manifest.commit(cursor, measurement, add=[one for one in copies if one.rows])


def _later(store: DuckDBStore, segment: Segment, offset_ns: int, *, until_ns: int) -> Segment:
    later = replace(
        segment,
        name=new_id(),
        oldest_ns=segment.oldest_ns + offset_ns,
        newest_ns=min(segment.newest_ns + offset_ns, until_ns - 1),
        rows=0,
        sizes={},
    )
    sizes, files = {}, store.manifest.files
    for resolution, path in segment.paths.items():
        table = parquet.read_table(files.address(path))
        for at, name in enumerate(table.column_names):
            if name in {TIME_COLUMN, NEWEST_COLUMN}:
                table = table.set_column(at, name, pc.add(table[name], offset_ns))
        table = table.filter(pc.less(table[TIME_COLUMN], until_ns))
        if not table.num_rows:
            return later
        file = files.create(later.path(resolution))
        batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
        sizes[resolution] = write_parquet(file, batches, level=FAST_LEVEL)
        files.publish(file, later.path(resolution))
        if resolution is Resolution.RAW:
            later = replace(later, rows=table.num_rows)
    return replace(later, sizes=sizes)


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
