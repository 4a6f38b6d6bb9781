"""Attempts that only pretend to run: they load a simulated appliance and write a training's log.

The environment of an attempt says how it goes: `SIM_SECONDS` is how long a batch attempt takes,
`SIM_EXIT_CODE` how it ends. An image whose name contains `missing` is not found. Services run
until stopped. What it knows can be kept in a file, so attempts outlive a restart of the agent as
containers do.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from threading import Lock

import msgspec

from core.clock import Clock, from_ns, to_ns
from jobqueue.executors.base import (
    AttemptObservation,
    AttemptSpec,
    AttemptUsage,
    ExecutorError,
    ObservedState,
)
from jobqueue.executors.simulated_log import SimulatedLog, fraction

log = logging.getLogger(__name__)

START_SECONDS = 2.0
DEFAULT_SECONDS = 240.0

OnWork = Callable[[AttemptSpec, datetime], None]
OnEnd = Callable[[str], None]


class SimulatedAttempt(msgspec.Struct, kw_only=True):
    """What is kept of one attempt; all the rest follows from the time that has passed."""

    spec: AttemptSpec
    accepted_at_ns: int
    stopped_at_ns: int | None = None


class _State(msgspec.Struct):
    attempts: list[SimulatedAttempt] = []


class SimulatedExecutor:
    """Runs attempts on a simulated appliance.

    Args:
        clock: the time; tests move it by hand.
        on_work: told when an attempt puts its load on the hardware, with the instant.
        on_end: told the id of an attempt whose load is gone.
        state_path: where to keep the attempts over a restart; None forgets them.
    """

    name = "simulated"

    def __init__(
        self, clock: Clock, *, on_work: OnWork, on_end: OnEnd, state_path: Path | None = None
    ) -> None:
        self._clock = clock
        self._on_work = on_work
        self._on_end = on_end
        self._state_path = state_path
        self._lock = Lock()
        self._attempts = {attempt.spec.attempt_id: attempt for attempt in _read_state(state_path)}
        self._loading: set[str] = set()
        self._logs: dict[str, SimulatedLog] = {}
        self.observe()

    def start(self, spec: AttemptSpec) -> None:
        """Accept an attempt; it is starting for a moment, then runs."""
        with self._lock:
            if spec.attempt_id in self._attempts:
                return
            self._attempts[spec.attempt_id] = SimulatedAttempt(
                spec=spec, accepted_at_ns=to_ns(self._clock())
            )
            self._save()

    def stop(self, attempt_id: str, *, grace_seconds: float) -> None:
        """End an attempt at once: nothing here needs the grace."""
        del grace_seconds
        now = self._clock()
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt and not _observe(attempt, now).state.is_final:
                attempt.stopped_at_ns = to_ns(now)
                self._save()
        self.observe()

    def observe(self) -> list[AttemptObservation]:
        """Return every attempt, and put its load on the hardware or take it off."""
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
        """Return what has been written so far; the same time always gives the same text."""
        now = self._clock()
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is None or "missing" in attempt.spec.image:
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
        """Return a use that follows what was asked for."""
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
        )

    def remove(self, attempt_id: str) -> None:
        """Forget an attempt."""
        with self._lock:
            if self._attempts.pop(attempt_id, None) is not None:
                self._save()
            self._logs.pop(attempt_id, None)
            self._unload(attempt_id)

    def close(self) -> None:
        """Keep nothing open."""

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
        partial = self._state_path.with_suffix(".partial")
        try:
            self._state_path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(_State(list(self._attempts.values()))))
            partial.replace(self._state_path)
        except OSError as error:
            raise ExecutorError(f"{self._state_path} can't be written: {error}") from error


def _read_state(path: Path | None) -> list[SimulatedAttempt]:
    if path is None or not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State).attempts
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s can't be read, so its attempts are forgotten: %s", path, error)
        return []


def _observe(attempt: SimulatedAttempt, now: datetime) -> AttemptObservation:
    spec = attempt.spec
    started_at_ns = _started_at_ns(attempt)
    ended_at_ns = _ended_at_ns(attempt)
    if attempt.stopped_at_ns is not None:
        has_run = attempt.stopped_at_ns >= started_at_ns
        return AttemptObservation(
            attempt_id=spec.attempt_id,
            state=ObservedState.STOPPED,
            exit_code=143 if has_run else None,
            reason="stopped_by_user",
            message="The attempt was stopped.",
            started_at_ns=started_at_ns if has_run else None,
            finished_at_ns=attempt.stopped_at_ns,
        )
    if to_ns(now) < started_at_ns:
        return AttemptObservation(attempt_id=spec.attempt_id, state=ObservedState.STARTING)
    if "missing" in spec.image:
        return AttemptObservation(
            attempt_id=spec.attempt_id,
            state=ObservedState.FAILED,
            reason="image_not_found",
            message=f"There is no image {spec.image!r}. Check its name and tag.",
            finished_at_ns=started_at_ns,
        )
    if ended_at_ns is not None and to_ns(now) >= ended_at_ns:
        return _ended(spec, started_at_ns, ended_at_ns)
    return AttemptObservation(
        attempt_id=spec.attempt_id, state=ObservedState.RUNNING, started_at_ns=started_at_ns
    )


def _ended(spec: AttemptSpec, started_at_ns: int, ended_at_ns: int) -> AttemptObservation:
    exit_code = int(_number(spec, "SIM_EXIT_CODE", 0))
    return AttemptObservation(
        attempt_id=spec.attempt_id,
        state=ObservedState.FAILED if exit_code else ObservedState.SUCCEEDED,
        exit_code=exit_code,
        reason="exit_code" if exit_code else "",
        message=f"The command ended with exit code {exit_code}." if exit_code else "",
        started_at_ns=started_at_ns,
        finished_at_ns=ended_at_ns,
    )


def _started_at_ns(attempt: SimulatedAttempt) -> int:
    return attempt.accepted_at_ns + int(START_SECONDS * 1e9)


def _ended_at_ns(attempt: SimulatedAttempt) -> int | None:
    """Return when it ends of itself: a service never does."""
    if attempt.spec.is_service:
        return None
    seconds = max(0.0, _number(attempt.spec, "SIM_SECONDS", DEFAULT_SECONDS))
    return _started_at_ns(attempt) + int(seconds * 1e9)


def _number(spec: AttemptSpec, variable: str, default: float) -> float:
    try:
        return float(spec.env.get(variable, default))
    except ValueError:
        return default
