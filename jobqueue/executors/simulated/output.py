"""Output of simulated attempts: the log of a training or of a service."""

from datetime import datetime, timedelta
from zlib import crc32

from core.clock import from_ns
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.logs import Stream, record

STEPS_PER_EPOCH = 20
BATCH_LINE_SECONDS, LONGEST_LINE_SECONDS = 1.0, 60.0
SERVICE_LINE_SECONDS = 5.0
LIMIT_BYTES = 1024 * 1024


class SimulatedLog:
    """Lines of a training or of a service, written as time passes, up to a limit."""

    def __init__(self, spec: AttemptSpec, *, started_at: datetime) -> None:
        self._spec = spec
        self._started_at = started_at
        self._interval_seconds = SERVICE_LINE_SECONDS
        if not spec.is_service:
            seconds = number_of(spec, "SIM_LINE_SECONDS", BATCH_LINE_SECONDS)
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


def number_of(spec: AttemptSpec, variable: str, default: float) -> float:
    """Return the number in a variable of an attempt, or the default."""
    try:
        return float(spec.env.get(variable, default))
    except ValueError:
        return default
