"""The output of a simulated attempt: the same time always gives the same text."""

from datetime import datetime, timedelta
from zlib import crc32

from jobqueue.executors.base import AttemptObservation, AttemptSpec, ObservedState

STEPS_PER_EPOCH = 20
BATCH_LINE_SECONDS = 1.0
SERVICE_LINE_SECONDS = 5.0
LIMIT_BYTES = 1024 * 1024


class SimulatedLog:
    """Lines of a training or of a service, written as time passes, up to a limit."""

    def __init__(self, spec: AttemptSpec, *, started_at: datetime) -> None:
        self._spec = spec
        self._started_at = started_at
        self._interval_seconds = SERVICE_LINE_SECONDS if spec.is_service else BATCH_LINE_SECONDS
        self._text = bytearray()
        self._next_line = 0
        self._is_finished = False

    def write_until(self, until_at: datetime) -> None:
        """Write the lines that are due."""
        while not self._is_finished and len(self._text) < LIMIT_BYTES:
            offset = timedelta(seconds=self._next_line * self._interval_seconds)
            if self._started_at + offset > until_at:
                return
            line = self._line(self._next_line)
            self._text += f"{self._started_at + offset:%H:%M:%S} {line}\n".encode()
            self._next_line += 1

    def finish(self, observation: AttemptObservation) -> None:
        """Write the last line, once."""
        if self._is_finished or observation.started_at_ns is None:
            return
        self._is_finished = True
        match observation.state:
            case ObservedState.SUCCEEDED:
                self._text += b"training finished\n"
            case ObservedState.STOPPED:
                self._text += b"received SIGTERM, shutting down\n"
            case _:
                self._text += f"exiting with code {observation.exit_code}\n".encode()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `offset`."""
        return bytes(self._text[offset : offset + limit])

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
