"""Filling stores and databases: batches, repeated days of samples, and rows of appliances."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from sqlalchemy import insert
from sqlalchemy.orm import Session

from benchmarks.shared.document import BenchmarkError
from benchmarks.shared.fleet import GPU_MEMORY_BYTES, GPUS, MODEL, gpu_uuid, name_of
from core.ids import new_id
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from protocol.job_spec import JobKind
from tenants.models import ApplianceState
from timeseries.duckdb.files.parquet import FAST_LEVEL, write_parquet
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.rollup_sql import NEWEST_COLUMN
from timeseries.duckdb.schema import TIME_COLUMN
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch
from timeseries.store import DAY_NS, RejectedPoint, Resolution, Store

ROWS_OF_A_STATEMENT = 5_000
_MOST_PENDING = 200
Samples = Iterable[tuple[Mapping[str, str], Batch]]
"""Batches, each with the identity of who sent it."""


def submit(store: Store, samples: Samples) -> None:
    """Submit batches to a store, and wait until it has them.

    Raises:
        BenchmarkError: the store refuses points.
    """
    submit_each((store, identity, batch) for identity, batch in samples)


def submit_each(submissions: Iterable[tuple[Store, Mapping[str, str], Batch]]) -> None:
    """Submit each batch to its store, as `submit` does."""
    pending = deque[Future[list[RejectedPoint]]]()
    for store, identity, batch in submissions:
        pending.append(store.submit(batch, identity=identity))
        if len(pending) > _MOST_PENDING:
            _take(pending.popleft())
    for future in pending:
        _take(future)


def seal(store: Store, *, now_ns: int) -> None:
    """Maintain a store until nothing is left to do: a run ends after a while."""
    while store.maintain(now_ns=now_ns):
        pass


def repeat_first_day(store: Store, days: int, *, until_ns: int) -> None:
    """Copy the sealed samples of the first day to the days after it, up to a whole hour.

    Each copy is a new segment with later times, as if the store had sealed it: filling a month of a
    large fleet takes minutes instead of hours.
    """
    if not isinstance(store, DuckDBStore):
        raise TypeError("only the embedded store has segments")
    for day in range(1, days + 1):
        for measurement in store.manifest.measurements:
            segments = store.manifest.of(measurement)
            first_ns = min(segment.oldest_ns for segment in segments)
            copied = [segment for segment in segments if segment.oldest_ns < first_ns + DAY_NS]
            copies = [_later(store, segment, day * DAY_NS, until_ns=until_ns) for segment in copied]
            with store.database.cursor() as cursor:
                cursor.begin()
                store.manifest.commit(
                    cursor, measurement, add=[copy for copy in copies if copy.rows]
                )
        click.echo(f"filled day {day} of {days}", err=True)


def insert_rows(session: Session, model: type[Any], rows: list[dict[str, Any]]) -> None:
    """Insert many rows, some thousands in a statement."""
    for start in range(0, len(rows), ROWS_OF_A_STATEMENT):
        session.execute(insert(model), rows[start : start + ROWS_OF_A_STATEMENT])


def appliance_rows(tenant_id: str, count: int, *, now: datetime) -> Iterator[dict[str, Any]]:
    """Yield rows of appliances with eight GPUs that are online."""
    for number in range(count):
        yield {
            "id": new_id(),
            "tenant_id": tenant_id,
            "name": name_of(number),
            "site": f"site {number % 100}",
            "labels": {"rack": str(number % 100)},
            "state": ApplianceState.ONLINE,
            "secret_hash": f"{number:064}",
            "inventory": _inventory(number),
            "gpu_count": GPUS,
            "gpu_model": MODEL,
            "report_id": new_id(),
            "enrolled_at": now,
            "last_seen_at": now,
        }


def _inventory(number: int) -> dict[str, Any]:
    gpu = {"model": MODEL, "memory_bytes": GPU_MEMORY_BYTES}
    return {
        "hostname": name_of(number),
        "cpu_count": 128,
        "memory_bytes": 2**40,
        "executors": ["simulated"],
        "gpus": [{"index": n, "uuid": gpu_uuid(number, n), **gpu} for n in range(GPUS)],
    }


def running_job(tenant_id: str, appliance_id: str, *, now: datetime, **fields: Any) -> Job:  # noqa: ANN401 - any column
    """Return a service whose first attempt runs on an appliance; `gpu_uuids` are the attempt's."""
    attempt = Attempt(
        tenant_id=tenant_id,
        appliance_id=appliance_id,
        number=1,
        state=AttemptState.RUNNING,
        gpu_uuids=fields.pop("gpu_uuids", []),
        bound_at=now,
        started_at=now,
    )
    return Job(
        tenant_id=tenant_id,
        kind=JobKind.SERVICE,
        image="bench",
        memory_bytes=2**30,
        state=JobState.RUNNING,
        submitted_at=now,
        started_at=now,
        attempts=[attempt],
        **fields,
    )


def _take(pending: Future[list[RejectedPoint]]) -> None:
    if rejected := pending.result():
        raise BenchmarkError(f"{len(rejected)} points were refused: {rejected[0].reason}")


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
