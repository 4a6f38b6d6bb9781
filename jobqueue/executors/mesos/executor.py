"""The common part of the executors of Marathon, Metronome and Chronos, over Mesos' agent."""

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from jobqueue.executors.abilities import refusal
from jobqueue.executors.base import AttemptUsage, ExecSession, ExecutorError, NoExecError
from jobqueue.executors.mesos.agent import MesosAgent, explain
from jobqueue.executors.recorded import Ending, ExecutorSite, Record, RecordedExecutor
from jobqueue.executors.scheduler_api import SchedulerAPI
from jobqueue.executors.settings import ServerSettings
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
NO_AGENT = (
    "[The output is in the sandbox of the Mesos task, which this agent can't read: "
    "set [mesos] url in agent.toml.]\n"
)
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(ExecutorSite):
    """The place of this appliance in its Mesos cluster.

    Attributes:
        hostname: as the Mesos agent on this appliance reports it; `*` runs attempts on any agent,
            for a portal's appliance that stands for a whole cluster.
        mesos: the Mesos agent's API, for output, use and reasons.
        pids_limit: most processes of a container under Docker's containerizer.
    """

    hostname: str
    mesos: MesosAgent | None = None
    pids_limit: int = 4096

    @property
    def is_anywhere(self) -> bool:
        """Return whether attempts may run on any Mesos agent."""
        return self.hostname == "*"


class MesosExecutor(RecordedExecutor[Site]):
    """An executor over a scheduler of Mesos; subclasses speak its API."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._cpu_seconds: dict[str, tuple[float, float]] = {}

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return the use of the attempt's tasks on this appliance's Mesos agent."""
        if self._site.mesos is None:
            return None
        statistics = self._site.mesos.statistics(attempt_id)
        if not statistics:
            self._cpu_seconds.pop(attempt_id, None)
            return None
        cpu = sum(row["cpus_user_time_secs"] + row["cpus_system_time_secs"] for row in statistics)
        now = float(statistics[0].get("timestamp", time.time()))
        before_at, before = self._cpu_seconds.get(attempt_id, (now, cpu))
        self._cpu_seconds[attempt_id] = (now, cpu)
        percent = 100 * (cpu - before) / (now - before_at) if now > before_at else 0.0
        memory = sum(int(row.get("mem_rss_bytes", 0)) for row in statistics)
        return AttemptUsage(cpu_percent=max(0.0, round(percent, 1)), memory_bytes=memory)

    async def execute(self, attempt_id: str, session: ExecSession) -> int:  # noqa: ARG002
        """Refuse: Mesos' schedulers start tasks, and run nothing in them."""
        raise NoExecError("Jobs that Marathon, Metronome or Chronos runs have no terminal.")

    def remove(self, attempt_id: str) -> None:
        """Delete the attempt from the scheduler, with its record and output."""
        self._cpu_seconds.pop(attempt_id, None)
        super().remove(attempt_id)

    def _ending(self, record: Record, seen: AttemptObservation) -> Ending:
        """Return the reason of a failure, which only the Mesos agent may know."""
        if seen.state is not ObservedState.FAILED or seen.reason or record.stop_reason:
            return Ending(seen.reason, seen.message, seen.exit_code)
        message = f"The command failed; {self.name} does not report why. See the log."
        if self._site.mesos is None:
            return Ending("exit_code", f"{message} Set [mesos] url to learn it.")
        try:
            status = self._site.mesos.status_message(record.attempt_id)
        except ExecutorError as error:
            log.warning("can't learn why %s failed: %s", record.attempt_id, error)
            status = ""
        return explain(record.image, status) if status else Ending("exit_code", message)

    def _copy_output(self, record: Record) -> None:
        """Append new output of all tasks of the attempt to its spool."""
        mesos = self._site.mesos
        if mesos is None:
            self._note(record, NO_AGENT)
            return
        if record.spool_bytes >= SPOOL_LIMIT_BYTES:
            return
        for directory in mesos.sandboxes(record.attempt_id):
            for name in ("stdout", "stderr"):
                path = f"{directory}/{name}"
                while chunk := mesos.read(
                    path, offset=record.read_bytes.get(path, 0), limit=CHUNK_BYTES
                ):
                    record.read_bytes[path] = record.read_bytes.get(path, 0) + len(chunk)
                    if not self._append_bounded(record, chunk):
                        return


class JobsExecutor(MesosExecutor):
    """An executor over a scheduler of one-time jobs, which are named after their attempts.

    Attributes:
        title: the name of the scheduler in messages.
    """

    title: ClassVar[str]

    def __init__(self, settings: ServerSettings, site: Site) -> None:
        super().__init__(site)
        self._api = SchedulerAPI(self.title, settings)

    def close(self) -> None:
        """Close the connections; jobs continue."""
        self._api.close()

    def _unsupported(self, spec: AttemptSpec) -> str:
        if spec.is_service:
            return f"{self.title} does not run services. Configure [marathon] on this appliance."
        return refusal(self.name, spec)

    def _job_name(self, attempt_id: str) -> str:
        return f"vedette.{self._site.owner}.{attempt_id}"


def volumes_of(spec: AttemptSpec) -> list[dict[str, str]]:
    """Return the mounts of an attempt, as all schedulers of Mesos take them."""
    return [
        {
            "hostPath": mount.source,
            "containerPath": mount.target,
            "mode": "RO" if mount.is_read_only else "RW",
        }
        for mount in spec.mounts
    ]


def ns_of(text: str) -> int:
    """Return a time of a scheduler, in ISO 8601."""
    return to_ns(datetime.fromisoformat(text))


def memory_of(spec: AttemptSpec) -> int:
    """Return the memory in MiB, as the schedulers count it."""
    return -(-spec.memory_bytes // MEBIBYTE)
