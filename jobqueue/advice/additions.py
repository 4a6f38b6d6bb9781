"""What one more appliance would have changed: replays of the recorded jobs on today's hardware."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, VedetteError
from jobqueue.advice.figures import Addition, FleetFigures, Waiting
from jobqueue.models import Job
from jobqueue.simulation.bounded import Report
from jobqueue.simulation.export import record
from jobqueue.simulation.recording import RecordedAppliance, Recording, add_appliances
from jobqueue.simulation.replay import Replay
from jobqueue.usage.measuring import Period
from protocol.gpu_slices import WHOLE_GPU

# More jobs than that are replayed of the end of the period only.
MAX_JOBS = 100_000
# A replay of each, besides that of today's appliances.
MAX_MODELS = 5
MAX_REPLAY_SECONDS = 900.0


class _TookTooLongError(VedetteError):
    """The replays took longer than they may."""


def add_replays(
    session: Session,
    tenant_id: str,
    figures: FleetFigures,
    *,
    report: Report,
    now: datetime,
    max_seconds: float = MAX_REPLAY_SECONDS,
) -> None:
    """Add to figures what one more appliance of each model that jobs waited for would have changed.

    Models with the longest queues come first. What takes too long is left out, with the reason.
    """
    waited = {row.gpu_model: sum(row.waiting) for row in figures.models if any(row.waiting)}
    if not waited:
        return
    period = _replayed_period(session, tenant_id, Period(figures.since, figures.until))
    recording, _ = record(session, tenant_id, period, now=now)
    like = _like(recording.appliances)
    models = sorted(waited.keys() & like.keys(), key=lambda name: -waited[name])[:MAX_MODELS]
    if not models or not recording.jobs:
        return
    deadline, count = time.monotonic() + max_seconds, len(models) + 1

    def replayed(number: int, appliances: list[RecordedAppliance]) -> Waiting:
        def report_part(part: float) -> None:
            if time.monotonic() > deadline:
                raise _TookTooLongError("The replays took too long.")
            report((number + part) / count)

        changed = Recording(
            appliances=appliances,
            rules=recording.rules,
            projects=recording.projects,
            reservations=recording.reservations,
            jobs=recording.jobs,
        )
        return _waiting(changed, report_part)

    figures.replayed_since = period.since
    try:
        today = replayed(0, recording.appliances)
        for number, model in enumerate(models, 1):
            name = like[model].name
            changed = replayed(number, add_appliances(recording, f"1x{name}"))
            figures.additions.append(
                Addition(
                    gpu_model=model,
                    appliance=name,
                    gpus=len(like[model].gpus),
                    today=today,
                    changed=changed,
                )
            )
    except _TookTooLongError:
        figures.problem = (
            f"The replays took more than {max_seconds / 60:.0f} minutes. What one more appliance "
            f"would have changed is shown for {len(figures.additions)} of {len(models)} GPU models."
        )
    except InvalidInputError as error:
        figures.problem = error.message


def _replayed_period(session: Session, tenant_id: str, period: Period) -> Period:
    """Return the end of a period in which at most `MAX_JOBS` jobs were submitted."""
    newest = (
        select(Job.submitted_at)
        .where(
            Job.tenant_id == tenant_id,
            Job.submitted_at >= period.since,
            Job.submitted_at < period.until,
        )
        .order_by(Job.submitted_at.desc())
    )
    before = session.scalar(newest.offset(MAX_JOBS).limit(1))
    return period if before is None else Period(before, period.until)


def _like(appliances: Sequence[RecordedAppliance]) -> Mapping[str, RecordedAppliance]:
    """Return for each GPU model the appliance with only such GPUs whose size is most common."""
    by_model: dict[str, list[RecordedAppliance]] = {}
    for appliance in appliances:
        names = {gpu.model for gpu in appliance.gpus}
        if len(names) == 1:
            by_model.setdefault(names.pop(), []).append(appliance)
    chosen: dict[str, RecordedAppliance] = {}
    for model, rows in by_model.items():
        sizes = Counter(len(row.gpus) for row in rows)
        common = max(sizes, key=lambda size: (sizes[size], size))
        chosen[model] = next(row for row in rows if len(row.gpus) == common)
    return chosen


def _waiting(recording: Recording, report: Report) -> Waiting:
    """Replay a recording and return the waits of its jobs with GPUs."""
    timeline = Replay(recording, report).run()
    jobs = recording.jobs
    submitted = np.array([job.submitted_seconds for job in jobs])
    gpus = np.array([job.gpus * job.nodes * job.gpu_milli / WHOLE_GPU for job in jobs])
    waits = timeline.starts - submitted
    started = ~np.isnan(waits) & (gpus > 0)
    p50, p95 = np.percentile(waits[started], (50, 95)).tolist() if started.any() else (None, None)
    return Waiting(
        jobs=int(started.sum()),
        wait_seconds_p50=p50,
        wait_seconds_p95=p95,
        waiting_gpu_hours=round(float((waits * gpus)[started].sum()) / 3600, 3),
    )
