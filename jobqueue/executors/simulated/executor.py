"""Simulated attempts: they load a simulated appliance and write the log of a training.

The environment of a batch attempt sets its duration (`SIM_SECONDS`), its exit code
(`SIM_EXIT_CODE`) and the time between lines of its log (`SIM_LINE_SECONDS`). An image whose name
contains `missing` is not found. Services run until stopped; with a health check they are healthy,
or as `SIM_HEALTH` says.
With a state file, attempts survive a restart of the agent as containers do, and their images stay.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from zlib import crc32

import msgspec

from core.atomic_files import replace_file
from core.clock import Clock, from_ns, to_ns
from jobqueue.executors.base import (
    STOPPED,
    AttemptUsage,
    ExecSession,
    ExecutorError,
    NoExecError,
    Probe,
)
from jobqueue.executors.simulated.storage import Disk, SimulatedStorage
from protocol.attempts import AttemptObservation, AttemptSpec, Health, ObservedState, StopReason
from protocol.logs import Stream, record

log = logging.getLogger(__name__)

START_SECONDS = 2.0
HEALTHY_AFTER_SECONDS = 3.0
DEFAULT_SECONDS = 240.0
STEPS_PER_EPOCH = 20
BATCH_LINE_SECONDS, LONGEST_LINE_SECONDS = 1.0, 60.0
SERVICE_LINE_SECONDS = 5.0
LIMIT_BYTES = 1024 * 1024
READ_BYTES_PER_SECOND = 100 * 2**20  # for each GPU
CHECKPOINT_SECONDS = 120.0
CHECKPOINT_BYTES_PER_SECOND = 1.5 * 2**30

OnWork = Callable[[AttemptSpec, datetime], None]
OnEnd = Callable[[str], None]


class SimulatedAttempt(msgspec.Struct, kw_only=True):
    """The stored state of one attempt; the rest follows from the elapsed time.

    One with a `start_fault` never runs.
    """

    spec: AttemptSpec
    accepted_at_ns: int
    start_fault: str = ""
    stopped_at_ns: int | None = None
    stop_reason: StopReason = StopReason.USER


class SimulatedExecutor:
    """Runs attempts on a simulated appliance.

    `on_work` is called with each attempt that starts to load the hardware, and the time; `on_end`
    with the id of an attempt that stops; `disk` returns total and used bytes without images.

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
        state_path: Path | None = None,
        disk: Disk = lambda: (0, 0),
    ) -> None:
        self.start_fault = ""
        self._clock = clock
        self._on_work = on_work
        self._on_end = on_end
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
    seconds = max(0.0, _number(spec, "SIM_SECONDS", DEFAULT_SECONDS))
    ended_at_ns = started_at_ns + int(seconds * 1e9)
    if spec.is_service or now_ns < ended_at_ns:
        health = _health(spec, running_seconds=(now_ns - started_at_ns) / 1e9)
        message = "Health check: simulated failure." if health is Health.UNHEALTHY else ""
        return observed(
            state=ObservedState.RUNNING,
            started_at_ns=started_at_ns,
            health=health,
            message=message,
        )
    exit_code = int(_number(spec, "SIM_EXIT_CODE", 0))
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


def _number(spec: AttemptSpec, variable: str, default: float) -> float:
    try:
        return float(spec.env.get(variable, default))
    except ValueError:
        return default


class SimulatedLog:
    """Lines of a training or of a service, written as time passes, up to a limit."""

    def __init__(self, spec: AttemptSpec, *, started_at: datetime) -> None:
        self._spec = spec
        self._started_at = started_at
        self._interval_seconds = SERVICE_LINE_SECONDS
        if not spec.is_service:
            seconds = _number(spec, "SIM_LINE_SECONDS", BATCH_LINE_SECONDS)
            self._interval_seconds = min(max(BATCH_LINE_SECONDS, seconds), LONGEST_LINE_SECONDS)
        self._text = bytearray()
        self._next_line = 0
        self._is_finished = False

    def write_until(self, until_at: datetime) -> None:
        """Write the lines until a time."""
        while not self._is_finished and len(self._text) < LIMIT_BYTES:
            offset = timedelta(seconds=self._next_line * self._interval_seconds)
            if self._started_at + offset > until_at:
                return
            self._write(self._started_at + offset, self._line(self._next_line))
            self._next_line += 1

    def finish(self, observation: AttemptObservation) -> None:
        """Write the last line, once."""
        if self._is_finished or observation.started_at_ns is None:
            return
        self._is_finished = True
        match observation.state:
            case ObservedState.SUCCEEDED:
                last, stream = "training finished", Stream.STDOUT
            case ObservedState.STOPPED:
                last, stream = "received SIGTERM, shutting down", Stream.STDERR
            case _:
                last, stream = f"exiting with code {observation.exit_code}", Stream.STDERR
        self._write(from_ns(observation.finished_at_ns or 0), last, stream)

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `offset`."""
        return bytes(self._text[offset : offset + limit])

    def _write(self, at: datetime, line: str, stream: Stream = Stream.STDOUT) -> None:
        self._text += record(f"{at:%Y-%m-%dT%H:%M:%S.%fZ}".encode(), stream, f"{line}\n".encode())

    def _line(self, number: int) -> str:
        noise = fraction(f"{self._spec.attempt_id}:{number}")
        if number == 0:
            gpus = ", ".join(self._spec.gpu_uuids) or "none"
            return f"{self._spec.name}: image {self._spec.image}, GPUs: {gpus}"
        if self._spec.is_service:
            return f"POST /v1/completions 200 {40 + 200 * noise:.0f} ms"
        epoch, step = divmod(number, STEPS_PER_EPOCH)
        loss = 0.4 + 2.2 / (1 + 0.04 * number) + 0.05 * noise
        if step == 0:
            return f"epoch {epoch} done, validation loss {loss + 0.08:.4f}"
        return f"epoch {epoch} step {step * 50} loss {loss:.4f} {1450 + 120 * noise:.0f} samples/s"


def fraction(name: str) -> float:
    """Return a number in [0, 1] that looks random and depends on `name` alone."""
    return crc32(name.encode()) / 0xFFFFFFFF


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
