"""The connector's own jobs as the controller shows them, their usage, and how often it is asked."""

import time
from collections import defaultdict
from collections.abc import Mapping

import msgspec

from core.clock import Clock, to_ns
from jobqueue.executors.base import AttemptUsage, ExecutorError
from jobqueue.executors.slurm.api import SlurmAPI, SlurmJob

# How often the controller is asked for the own jobs, and while one was submitted or stopped within
# the last seconds.
READ_SECONDS = 3.0
EAGER_READ_SECONDS = 1.0
EAGER_SECONDS = 10.0
# A job that does not end is cancelled again after this time.
CANCEL_AGAIN_SECONDS = 5.0
USAGE_SECONDS = 10.0


class OwnJobs:
    """The jobs whose names begin with a prefix.

    Attributes:
        by_attempt: what was read last.
        answering_since_ns: since when the controller answers; None while it does not.
    """

    def __init__(self, api: SlurmAPI, prefix: str, clock: Clock) -> None:
        self._api, self._prefix, self._clock = api, prefix, clock
        self._read_at = float("-inf")
        self._changed_at = float("-inf")
        self._unanswered: ExecutorError | None = None
        self._cancelled_at: dict[int, float] = {}
        self.by_attempt: dict[str, list[SlurmJob]] = {}
        self.answering_since_ns: int | None = None

    def of(self, attempt_id: str) -> list[SlurmJob]:
        """Return the jobs of an attempt."""
        return self.by_attempt.get(attempt_id, [])

    def has_elsewhere(self, attempt_id: str, job_id: int) -> bool:
        """Return whether a job is another attempt's: a controller that was killed reuses ids."""
        return any(
            job.job_id == job_id
            for other_id, jobs in self.by_attempt.items()
            if other_id != attempt_id
            for job in jobs
        )

    def refresh(self, *, is_forced: bool = False) -> None:
        """Read the jobs of the controller, if that is due.

        Raises:
            ExecutorError: it does not answer, or did not when it was asked last.
        """
        now = time.monotonic()
        is_eager = now - self._changed_at < EAGER_SECONDS
        interval_seconds = EAGER_READ_SECONDS if is_eager else READ_SECONDS
        if now - self._read_at < interval_seconds and not is_forced:
            if self._unanswered is not None:
                raise self._unanswered
            return
        try:
            jobs, self._unanswered = self._api.jobs(), None
        except ExecutorError as error:
            self._unanswered, self._read_at = error, time.monotonic()
            self.answering_since_ns = None
            raise
        self.answering_since_ns = self.answering_since_ns or to_ns(self._clock())
        by_attempt: dict[str, list[SlurmJob]] = defaultdict(list)
        for job in jobs:
            if job.name.startswith(self._prefix):
                attempt_id, _, _ = job.name.removeprefix(self._prefix).rpartition("-")
                by_attempt[attempt_id].append(job)
        self.by_attempt, self._read_at = dict(by_attempt), now
        self._cancelled_at = {
            job_id: at
            for job_id, at in self._cancelled_at.items()
            if now - at < CANCEL_AGAIN_SECONDS
        }

    def cancel(self, job_id: int, *, is_killed: bool = False) -> None:
        """Cancel a job, unless that was asked a moment ago; kill its processes first if asked."""
        now = time.monotonic()
        if now - self._cancelled_at.get(job_id, float("-inf")) < CANCEL_AGAIN_SECONDS:
            return
        self._cancelled_at[job_id] = now
        if is_killed:
            self._api.signal(job_id, "KILL")
        self._api.cancel(job_id)
        self.expect_change()

    def expect_change(self) -> None:
        """Read the jobs with the next step, and often for a while."""
        self._changed_at, self._read_at = time.monotonic(), float("-inf")


class UsageReader:
    """Reads CPU time and memory, and makes shares of the CPU from two readings."""

    def __init__(self, api: SlurmAPI) -> None:
        self._api = api
        self._read_at = float("-inf")
        self._usage: dict[str, AttemptUsage] = {}
        self._cpu_seconds: dict[str, tuple[float, float]] = {}

    def of(self, attempt_id: str, running: Mapping[int, str]) -> AttemptUsage | None:
        """Return the usage of an attempt, if its job runs.

        Args:
            attempt_id: the attempt.
            running: the attempts of all running jobs, by the id of the job.

        Raises:
            ExecutorError: Slurm does not answer.
        """
        if attempt_id not in running.values():
            self._usage.pop(attempt_id, None)
            return None
        now = time.monotonic()
        if now - self._read_at >= USAGE_SECONDS:
            self._read_at = now
            self._read(running, now)
        return self._usage.get(attempt_id)

    def forget(self, attempt_id: str) -> None:
        """Forget an attempt that was removed."""
        self._cpu_seconds.pop(attempt_id, None)

    def _read(self, running: Mapping[int, str], now: float) -> None:
        usage = self._api.usage(list(running))
        self._usage = {}
        for job_id, (cpu_seconds, used) in usage.items():
            attempt_id = running[job_id]
            before_at, before = self._cpu_seconds.get(attempt_id, (now, cpu_seconds))
            self._cpu_seconds[attempt_id] = (now, cpu_seconds)
            ratio = (cpu_seconds - before) / (now - before_at) if now > before_at else 0.0
            self._usage[attempt_id] = msgspec.structs.replace(
                used, cpu_percent=max(0.0, round(100 * ratio, 1))
            )
