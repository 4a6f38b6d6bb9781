"""Attempts with slices of GPUs, and their samples."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from jobqueue.models import Attempt
from protocol.gpu_slices import GPUSlice, PartitionMode
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import GIB, gpu_uuid, start
from timeseries.points import Point
from timeseries.store import Store, write

GPU = gpu_uuid("dgx-01", 0)
MIG = GPUSlice(
    mode=PartitionMode.MIG,
    gpu_uuid=GPU,
    share_milli=250,
    memory_bytes=20 * GIB,
    profile="1g.20gb",
    start=2,
    slots=2,
    uuid="MIG-7",
)
MPS = GPUSlice(
    mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=500, shares=1, memory_bytes=40 * GIB
)
TURNS = GPUSlice(mode=PartitionMode.TIME_SLICING, gpu_uuid=GPU, share_milli=500, shares=1)


def start_in(session: Session, cast: Cast, gpu_slice: GPUSlice, **changes: Any) -> Attempt:  # noqa: ANN401
    """Return an attempt of Alice's with a slice of the first GPU, since noon."""
    attempt = start(session, cast, gpus=1, **changes)
    attempt.gpu_slice = msgspec.to_builtins(gpu_slice)
    attempt.job.gpus, attempt.job.gpu_memory_bytes = 0, 10 * GIB
    session.flush()
    return attempt


def sample(
    store: Store,
    attempt: Attempt,
    measurement: str,
    fields: Mapping[str, float],
    *,
    minutes: range,
    **tags: str,
) -> None:
    """Write a point of an attempt's job for each minute after noon."""
    own = {"gpu": "0", "job": attempt.job_id, **tags}
    points = [
        Point(measurement, own, fields, to_ns(NOON) + minute * 60 * NS_PER_SECOND)
        for minute in minutes
    ]
    identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    assert not write(store, points, identity=identity)


def sample_mig(store: Store, attempt: Attempt, *, percent: float, minutes: range) -> None:
    """Write samples of the MIG slice of an attempt, as a Hopper GPU has them."""
    fields = {"graphics_engine_active_percent": percent, "memory_used_bytes": 5.0 * GIB}
    sample(store, attempt, "gpu_slice", fields, minutes=minutes, uuid=MIG.uuid, slice="1")
