"""Backfill: a later job passes an earlier one only if it can't delay it, against a reference."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from jobqueue.placement.decisions import Action
from jobqueue.placement.views import JobView, RunningJob, Snapshot
from tests.cast import NOON
from tests.unit.jobqueue.builders import appliance, gpu_uuid, job, plan

NEVER = 10**6

limits = st.one_of(st.none(), st.integers(1, 9))


def first_start(total: int, wanted: int, running: list[tuple[int, int]]) -> int:
    """The reference: the first minute at which `wanted` GPUs are free, by (GPUs, end) of jobs."""
    times = sorted({0, *(end for _, end in running)})
    return next(
        at for at in times if total - sum(gpus for gpus, end in running if end > at) >= wanted
    )


@given(
    running=st.lists(st.tuples(st.integers(1, 3), limits), min_size=1, max_size=4),
    wanted=st.integers(1, 8),
    small=st.integers(1, 4),
    limit=limits,
)
def test_a_job_passes_exactly_if_the_earlier_one_starts_no_later(
    running: list[tuple[int, int | None]], wanted: int, small: int, limit: int | None
) -> None:
    fleet, free = appliance("dgx-01"), 8
    taken: list[tuple[int, int]] = []
    for number, (gpus, end) in enumerate(running):
        if gpus > free:
            continue
        started = RunningJob(
            job_id=f"running-{number}",
            gpu_uuids=[gpu_uuid("dgx-01", slot) for slot in range(8 - free, 8 - free + gpus)],
            ends_at=None if end is None else NOON + timedelta(minutes=end),
        )
        fleet = replace(fleet, running=[*fleet.running, started])
        free -= gpus
        taken.append((gpus, NEVER if end is None else end))
    large = job("a-large", gpus=wanted)
    later = job(
        "b-small", gpus=small, time_limit=None if limit is None else timedelta(minutes=limit)
    )
    first, second = plan(Snapshot(now=NOON, appliances=[fleet], jobs=[large, later]))
    if wanted <= free:
        assert first.action is Action.ASSIGN
        return
    without = first_start(8, wanted, taken)
    ends = NEVER + 1 if limit is None else limit
    passes = small <= free and first_start(8, wanted, [*taken, (small, ends)]) <= without
    assert (second.action is Action.ASSIGN) == passes


def test_a_job_that_passes_uses_what_the_earlier_one_leaves_over() -> None:
    running = RunningJob(job_id="r", gpu_uuids=[gpu_uuid("dgx-01", slot) for slot in range(6)])
    fleet = replace(appliance("dgx-01"), running=[running])
    jobs: list[JobView] = [job("a", gpus=6), job("b", gpus=2), job("c", gpus=1)]
    actions = [
        decision.action for decision in plan(Snapshot(now=NOON, appliances=[fleet], jobs=jobs))
    ]
    assert actions == [Action.BIND, Action.ASSIGN, Action.BIND]
