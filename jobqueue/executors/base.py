"""The executor interface and the words that agent and portal exchange about attempts.

An *attempt* is one try at running a job on one appliance. The portal publishes the attempts that
should run (desired state, with a generation number); the agent makes its executor match and
reports what it observes. Everything is fenced by the attempt's id, so nothing runs twice.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

ATTEMPT_LABEL = "io.vedette.attempt"
JOB_LABEL = "io.vedette.job"


class ObservedState(StrEnum):
    """What an executor sees of an attempt; the last three are final."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the attempt has ended."""
        return self in {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.STOPPED}


class AttemptSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor needs to run one attempt.

    Attributes:
        command: argument vector; empty runs the image's own command.
        gpu_uuids: the physical GPUs or MIG instances given to it; none for a CPU job.
        is_service: restarted when it exits; a batch attempt ends with its exit code.
    """

    attempt_id: str
    job_id: str
    name: str
    image: str
    command: list[str] = []
    env: dict[str, str] = {}
    gpu_uuids: list[str] = []
    cpus: float = 1.0
    memory_bytes: int = 256 * 1024 * 1024
    is_service: bool = False


class AttemptObservation(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor sees of one attempt.

    Attributes:
        exit_code: of the container's main process, once it has ended.
        reason: a stable word when something went wrong, such as `image_not_found`,
            `out_of_memory`, `engine_unavailable`, `exit_code`, `stopped_by_user`.
        message: a sentence for the job's page.
        started_at_ns, finished_at_ns: by the appliance's clock; None when not yet.
    """

    attempt_id: str
    state: ObservedState
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    started_at_ns: int | None = None
    finished_at_ns: int | None = None


class AttemptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a running attempt uses now: CPU percent of one core, and resident memory."""

    cpu_percent: float
    memory_bytes: int


class ExecutorError(Exception):
    """An executor could not do what it was asked; tried again at the next reconciliation."""


class ExecutorUnavailableError(ExecutorError):
    """The engine does not answer at present."""


class Executor(Protocol):
    """Runs attempts on this appliance. All calls are idempotent, keyed by the attempt's id.

    Every call may raise `ExecutorError`.
    """

    name: str

    def start(self, spec: AttemptSpec) -> None:
        """Begin to run an attempt and return soon; a second call for the same id does nothing.

        A fault of the attempt itself (image missing, bad command) is not raised: it shows in
        `observe` as FAILED with its reason.
        """

    def stop(self, attempt_id: str, *, grace_seconds: float) -> None:
        """Ask an attempt to end, kill it after the grace; return soon. Unknown ids are ignored."""

    def observe(self) -> list[AttemptObservation]:
        """Return every attempt that this executor still knows, ended ones included."""

    def container_ids(self) -> Mapping[str, str]:
        """Return container id (64 hex digits) to attempt id, as `observe` saw them last.

        Asks no engine and may be called from any thread; empty where attempts are no containers.
        """

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of its output (stdout and stderr together) from `offset`."""

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return what it uses now, or None when it does not run."""

    def remove(self, attempt_id: str) -> None:
        """Forget an ended attempt and free what it left behind; unknown ids are ignored."""

    def close(self) -> None:
        """Let go of connections and threads; attempts go on running where they outlive us."""
