"""The samples that queries are asked of: a fleet's GPUs, and a longer history of one tenant.

Chunks of all appliances follow each other in time, as they do when a fleet sends, so that no store
finds an appliance's samples lying together by the order in which they came.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.bodies import NS_PER_SECOND, SEED
from benchmarks.fleet import GPU_STRIDE, GPUS, WALK_STEPS, gpu_uuid, gpu_walk
from benchmarks.gateway import APPLIANCES_OF_A_TENANT
from timeseries.points import Batch, Block, FieldValue
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

FIELDS = (
    "utilization_percent",
    "memory_used_percent",
    "temperature_celsius",
    "power_watts",
    "sm_clock_hertz",
)
MODEL = "NVIDIA H100 80GB HBM3"
MINUTE_NS = 60 * NS_PER_SECOND
DAY_NS = 24 * 60 * MINUTE_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The data in the stores: every appliance for minutes, and one tenant for hours.

    Attributes:
        minutes: of every appliance, read every `step_ns`.
        tenant_hours: of the first tenant, up to the same end; what is older than `minutes` was
            read every minute.
        end_ns: the instant after the last sample.
    """

    appliances: int
    minutes: int
    tenant_hours: int
    end_ns: int
    step_ns: int = 10 * NS_PER_SECOND

    @property
    def gpus(self) -> int:
        """The number of GPUs in the fleet."""
        return self.appliances * GPUS

    def appliance_of(self, number: int) -> str:
        """Return an appliance's id."""
        return f"01a1fe99-3165-71ca-a743-{number:012x}"

    def tenant_of(self, number: int) -> str:
        """Return the id of an appliance's tenant."""
        return f"01a1fe98-0000-7000-8000-{number // APPLIANCES_OF_A_TENANT:012x}"

    def identity_of(self, number: int) -> dict[str, str]:
        """Return what is stamped on an appliance's samples."""
        return {TENANT_TAG: self.tenant_of(number), APPLIANCE_TAG: self.appliance_of(number)}


def batches(history: History) -> Iterator[tuple[Mapping[str, str], Batch]]:
    """Yield all samples, oldest first, in chunks of an appliance, with whose they are."""
    walk = [tuple(fields[name] for name in FIELDS) for fields in gpu_walk(Random(SEED))]  # noqa: S311
    recent_ns = history.end_ns - history.minutes * MINUTE_NS
    tenant = range(min(APPLIANCES_OF_A_TENANT, history.appliances))
    first_ns = history.end_ns - history.tenant_hours * 60 * MINUTE_NS
    yield from _chunks(
        history, walk, tenant, times_ns=range(first_ns, recent_ns, MINUTE_NS), ticks_of_a_chunk=60
    )
    yield from _chunks(
        history,
        walk,
        range(history.appliances),
        times_ns=range(recent_ns, history.end_ns, history.step_ns),
        ticks_of_a_chunk=6,
    )


def _chunks(
    history: History,
    walk: Sequence[tuple[FieldValue, ...]],
    appliances: range,
    *,
    times_ns: range,
    ticks_of_a_chunk: int,
) -> Iterator[tuple[Mapping[str, str], Batch]]:
    for first in range(0, len(times_ns), ticks_of_a_chunk):
        chunk = times_ns[first : first + ticks_of_a_chunk]
        for appliance in appliances:
            yield history.identity_of(appliance), gpu_batch(walk, appliance, first, chunk)


def gpu_batch(
    walk: Sequence[tuple[FieldValue, ...]], appliance: int, tick: int, times_ns: range
) -> Batch:
    """Return the samples of an appliance's GPUs at some times, GPU by GPU."""
    rows = [
        walk[(tick + after + (appliance * GPUS + gpu) * GPU_STRIDE) % WALK_STEPS]
        for gpu in range(GPUS)
        for after in range(len(times_ns))
    ]
    block = Block(
        measurement="gpu",
        tags=("gpu", "model", "uuid"),
        tag_sets=[(str(gpu), MODEL, gpu_uuid(appliance, gpu)) for gpu in range(GPUS)],
        tag_set_of=[gpu for gpu in range(GPUS) for _ in times_ns],
        fields=FIELDS,
        kinds=tuple(type(value) for value in rows[0]),
        values=tuple(zip(*rows, strict=True)),
        times_ns=[time_ns for _ in range(GPUS) for time_ns in times_ns],
        positions=range(len(rows)),
    )
    return Batch((block,))
