"""The timeline of a replay: when each job started and ended."""

from dataclasses import dataclass, field

import numpy as np

from jobqueue.simulation.recording import Recording


@dataclass(slots=True)
class Timeline:
    """What happened; NaN where a job never started.

    Attributes:
        starts: when each job started for the last time, in seconds.
        ends: when it ended.
        models: the index in `model_names` of the GPUs of each job; -1 without GPUs.
        lost: the runs that preemption cut off: the job, from, until.
        impossible: the jobs that fit no appliance, even if it is idle.
    """

    starts: np.ndarray
    ends: np.ndarray
    models: np.ndarray
    model_names: list[str]
    lost: list[tuple[int, float, float]] = field(default_factory=list)
    impossible: list[int] = field(default_factory=list)


def empty_timeline(recording: Recording) -> Timeline:
    """Return the timeline of a replay in which nothing has happened yet."""
    count = len(recording.jobs)
    names = {gpu.model for appliance in recording.appliances for gpu in appliance.gpus}
    return Timeline(
        starts=np.full(count, np.nan),
        ends=np.full(count, np.nan),
        models=np.full(count, -1, np.int16),
        model_names=sorted(names),
    )
