"""Checks of the samples of GPUs: whether they are of now, and fit what the GPUs did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from core.clock import NS_PER_SECOND, from_ns, to_ns
from marketplace.verification.findings import Finding, failure, note
from timeseries.columns import SampleColumns
from timeseries.store import APPLIANCE_TAG, SampleQuery, Store, TooManySamplesError

# The second where a day has too many: who sends more often is checked, too.
LOOKBACKS = timedelta(hours=24), timedelta(minutes=30)
MAX_SAMPLES = 1_000_000
POWER, ENERGY, UTILIZATION = "power_watts", "energy_joules", "utilization_percent"
# Readings in a row that no GPU repeats by chance, if so many of them differ.
WINDOW, DISTINCT = 30, 12
STEP_BACK_SHARE = 0.999
# No GPU draws more: a counter above what that gives since the reading before did not start anew.
MOST_WATTS = 2000.0
LEAST_UTILIZATION_PERCENT = 30.0
LEAST_SAMPLES = 2
# GPUs are busy for 20 seconds of a challenge; samples that are further apart may miss that.
MOST_APART_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Readings:
    """The samples of a field of a GPU, by time."""

    field: str
    gpu: str
    times_ns: Sequence[int]
    values: Sequence[float]


def sample_findings(
    store: Store,
    tenant_id: str,
    appliance_id: str,
    *,
    gpu_uuids: Sequence[str],
    busy: tuple[datetime, datetime],
) -> list[Finding]:
    """Return what is wrong with an appliance's samples of the time before a challenge's end.

    Args:
        store: the sample store.
        tenant_id: its tenant.
        appliance_id: the appliance.
        gpu_uuids: those that were challenged.
        busy: when the challenge was ordered and answered.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    for lookback in LOOKBACKS:
        query = SampleQuery(
            measurement="gpu",
            fields=(POWER, ENERGY, UTILIZATION),
            start_ns=to_ns(busy[1] - lookback),
            end_ns=to_ns(busy[1] + timedelta(seconds=30)),
            tenants=(tenant_id,),
            matchers=((APPLIANCE_TAG, "=", appliance_id),),
            max_samples=MAX_SAMPLES,
        )
        try:
            columns = store.samples(query)
            break
        except TooManySamplesError:
            continue
    else:
        return [note("samples_not_checked", "There are too many samples to check.")]
    readings = [each for column in columns for each in _readings(column)]
    return [
        *repeated(readings),
        *backward(readings),
        *idle(readings, gpu_uuids, start_ns=to_ns(busy[0]), end_ns=to_ns(busy[1])),
    ]


def repeated(readings: Sequence[Readings]) -> Iterator[Finding]:
    """Yield one finding if the power of a GPU has the same values again, or those of another."""
    seen: dict[tuple[float, ...], tuple[str, int]] = {}
    for series in readings:
        if series.field != POWER:
            continue
        last = -WINDOW
        for at in range(len(series.values) - WINDOW + 1):
            window = tuple(series.values[at : at + WINDOW])
            if len(set(window)) < DISTINCT:
                continue
            before = seen.get(window)
            if before is None:
                # Only windows side by side are stored: any later copy meets one of them.
                if at - last >= WINDOW:
                    seen[window] = (series.gpu, series.times_ns[at])
                    last = at
                continue
            gpu, time_ns = before
            first, second = from_ns(time_ns), from_ns(series.times_ns[at])
            other = "" if gpu == series.gpu else f" of {gpu}"
            yield failure(
                "replayed_samples",
                f"{WINDOW} readings of the power of {series.gpu} from {second:%Y-%m-%d %H:%M} UTC "
                f"on are those{other} from {first:%Y-%m-%d %H:%M} UTC on.",
                "Let the agent send its own readings, once.",
                gpu=series.gpu,
                of_gpu=gpu,
                first_at=first.isoformat(),
                again_at=second.isoformat(),
            )
            return


def backward(readings: Sequence[Readings]) -> Iterator[Finding]:
    """Yield the GPUs whose energy counter runs backward without having started anew."""
    for series in readings:
        if series.field != ENERGY:
            continue
        for at, (before, after) in enumerate(pairwise(series.values)):
            start_ns, end_ns = series.times_ns[at : at + 2]
            most_since = MOST_WATTS * (end_ns - start_ns) / NS_PER_SECOND
            if most_since < after < STEP_BACK_SHARE * before:
                when = from_ns(series.times_ns[at + 1])
                yield failure(
                    "energy_runs_backward",
                    f"The energy counter of {series.gpu} fell from {before:,.0f} to {after:,.0f} J "
                    f"at {when:%Y-%m-%d %H:%M} UTC.",
                    "Let the agent send its own readings, once.",
                    gpu=series.gpu,
                    before=before,
                    after=after,
                    at=when.isoformat(),
                )
                break


def idle(
    readings: Sequence[Readings], gpu_uuids: Sequence[str], *, start_ns: int, end_ns: int
) -> Iterator[Finding]:
    """Yield the GPUs that were challenged, but idle by their samples.

    An answer comes as late as the portal can be reached, so they may have been busy long before.
    """
    needed = max(LEAST_SAMPLES, (end_ns - start_ns) / NS_PER_SECOND / MOST_APART_SECONDS)
    for series in readings:
        if series.field != UTILIZATION or series.gpu not in gpu_uuids:
            continue
        values = [
            value
            for time_ns, value in zip(series.times_ns, series.values, strict=True)
            if start_ns <= time_ns <= end_ns
        ]
        if len(values) >= needed and max(values) < LEAST_UTILIZATION_PERCENT:
            yield failure(
                "idle_while_challenged",
                f"{series.gpu} was at {max(values):.0f} % at most by its samples, while the "
                "challenge kept it busy.",
                "Let the agent read the GPUs that its containers get.",
                gpu=series.gpu,
                samples=len(values),
                highest_percent=max(values),
            )


def _readings(column: SampleColumns) -> Iterator[Readings]:
    start = 0
    for tags, length in zip(column.tags, column.lengths.tolist(), strict=True):
        times, values = (part[start : start + length] for part in (column.times_ns, column.values))
        order = np.argsort(times, kind="stable")
        start += length
        gpu = tags.get("uuid") or tags.get("gpu", "")
        yield Readings(column.field, gpu, times[order].tolist(), values[order].tolist())
