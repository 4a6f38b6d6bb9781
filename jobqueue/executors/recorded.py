"""The common part of executors that hand attempts to another scheduler: records, logs, outcomes.

A *record* is a small file for each attempt in the data folder: why it was stopped, how it ended,
and how far its output was copied. What runs is found by names: an app, a job and a task all have
the attempt's id in their name, so attempts are adopted after a restart even without records.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Generic, NamedTuple, TypeVar

import msgspec

from core.atomic_files import replace_file
from core.clock import Clock, to_ns, utc_now
from jobqueue.executors.base import (
    STOPPED,
    AttemptUsage,
    Challenges,
    ContainerStorage,
    ExecSession,
    ExecutorError,
    InvalidError,
    NoExecError,
    Probe,
    UncertainError,
)
from jobqueue.executors.confinement import without_host_devices
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES, TRUNCATION_NOTICE, safe_path
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState, StopReason

log = logging.getLogger(__name__)

# After a write whose answer was lost, the scheduler shows within this time whether it happened.
UNCERTAIN_SECONDS = 60.0
# An ended attempt whose output can't be read is reported with a note after this time.
LOG_SECONDS = 60.0
# How often the output of a running attempt is copied.
COPY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSite:
    """The place of this agent's attempts on a scheduler.

    Attributes:
        owner: the appliance's id, by which this agent knows its own attempts.
        state_dir: folder of records and output.
        stop_grace_seconds: between SIGTERM and SIGKILL, unless the job has its own.
        clock: the time.
    """

    owner: str
    state_dir: Path
    stop_grace_seconds: float = 10.0
    clock: Clock = utc_now

    def grace_seconds_of(self, spec: AttemptSpec) -> int:
        """Return the time between SIGTERM and SIGKILL of an attempt."""
        return spec.stop_grace_seconds or max(1, round(self.stop_grace_seconds))


class Ending(NamedTuple):
    """The reason why an attempt ended without success."""

    reason: str
    message: str
    exit_code: int | None = None


class Record(msgspec.Struct, kw_only=True):
    """The stored record of an attempt.

    Attributes:
        run: the scheduler's name of what ran of it first.
        session: of the scheduler, to which it was submitted, if a restart makes the scheduler
            forget it; stored before it is submitted.
        is_accepted: the scheduler has confirmed that it has it.
    """

    attempt_id: str
    image: str = ""
    stop_reason: StopReason | None = None
    started_at_ns: int | None = None
    outcome: AttemptObservation | None = None
    uncertain_until_ns: int = 0
    read_bytes: dict[str, int] = {}
    spool_bytes: int = 0
    has_note: bool = False
    run: str = ""
    session: str = ""
    is_accepted: bool = False


S = TypeVar("S", bound=ExecutorSite)


class RecordedExecutor(ABC, Generic[S]):
    """An executor over a scheduler; subclasses speak its API.

    Attributes:
        name: of the scheduler, in records' folders and messages.
        names: see `Executor`.
        is_submit_idempotent: whether two concurrent submissions have the effect of one.
    """

    name: str
    names: Sequence[str]
    is_submit_idempotent = False

    def __init__(self, site: S) -> None:
        self._site = site
        self._folder = site.state_dir / self.name
        self._lock = RLock()
        self._records = self._load()
        self._listed: set[str] = set()
        self._copied_at: dict[str, float] = {}

    @abstractmethod
    def _unsupported(self, spec: AttemptSpec) -> str:
        """Return why this scheduler can't run an attempt, or ""."""

    @abstractmethod
    def _submit(self, spec: AttemptSpec) -> None:
        """Submit an attempt that the scheduler may have already; that changes nothing."""

    @abstractmethod
    def _stop(self, attempt_id: str) -> None:
        """Stop an attempt, which the scheduler may not have."""

    @abstractmethod
    def _delete(self, attempt_id: str) -> None:
        """Delete an attempt, which the scheduler may not have."""

    @abstractmethod
    def _read(self) -> Mapping[str, AttemptObservation]:
        """Return the own attempts that the scheduler has; a failure may lack its reason."""

    def start(self, spec: AttemptSpec) -> None:
        """Submit an attempt, unless the scheduler has it."""
        with self._lock:
            record = self._record(spec.attempt_id)
            if record.outcome is not None or record.stop_reason is not None:
                return
            if spec.attempt_id in self._listed:
                return
            now_ns = to_ns(self._site.clock())
            if now_ns < record.uncertain_until_ns:
                raise ExecutorError(f"waiting whether {self.name} has {spec.attempt_id}")
            record.image = spec.image
            try:
                reason = self._unsupported(spec)
                if not reason:
                    self._submit(spec)
            except InvalidError as error:
                reason = str(error)
            except UncertainError:
                if not self.is_submit_idempotent:
                    record.uncertain_until_ns = now_ns + int(UNCERTAIN_SECONDS * 1e9)
                raise
            finally:
                self._save(record)
            if reason:
                self._end(record, ObservedState.FAILED, Ending("invalid_job", reason))

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        """Stop an attempt; the grace is the one of its submission."""
        del grace_seconds
        with self._lock:
            record = self._records.get(attempt_id)
            if record is None or record.outcome is not None:
                return
            if record.stop_reason is None:
                record.stop_reason = reason
                self._save(record)
            self._stop(attempt_id)

    def observe(self) -> list[AttemptObservation]:
        """Return what the scheduler shows, and the attempts whose end is recorded."""
        with self._lock:
            observations = self._read()
            self._listed = set(observations)
            observed = {
                attempt_id: self._settle(self._record(attempt_id), seen)
                for attempt_id, seen in observations.items()
            }
            for attempt_id, record in self._records.items():
                if record.outcome is None and record.stop_reason and attempt_id not in observations:
                    self._end(record, ObservedState.STOPPED, Ending("", ""))
                if record.outcome is not None:
                    observed[attempt_id] = record.outcome
            return list(observed.values())

    def container_ids(self) -> Mapping[str, str]:
        """Return nothing: schedulers don't tell the ids of containers."""
        return {}

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return output of the attempt that was copied."""
        with self._lock:
            record = self._records.get(attempt_id)
            if record is None:
                return b""
            try:
                if self._is_copy_due(record):
                    self._copy_output(record)
            except ExecutorError as error:
                ended_at_ns = record.outcome.finished_at_ns if record.outcome else None
                now_ns = to_ns(self._site.clock())
                if ended_at_ns is None or now_ns - ended_at_ns < LOG_SECONDS * 1e9:
                    raise
                self._note(record, f"[The rest of the output can't be read: {error}]\n")
            path = self._path(attempt_id, ".log")
            if not path.exists():
                return b""
            with path.open("rb") as spool:
                spool.seek(offset)
                return spool.read(max(0, min(limit, record.spool_bytes - offset)))

    def _is_copy_due(self, record: Record) -> bool:
        """Return whether to ask for output: about once a second while the attempt runs."""
        now = time.monotonic()
        is_due = now - self._copied_at.get(record.attempt_id, -COPY_SECONDS) >= COPY_SECONDS
        if is_due:
            self._copied_at[record.attempt_id] = now
        return is_due or record.outcome is not None

    def usage(self, attempt_id: str) -> AttemptUsage | None:  # noqa: ARG002
        """Return None: the scheduler does not tell."""
        return None

    async def execute(self, attempt_id: str, session: ExecSession) -> int:  # noqa: ARG002
        """Refuse: the scheduler starts attempts, and runs nothing in them."""
        raise NoExecError(f"Jobs that {self.name} runs have no terminal.")

    def remove(self, attempt_id: str) -> None:
        """Delete the attempt from the scheduler, with its record and output."""
        with self._lock:
            if attempt_id not in self._records:
                return
            self._delete(attempt_id)
            self._records.pop(attempt_id)
            self._listed.discard(attempt_id)
            self._copied_at.pop(attempt_id, None)
            for suffix in (".json", ".log"):
                self._path(attempt_id, suffix).unlink(missing_ok=True)

    def probe(self) -> Probe | None:
        """Return None: the scheduler chooses where an attempt runs."""
        return None

    def challenges(self) -> Challenges | None:
        """Return None: the scheduler chooses where a container runs."""
        return None

    def storage(self) -> ContainerStorage | None:
        """Return None: the scheduler cleans up what it stores."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close connections; apps and jobs continue."""

    def _settle(self, record: Record, seen: AttemptObservation) -> AttemptObservation:
        """Return the observation with what the record knows; a final one is recorded."""
        if record.outcome is not None:
            if not seen.state.is_final:
                # A submission whose answer was lost has arrived after the end.
                self._stop(record.attempt_id)
            return record.outcome
        if seen.state is ObservedState.RUNNING and record.started_at_ns is None:
            # Not every scheduler tells when: then it is the first sight.
            record.started_at_ns = seen.started_at_ns or to_ns(self._site.clock())
            self._save(record)
        if seen.state.is_final:
            return self._end(record, seen.state, self._ending(record, seen), seen)
        has_run = record.started_at_ns is not None
        state = ObservedState.RUNNING if has_run else seen.state
        return msgspec.structs.replace(seen, state=state, started_at_ns=record.started_at_ns)

    def _ending(self, record: Record, seen: AttemptObservation) -> Ending:  # noqa: ARG002
        """Return why an attempt ended, as far as the scheduler tells."""
        return Ending(seen.reason, seen.message, seen.exit_code)

    def _end(
        self,
        record: Record,
        state: ObservedState,
        ending: Ending,
        seen: AttemptObservation | None = None,
    ) -> AttemptObservation:
        if record.stop_reason is not None:
            state, message = STOPPED[record.stop_reason]
            ending = Ending(record.stop_reason.value, message)
        finished_at_ns = seen.finished_at_ns if seen is not None else None
        if seen is not None and record.started_at_ns is None:
            record.started_at_ns = seen.started_at_ns
        record.outcome = AttemptObservation(
            attempt_id=record.attempt_id,
            state=state,
            exit_code=0 if state is ObservedState.SUCCEEDED else ending.exit_code,
            reason=ending.reason,
            message=ending.message,
            started_at_ns=record.started_at_ns,
            finished_at_ns=finished_at_ns or to_ns(self._site.clock()),
            node=seen.node if seen is not None else "",
            gpu_indices=seen.gpu_indices if seen is not None else [],
        )
        self._save(record)
        return record.outcome

    @abstractmethod
    def _copy_output(self, record: Record) -> None:
        """Append new output of an attempt to its spool, by `_append`."""

    def _append_bounded(self, record: Record, chunk: bytes) -> bool:
        """Append output; return whether there is room for more of it."""
        self._append(record, chunk)
        is_full = record.spool_bytes >= SPOOL_LIMIT_BYTES
        if is_full:
            self._append(record, TRUNCATION_NOTICE)
        return not is_full

    def _note(self, record: Record, text: str) -> None:
        if not record.has_note:
            record.has_note = True
            self._append(record, text.encode())

    def _append(self, record: Record, chunk: bytes) -> None:
        """Write at the recorded size: what a crash left behind it is written over."""
        path = self._path(record.attempt_id, ".log")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.touch()
            with path.open("r+b") as spool:
                spool.seek(record.spool_bytes)
                spool.write(chunk)
        except OSError as error:
            raise ExecutorError(f"{path} can't be written: {error}") from error
        record.spool_bytes += len(chunk)
        self._save(record)

    def _record(self, attempt_id: str) -> Record:
        self._path(attempt_id, ".json")
        return self._records.setdefault(attempt_id, Record(attempt_id=attempt_id))

    def _save(self, record: Record) -> None:
        path = self._path(record.attempt_id, ".json")
        try:
            replace_file(path, msgspec.json.encode(record), is_durable=False)
        except OSError as error:
            raise ExecutorError(f"{path} can't be written: {error}") from error

    def _load(self) -> dict[str, Record]:
        records = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("can't read %s: %s", path, error)
                continue
            records[record.attempt_id] = record
        return records

    def _path(self, attempt_id: str, suffix: str) -> Path:
        return safe_path(self._folder, attempt_id, suffix)


def environment_of(spec: AttemptSpec) -> dict[str, str]:
    """Return the environment of an attempt, whose GPUs the scheduler chooses."""
    environment = without_host_devices({**spec.env, **spec.secrets})
    if spec.gpu_uuids:
        del environment["NVIDIA_VISIBLE_DEVICES"]
    return {
        **environment,
        "VEDETTE_ATTEMPT_ID": spec.attempt_id,
        "VEDETTE_JOB_ID": spec.job_id,
    }
