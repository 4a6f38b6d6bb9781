"""Output of jobs in files of the shared folder, as records of `protocol.logs`.

Slurm writes no times: a line has the time at which the connector reads it.
"""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

from core.clock import Clock
from jobqueue.executors.base import ExecutorError
from protocol.logs import Stream, record

# A record is at most this long without its head.
CHUNK_BYTES = 16 * 1024
_STREAMS = {"out": Stream.STDOUT, "err": Stream.STDERR}


def copied_records(
    path: Path, stream: str, offset: int, clock: Clock
) -> Iterator[tuple[int, bytes]]:
    """Yield records of the output behind an offset, each with the offset behind it.

    Raises:
        ExecutorError: the file can't be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                offset += len(chunk)
                at = clock().astimezone(UTC).isoformat().replace("+00:00", "Z").encode()
                records = (record(at, _STREAMS[stream], line) for line in _lines(chunk))
                yield offset, b"".join(records)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExecutorError(f"{path} can't be read: {error}") from error


def _lines(chunk: bytes) -> list[bytes]:
    """Return the lines as they end with a newline alone: a carriage return is text."""
    parts = chunk.split(b"\n")
    ended = [part + b"\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended
