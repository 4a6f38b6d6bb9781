"""The folders of attempts, which the connector and all nodes share.

    work_dir/OWNER/ATTEMPT/
        submission.json    what was submitted, written before Slurm is asked
        env.N              variables and secrets; the job deletes it when it has read it
        claim.N            a link that the job makes before anything else, or the connector
        out.N, err.N       output
        exit.N             the exit code of the command

Each submission of an attempt has a *number* N. Whoever makes the link `claim.N` first wins: the
job, and then the command runs in it and nowhere else, or the connector, and then it runs in no job
with this number. So the connector may submit again without knowing what became of the last one.

Output becomes records of `protocol.logs`. Slurm writes no times: a line has the time at which the
connector reads it.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import msgspec

from core.atomic_files import replace_file
from core.clock import Clock
from jobqueue.executors.base import ExecutorError
from jobqueue.executors.spool_files import safe_path
from protocol.logs import Stream, record

VOID = "void"
STREAMS = ("out", "err")
REMOVALS = 5
# A record is at most this long without its head.
CHUNK_BYTES = 16 * 1024
_LOG_STREAMS = {"out": Stream.STDOUT, "err": Stream.STDERR}


class Submission(msgspec.Struct, kw_only=True):
    """What was submitted of an attempt.

    Attributes:
        number: of its last submission.
        job_id: its job; None while the answer has not come.
        submitted_at_ns: when Slurm was asked.
        grace_seconds: between SIGTERM and SIGKILL.
        stopping_at_ns: when SIGTERM was sent.
        missing_at_ns: since when the controller does not show it.
    """

    number: int = 1
    job_id: int | None = None
    submitted_at_ns: int = 0
    grace_seconds: float = 10.0
    stopping_at_ns: int | None = None
    missing_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Which job runs the command; job 0 is none, for ever."""

    job_id: int
    restarts: int = 0
    node: str = ""
    gpu_indices: tuple[int, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether the connector has it."""
        return self.job_id == 0


class Workplace:
    """The folders of one connector's attempts. Every call may raise `ExecutorError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._submissions: dict[str, Submission] = {}
        self._claims: dict[tuple[str, int], Claim] = {}

    def check(self) -> None:
        """Make sure that the folder can be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._failed(self.folder, error) from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise ExecutorError(f"{self.folder} can't be written by the agent's user.")

    def of(self, attempt_id: str) -> Path:
        """Return the folder of an attempt."""
        return safe_path(self.folder, attempt_id, "")

    def submission(self, attempt_id: str) -> Submission | None:
        """Return what was submitted of an attempt, in this run of the agent or an earlier one."""
        if (submission := self._submissions.get(attempt_id)) is not None:
            return submission
        path = self.of(attempt_id) / "submission.json"
        try:
            submission = msgspec.json.decode(path.read_bytes(), type=Submission)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise self._failed(path, error) from error
        self._submissions[attempt_id] = submission
        return submission

    def save(self, attempt_id: str, submission: Submission) -> None:
        """Store what is submitted, also for a power failure."""
        path = self.of(attempt_id) / "submission.json"
        self._submissions[attempt_id] = submission
        try:
            replace_file(path, msgspec.json.encode(submission))
        except OSError as error:
            raise self._failed(path, error) from error

    def write_env(self, attempt_id: str, number: int, text: str) -> None:
        """Write the variables of a submission, for the eyes of its user only."""
        folder = self.of(attempt_id)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(folder / f"env.{number}", text.encode(), is_durable=False)
        except OSError as error:
            raise self._failed(folder, error) from error

    def claim(self, attempt_id: str, number: int) -> Claim | None:
        """Return who has made the claim of a submission."""
        key = (attempt_id, number)
        if key not in self._claims:
            path = self.of(attempt_id) / f"claim.{number}"
            try:
                self._claims[key] = _parsed(str(path.readlink()))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise self._failed(path, error) from error
        return self._claims[key]

    def void(self, attempt_id: str, number: int) -> Claim:
        """Make the claim of a submission, unless its job has; return who has it."""
        path = self.of(attempt_id) / f"claim.{number}"
        try:
            with contextlib.suppress(FileExistsError):
                path.symlink_to(VOID)
        except OSError as error:
            raise self._failed(path, error) from error
        claim = self.claim(attempt_id, number)
        if claim is None:
            raise ExecutorError(f"{path} was made, and is gone.")
        if claim.is_void:
            (self.of(attempt_id) / f"env.{number}").unlink(missing_ok=True)
        return claim

    def exit_code(self, attempt_id: str, number: int) -> tuple[int, int] | None:
        """Return the exit code of the command, and when it ended, in ns."""
        path = self.of(attempt_id) / f"exit.{number}"
        try:
            return int(path.read_text(encoding="ascii")), path.stat().st_mtime_ns
        except (OSError, ValueError):
            return None

    def output(self, attempt_id: str, number: int, stream: str) -> Path:
        """Return the file of `out` or `err`."""
        return self.of(attempt_id) / f"{stream}.{number}"

    def remove(self, attempt_id: str) -> None:
        """Delete the folder of an attempt, to which a canceled job may write until it has ended."""
        self._submissions.pop(attempt_id, None)
        self._claims = {key: claim for key, claim in self._claims.items() if key[0] != attempt_id}
        folder = self.of(attempt_id)
        for _ in range(REMOVALS):
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise self._failed(folder, error) from error
            else:
                return
        raise ExecutorError(f"{folder} can't be deleted: a job still writes to it.")

    def _failed(self, path: Path, error: Exception) -> ExecutorError:
        return ExecutorError(f"{path} can't be used: {error}")


def _parsed(target: str) -> Claim:
    """Return the claim of a link such as `12:0:gpu-a:0,1:77-1795783921`."""
    if target == VOID:
        return Claim(0)
    job_id, restarts, node, gpus = [*target.split(":"), "", "", ""][:4]
    indices = tuple(int(index) for index in gpus.split(",") if index.isdigit())
    return Claim(int(job_id), int(restarts or 0), node, indices)


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
                records = (record(at, _LOG_STREAMS[stream], line) for line in _lines(chunk))
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
