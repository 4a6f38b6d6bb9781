"""States of jobs and attempts, and the moves between them.

    job:      submitted -> queued -> starting -> running -> succeeded | failed | stopped | lost
    attempt:  bound -> starting -> running -> succeeded | failed | stopped | lost

A *bound* attempt waits on its appliance for GPUs, cores or memory; it may still move elsewhere.
`starting` means that the appliance is asked to run it and its resources are taken.
"""

from enum import StrEnum


class JobKind(StrEnum):
    """What a job is for: `batch` ends with its exit code, `service` runs until stopped."""

    BATCH = "batch"
    SERVICE = "service"


class JobState(StrEnum):
    """Where a job is; the last four are final."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return not TRANSITIONS[self]


class AttemptState(StrEnum):
    """Where an attempt is; the last four are final."""

    BOUND = "bound"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the attempt has ended."""
        return not ATTEMPT_TRANSITIONS[self]


class Reason(StrEnum):
    """Why a job or attempt is in its state; shown with the state."""

    NONE = ""
    WAITING_FOR_APPLIANCE = "waiting_for_appliance"
    WAITING_FOR_RESOURCES = "waiting_for_resources"
    EXIT_CODE = "exit_code"
    OUT_OF_MEMORY = "out_of_memory"
    IMAGE_NOT_FOUND = "image_not_found"
    START_FAILED = "start_failed"
    STOPPED_BY_USER = "stopped_by_user"
    APPLIANCE_LOST = "appliance_lost"
    APPLIANCE_UNREACHABLE = "appliance_unreachable"
    EXECUTOR_ERROR = "executor_error"


_J = JobState
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _J.SUBMITTED: frozenset({_J.QUEUED, _J.STARTING, _J.STOPPED}),
    _J.QUEUED: frozenset({_J.STARTING, _J.STOPPED}),
    _J.STARTING: frozenset({_J.RUNNING, _J.SUCCEEDED, _J.FAILED, _J.STOPPED, _J.LOST}),
    _J.RUNNING: frozenset({_J.SUCCEEDED, _J.FAILED, _J.STOPPED, _J.LOST}),
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset(),
    _J.STOPPED: frozenset(),
    _J.LOST: frozenset(),
}

_A = AttemptState
ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    _A.BOUND: frozenset({_A.STARTING, _A.STOPPED}),
    _A.STARTING: frozenset({_A.RUNNING, _A.SUCCEEDED, _A.FAILED, _A.STOPPED, _A.LOST}),
    _A.RUNNING: frozenset({_A.SUCCEEDED, _A.FAILED, _A.STOPPED, _A.LOST}),
    _A.SUCCEEDED: frozenset(),
    _A.FAILED: frozenset(),
    _A.STOPPED: frozenset(),
    _A.LOST: frozenset(),
}

# States in which an attempt holds its GPUs, cores and memory.
HOLDING = (AttemptState.STARTING, AttemptState.RUNNING)
