"""What the executor asks of Slurm; commands and slurmrestd are two ways to ask it.

Words: a *job* is Slurm's, an *attempt* Vedette's. Names of jobs tell whose they are.
"""

import errno
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobqueue.executors.base import (
    AttemptUsage,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
)
from protocol.clusters import ClusterNode, ClusterQueue

OLDEST = (20, 11)
ENDED_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
# What Slurm says while it can't be asked; the job may be right.
_UNAVAILABLE: tuple[str, ...] = (
    "unable to contact slurm controller",
    "connection refused",
    "connection timed out",
    "timed out on send/recv",
    "socket timed out",
    "no route to host",
    "zero bytes were transmitted",
    "munge",
    "authentication",
    "backup mode",
    "unable to establish",
    "persistent connection",
    "transport endpoint",
    "communication",
    "unexpected message",
    # What slurmrestd says of a token that is not valid any more.
    "unspecified error",
    "name or service not known",
    "could not establish a configuration source",
    "unable to process configuration",
)
# Errors of the network, in the words of the C library.
_UNAVAILABLE += tuple(
    os.strerror(number).lower()
    for number in (
        *(errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENETUNREACH, errno.EHOSTDOWN),
        *(errno.ENOTCONN, errno.EIO, errno.EINTR, errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT),
    )
)
# What it says while it accepts no more jobs for now.
_FULL = ("temporarily unable", "max_job_count", "maxsubmit", "submit limit", "too many")
_VERSION = re.compile(r"(\d+)\.(\d+)[.\d]*(?:-\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job as Slurm shows it.

    Attributes:
        state: a word such as `PENDING`, without flags.
        reason: why it waits or ended, as Slurm's word.
        node: where it runs.
        exit_status: the exit code, and the signal that ended it; None while unknown.
        cancelled_by: the user's id or name; "" if unknown.
        restarts: how often Slurm has put it back into its queue.
        started_at_ns, ended_at_ns: None while it has not, or if unknown.
    """

    job_id: int
    name: str
    state: str
    reason: str = ""
    node: str = ""
    exit_status: tuple[int, int] | None = None
    cancelled_by: str = ""
    restarts: int = 0
    started_at_ns: int | None = None
    ended_at_ns: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it will not run, or not any more."""
        return self.state in ENDED_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What Slurm is asked for with a script; "" is its default.

    Attributes:
        memory_mib: on the node.
        gres: such as `gpu:2`.
        time_limit_seconds: 0 is that of the partition.
        folder: where the script is.
        stdout, stderr: files that all nodes share.
    """

    name: str
    script: str
    folder: Path
    stdout: Path
    stderr: Path
    cpus: int
    memory_mib: int
    gres: str = ""
    time_limit_seconds: float = 0.0
    comment: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    dependency: str = ""
    nice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster as one reading shows it."""

    version: str
    name: str = ""
    waiting_jobs: int = 0
    nodes: Sequence[ClusterNode] = field(default_factory=list)
    queues: Sequence[ClusterQueue] = field(default_factory=list)


class SlurmAPI(Protocol):
    """Slurm's controller and accounting. Every call may raise `ExecutorError`."""

    def submit(self, options: JobOptions) -> int:
        """Submit a script; return the job's id.

        Raises:
            InvalidError: Slurm refuses it.
            UncertainError: it may have been submitted.
        """

    def jobs(self) -> list[SlurmJob]:
        """Return all jobs of this user that the controller has, by one request."""

    def ended_jobs(self, job_ids: Collection[int]) -> list[SlurmJob]:
        """Return jobs from the accounting, by one request as far as possible."""

    def signal(self, job_id: int, name: str) -> None:
        """Send a signal, such as `TERM`, to all processes of a job that may have ended."""

    def cancel(self, job_id: int) -> None:
        """Cancel a job that may have ended."""

    def cluster(self) -> ClusterState:
        """Return nodes, partitions and version."""

    def usage(self, job_ids: Sequence[int]) -> Mapping[int, tuple[float, AttemptUsage]]:
        """Return CPU seconds and usage of running jobs; nothing if Slurm does not tell."""

    def close(self) -> None:
        """Close connections."""


def refusal_of(text: str) -> ExecutorError:
    """Return the error that Slurm's words mean."""
    lowered = text.lower()
    if any(sign in lowered for sign in _UNAVAILABLE):
        return ExecutorUnavailableError(f"Slurm is not available: {text}")
    if any(sign in lowered for sign in _FULL):
        return ExecutorError(f"Slurm accepts no more jobs now: {text}")
    return InvalidError(f"Slurm refuses the job: {text}")


def unanswered(name: str, text: str) -> ExecutorUnavailableError:
    """Return the error of a question that Slurm does not answer."""
    return ExecutorUnavailableError(f"Slurm is not available, says {name}: {text}")


def check_version(text: str) -> str:
    """Return the version in a text.

    Raises:
        ExecutorUnavailableError: it is older than what is supported, or unknown.
    """
    match = _VERSION.search(text)
    if match is None:
        raise ExecutorUnavailableError(f"{text[:100]!r} is no version of Slurm.")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise ExecutorUnavailableError(
            f"Slurm {match[0]} is too old: Vedette needs 20.11 or newer. Update the cluster."
        )
    return match[0]
