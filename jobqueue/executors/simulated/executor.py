"""Simulated attempts: they load a simulated appliance and write the log of a training.

The environment of a batch attempt sets its duration (`SIM_SECONDS`), its exit code
(`SIM_EXIT_CODE`) and the time between lines of its log (`SIM_LINE_SECONDS`). An image whose name
contains `missing` is not found. Services run until stopped; with a health check they are healthy,
or as `SIM_HEALTH` says. One with `SIM_GPU_FAULT` that fails on a GPU that it shares by MPS ends the
others there, as a fatal fault does.
With a state file, attempts survive a restart of the agent as containers do, and their images stay.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock

import msgspec

from core.atomic_files import replace_file
from core.clock import Clock, from_ns, to_ns
from jobqueue.executors.base import (
    STOPPED,
    AttemptUsage,
    Challenges,
    ExecSession,
    ExecutorError,
    NoExecError,
    Probe,
)
from jobqueue.executors.simulated.challenge import SimulatedChallenges
from jobqueue.executors.simulated.output import SimulatedLog, fraction, number_of
from jobqueue.executors.simulated.storage import Disk, SimulatedStorage
from protocol.attempts import AttemptObservation, AttemptSpec, Health, ObservedState, StopReason
from protocol.gpu_slices import PartitionMode

log = logging.getLogger(__name__)

START_SECONDS = 2.0
HEALTHY_AFTER_SECONDS = 3.0
DEFAULT_SECONDS = 240.0
READ_BYTES_PER_SECOND = 100 * 2**20  # for each GPU
CHECKPOINT_SECONDS = 120.0
CHECKPOINT_BYTES_PER_SECOND = 1.5 * 2**30

OnWork = Callable[[AttemptSpec, datetime], None]
OnEnd = Callable[[str], None]
OnFault = Callable[[str], object]


class SimulatedAttempt(msgspec.Struct, kw_only=True):
    """The stored state of one attempt; the rest follows from the elapsed time.

    One with a `start_fault` never runs; `faulted_at_ns` is when a neighbor on its GPU ended it.
    """

    spec: AttemptSpec
    accepted_at_ns: int
    start_fault: str = ""
    stopped_at_ns: int | None = None
    stop_reason: StopReason = StopReason.USER
    faulted_at_ns: int | None = None

    def shares_gpu_with(self, other: "SimulatedAttempt") -> bool:
        """Return whether both are clients of one MPS server."""
        own, its = self.spec.gpu_slice, other.spec.gpu_slice
        return (
            own is not None
            and its is not None
            and own.gpu_uuid == its.gpu_uuid
            and own.mode is its.mode is PartitionMode.MPS
        )


class SimulatedExecutor:
    """Runs attempts on a simulated appliance.

    `on_work` is called with each attempt that starts to load the hardware, and the time; `on_end`
    with the id of an attempt that stops; `on_fault` with the UUID of a GPU on which a job causes a
    fatal fault. `disk` returns total and used bytes without images. `challenges` answers for the
    hardware.

    Attributes:
        start_fault: why no attempt can start now; "" if they can.
    """

    name = "simulated"
    names: Sequence[str] = (name,)

    def __init__(
        self,
        clock: Clock,
        *,
        on_work: OnWork,
        on_end: OnEnd,
        on_fault: OnFault = lambda _: None,
        state_path: Path | None = None,
        disk: Disk = lambda: (0, 0),
        challenges: Challenges | None = None,
    ) -> None:
        self.start_fault = ""
        self._challenges = challenges or SimulatedChallenges(clock)
        self._clock = clock
        self._on_work = on_work
        self._on_end = on_end
        self._on_fault = on_fault
        self._state_path = state_path
        self._lock = Lock()
        self._attempts = {attempt.spec.attempt_id: attempt for attempt in _read_state(state_path)}
        self._loading: set[str] = set()
        self._logs: dict[str, SimulatedLog] = {}
        self._storage: SimulatedStorage | None = None
        if state_path is not None:
            path = state_path.with_name("simulated-images.json")
            self._storage = SimulatedStorage(path, clock, in_use=self._images, disk=disk)
        self.observe()

    def start(self, spec: AttemptSpec) -> None:
        """Accept an attempt; it is starting for a moment, then runs."""
        with self._lock:
            if spec.attempt_id in self._attempts:
                return
            self._attempts[spec.attempt_id] = SimulatedAttempt(
                spec=spec, accepted_at_ns=to_ns(self._clock()), start_fault=self.start_fault
            )
            self._save()
        if self._storage and "missing" not in spec.image:
            self._storage.note_use(spec.image)

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        """Stop an attempt at once, without the grace period."""
        del grace_seconds
        now = self._clock()
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt and not _observe(attempt, now).state.is_final:
                attempt.stopped_at_ns, attempt.stop_reason = to_ns(now), reason
                self._save()
        self.observe()

    def observe(self) -> list[AttemptObservation]:
        """Return every attempt, and update the load of the hardware."""
        now = self._clock()
        with self._lock:
            observed = [_observe(attempt, now) for attempt in self._attempts.values()]
            if self._spread_faults(observed):
                observed = [_observe(attempt, now) for attempt in self._attempts.values()]
            for observation in observed:
                self._load(observation)
            return observed

    def container_ids(self) -> Mapping[str, str]:
        """Return nothing: simulated attempts are no containers."""
        return {}

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return the log until now; the same time always gives the same text."""
        now = self._clock()
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is None or attempt.start_fault or "missing" in attempt.spec.image:
                return b""
            if attempt_id not in self._logs:
                started_at = from_ns(_started_at_ns(attempt))
                self._logs[attempt_id] = SimulatedLog(attempt.spec, started_at=started_at)
            log_text = self._logs[attempt_id]
            observation = _observe(attempt, now)
            log_text.write_until(from_ns(observation.finished_at_ns or to_ns(now)))
            if observation.state.is_final:
                log_text.finish(observation)
            return log_text.read(offset, limit)

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return a usage in proportion to the request."""
        now = self._clock()
        with self._lock:
            attempt = self._attempts.get(attempt_id)
        if attempt is None or _observe(attempt, now).state is not ObservedState.RUNNING:
            return None
        running_seconds = (to_ns(now) - _started_at_ns(attempt)) / 1e9
        share = 0.7 + 0.2 * fraction(f"{attempt_id}:{int(running_seconds)}")
        filled = min(1.0, 0.1 + running_seconds / 30)
        return AttemptUsage(
            cpu_percent=round(100 * share * attempt.spec.cpus, 1),
            memory_bytes=int(0.8 * filled * attempt.spec.memory_bytes),
            container=_rates(attempt.spec, running_seconds),
        )

    async def execute(self, attempt_id: str, session: ExecSession) -> int:  # noqa: ARG002
        """Refuse: there is no container."""
        raise NoExecError("This job is simulated: it has no container for a terminal or files.")

    def remove(self, attempt_id: str) -> None:
        """Forget an attempt."""
        with self._lock:
            if self._attempts.pop(attempt_id, None) is not None:
                self._save()
            self._logs.pop(attempt_id, None)
            self._unload(attempt_id)

    def storage(self) -> SimulatedStorage | None:
        """Return the images of its attempts; None without a state file."""
        return self._storage

    def probe(self) -> Probe | None:
        """Return what tells whether attempts can start now."""
        return lambda _order: self.start_fault

    def challenges(self) -> Challenges | None:
        """Return what answers for the simulated hardware."""
        return self._challenges

    def _images(self) -> set[str]:
        """Return the images of the attempts that run."""
        now = self._clock()
        with self._lock:
            return {
                attempt.spec.image
                for attempt in self._attempts.values()
                if _observe(attempt, now).state is ObservedState.RUNNING
            }

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _load(self, observation: AttemptObservation) -> None:
        attempt_id = observation.attempt_id
        if observation.state is not ObservedState.RUNNING:
            self._unload(attempt_id)
        elif attempt_id not in self._loading:
            self._loading.add(attempt_id)
            attempt = self._attempts[attempt_id]
            self._on_work(attempt.spec, from_ns(_started_at_ns(attempt)))

    def _spread_faults(self, observed: Sequence[AttemptObservation]) -> bool:
        """End the neighbors of attempts that have caused a fault; return whether there are any."""
        harmed: list[SimulatedAttempt] = []
        for seen in observed:
            cause = self._attempts[seen.attempt_id]
            if "SIM_GPU_FAULT" not in cause.spec.env or seen.reason != "exit_code":
                continue
            neighbors = [
                self._attempts[other.attempt_id]
                for other in observed
                if other.state is ObservedState.RUNNING
                and (other.started_at_ns or 0) < (seen.finished_at_ns or 0)
                and cause.shares_gpu_with(self._attempts[other.attempt_id])
            ]
            for neighbor in neighbors:
                neighbor.faulted_at_ns = seen.finished_at_ns
            if neighbors and cause.spec.gpu_slice is not None:
                self._on_fault(cause.spec.gpu_slice.gpu_uuid)
            harmed += neighbors
        if harmed:
            self._save()
        return bool(harmed)

    def _unload(self, attempt_id: str) -> None:
        if attempt_id in self._loading:
            self._loading.remove(attempt_id)
            self._on_end(attempt_id)

    def _save(self) -> None:
        if self._state_path is None:
            return
        content = msgspec.json.encode(list(self._attempts.values()))
        try:
            replace_file(self._state_path, content, is_durable=False)
        except OSError as error:
            raise ExecutorError(f"{self._state_path} can't be written: {error}") from error


def _read_state(path: Path | None) -> list[SimulatedAttempt]:
    if path is None or not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[SimulatedAttempt])
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("can't read %s, dropping its attempts: %s", path, error)
        return []


def _observe(attempt: SimulatedAttempt, now: datetime) -> AttemptObservation:
    spec, now_ns, started_at_ns = attempt.spec, to_ns(now), _started_at_ns(attempt)
    observed = partial(AttemptObservation, attempt_id=spec.attempt_id)
    stopped_at_ns = attempt.stopped_at_ns
    if stopped_at_ns is not None:
        has_run = stopped_at_ns >= started_at_ns
        state, message = STOPPED[attempt.stop_reason]
        return observed(
            state=state,
            exit_code=143 if has_run else None,
            reason=attempt.stop_reason.value,
            message=message,
            started_at_ns=started_at_ns if has_run else None,
            finished_at_ns=stopped_at_ns,
        )
    if now_ns < started_at_ns:
        return observed(state=ObservedState.STARTING)
    if attempt.start_fault:
        return observed(
            state=ObservedState.FAILED,
            reason="start_failed",
            message=f"Can't start the container: {attempt.start_fault}.",
            finished_at_ns=started_at_ns,
        )
    if "missing" in spec.image:
        return observed(
            state=ObservedState.FAILED,
            reason="image_not_found",
            message=f"Image {spec.image!r} not found. Check its name and tag.",
            finished_at_ns=started_at_ns,
        )
    seconds = max(0.0, number_of(spec, "SIM_SECONDS", DEFAULT_SECONDS))
    faulted_at_ns = attempt.faulted_at_ns
    ended_at_ns = faulted_at_ns or started_at_ns + int(seconds * 1e9)
    if faulted_at_ns is None and (spec.is_service or now_ns < ended_at_ns):
        health = _health(spec, running_seconds=(now_ns - started_at_ns) / 1e9)
        message = "Health check: simulated failure." if health is Health.UNHEALTHY else ""
        return observed(
            state=ObservedState.RUNNING,
            started_at_ns=started_at_ns,
            health=health,
            message=message,
        )
    exit_code = int(number_of(spec, "SIM_EXIT_CODE", 0)) if faulted_at_ns is None else 1
    return observed(
        state=ObservedState.FAILED if exit_code else ObservedState.SUCCEEDED,
        exit_code=exit_code,
        reason="exit_code" if exit_code else "",
        message=f"The command exited with code {exit_code}. See the log." if exit_code else "",
        started_at_ns=started_at_ns,
        finished_at_ns=ended_at_ns,
    )


def _health(spec: AttemptSpec, *, running_seconds: float) -> Health:
    if spec.health_check is None:
        return Health.UNKNOWN
    if running_seconds < HEALTHY_AFTER_SECONDS:
        return Health.STARTING
    return Health.UNHEALTHY if spec.env.get("SIM_HEALTH") == "unhealthy" else Health.HEALTHY


def _started_at_ns(attempt: SimulatedAttempt) -> int:
    return attempt.accepted_at_ns + int(START_SECONDS * 1e9)


def _rates(spec: AttemptSpec, running_seconds: float) -> dict[str, float]:
    """Return rates of a job that reads its data over the network and writes checkpoints."""
    noise = 0.6 + 0.4 * fraction(f"{spec.attempt_id}:rates:{int(running_seconds)}")
    is_checkpoint = running_seconds % CHECKPOINT_SECONDS < CHECKPOINT_SECONDS / 8
    reads = noise * READ_BYTES_PER_SECOND * max(1, len(spec.gpu_uuids))
    writes = CHECKPOINT_BYTES_PER_SECOND if is_checkpoint else 2.0**20
    return {
        "read_bytes_per_second": 0.2 * reads,
        "written_bytes_per_second": noise * writes,
        "received_bytes_per_second": reads,
        "sent_bytes_per_second": 0.02 * reads,
    }
