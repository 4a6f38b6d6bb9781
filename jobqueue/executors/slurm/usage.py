"""The usage of running jobs, which is read for all of them together."""

import time
from collections.abc import Mapping

import msgspec

from jobqueue.executors.base import AttemptUsage
from jobqueue.executors.slurm.api import SlurmAPI

READ_SECONDS = 10.0


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
        if now - self._read_at >= READ_SECONDS:
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
