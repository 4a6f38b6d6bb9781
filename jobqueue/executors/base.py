"""The interface of executors: they run attempts on this appliance.

The types of attempts are those of `protocol.attempts`.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    ObservedState,
    ProbeOrder,
    StopReason,
)
from protocol.challenges import ChallengeOrder, ChallengeResult
from protocol.exec import TerminalSize
from protocol.storage import CleanupOrder, CleanupResult, StorageReport

ATTEMPT_LABEL = "io.vedette.attempt"
JOB_LABEL = "io.vedette.job"
# Its appliance: agents that share an engine leave each other's containers alone.
OWNER_LABEL = "io.vedette.appliance"
# How an attempt that the agent stopped ends, and the message about it.
STOPPED: Mapping[StopReason, tuple[ObservedState, str]] = {
    StopReason.USER: (ObservedState.STOPPED, "Stopped by a user."),
    StopReason.TIME_LIMIT: (ObservedState.FAILED, "Stopped at its time limit."),
}


class AttemptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The current usage of a running attempt: CPU percent of one core, and resident memory.

    `container` has further fields of the measurement `container`, if only the executor knows them.
    """

    cpu_percent: float
    memory_bytes: int
    container: Mapping[str, float] = {}


class ExecutorError(Exception):
    """A call of an executor failed; retried at the next reconciliation."""


class ExecutorUnavailableError(ExecutorError):
    """The engine is unavailable."""


class NotFoundError(ExecutorError):
    """The server does not have it."""


class ConflictError(ExecutorError):
    """It exists already, or is locked."""


class InvalidError(ExecutorError):
    """The server refuses the request for good; the text says what is wrong."""


class UncertainError(ExecutorUnavailableError):
    """The request was sent, but no answer came: it may have been executed."""


class NoExecError(ExecutorError):
    """The executor can't run commands in its attempts."""


class ImageError(Exception):
    """The image of an attempt can't be pulled: `reason` is one of `AttemptObservation`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ExecSession(Protocol):
    """A command that a user runs in an attempt, and the user's end of its streams.

    Attributes:
        command: program and arguments.
        size: of the user's terminal, which is of the kind `term`; None without a terminal.
    """

    command: Sequence[str]
    size: TerminalSize | None
    term: str

    def inputs(self) -> AsyncIterator[bytes | TerminalSize]:
        """Yield what the user types, and new sizes of the terminal."""

    async def output(self, data: bytes, *, is_error: bool) -> None:
        """Send output to the user; waits while the user reads slowly."""


class ContainerStorage(Protocol):
    """Images and stopped containers of an engine. Every call may raise `ExecutorError`."""

    def report(self) -> StorageReport:
        """Return what is on the engine."""

    def clean(self, order: CleanupOrder, *, keep: Collection[str]) -> CleanupResult:
        """Delete what is ordered, but no image of the names to keep; return the result."""


Probe = Callable[[ProbeOrder], str]
"""Runs a tiny container as attempts are run; returns why it failed, or "".

Takes up to a minute, in any thread, and raises nothing.
"""


class Challenges(Protocol):
    """Runs challenges of the hardware, one at a time; thread-safe, and raises nothing."""

    def run(self, order: ChallengeOrder) -> ChallengeResult:
        """Run a challenge to its end, within the limit of the order."""

    def cancel(self) -> None:
        """End the one that runs, if any, before returning: a job is about to start."""


class Executor(Protocol):
    """Runs attempts on this appliance. All calls are idempotent, keyed by the attempt's id.

    Every call may raise `ExecutorError`. `names` are those that the inventory lists.
    """

    name: str
    names: Sequence[str]

    def start(self, spec: AttemptSpec) -> None:
        """Start an attempt without waiting; a second call for the same id does nothing.

        A failure of the attempt itself (missing image, bad command) is not raised: `observe`
        returns it as FAILED with its reason.
        """

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        """Stop an attempt, and kill it after the grace, or after that of its job if it has one.

        Does not wait. Unknown ids are ignored.

        The first reason stays; `observe` returns it.
        """

    def observe(self) -> list[AttemptObservation]:
        """Return every attempt that was not removed, ended ones included."""

    def container_ids(self) -> Mapping[str, str]:
        """Return the attempt's id by container id (64 hex digits), as of the last `observe`.

        Does not call the engine; thread-safe. Empty if attempts are not containers.
        """

    def read_log(self, attempt_id: str, *, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of its log from `offset`: the records of `protocol.logs`."""

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return its current usage, or None if it does not run."""

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a command in a running attempt; return its exit code.

        Raises `NoExecError` if this executor can't. A cancelled command is ended.
        """

    def remove(self, attempt_id: str) -> None:
        """Delete an ended attempt with its container and log; unknown ids are ignored."""

    def storage(self) -> ContainerStorage | None:
        """Return the storage of its engine; None if there is none that can be cleaned up."""

    def probe(self) -> Probe | None:
        """Return what runs probes; None if it can't start containers of its own here."""

    def challenges(self) -> Challenges | None:
        """Return what runs challenges; None if it can't."""

    def close(self) -> None:
        """Close connections and threads; containers continue."""


@runtime_checkable
class PullsImages(Protocol):
    """An executor that can pull the image of an attempt before the attempt starts."""

    def pull_image(
        self, spec: AttemptSpec, on_progress: Callable[[str], bool], note: Callable[..., None]
    ) -> None:
        """Pull an attempt's image if its appliance lacks it. Takes its time, in any thread.

        Args:
            spec: the attempt.
            on_progress: called with a sentence whenever it changes; False cancels the pull.
            note: called with `pull_began_at_ns` and `pull_ended_at_ns` of a pull.

        Raises:
            ImageError: how the attempt fails.
            ExecutorError: it may succeed later, or was cancelled.
        """
