"""States of jobs and attempts, and the transitions between them.

    job:      submitted -> queued -> starting -> running -> succeeded | failed | stopped | lost
                           queued <- starting, running: tried again, preempted or moved
                           asleep <- any of these: an instance of a service that is not needed now
    attempt:  bound -> starting -> running -> succeeded | failed | stopped | lost

A *bound* attempt waits for GPUs, cores or memory of its appliance; it may still move to another
one. A `starting` attempt is in its appliance's desired state and its resources are allocated.
Writers go through `jobqueue.jobs.transitions`.
"""

from enum import StrEnum


class JobState(StrEnum):
    """The last four are final."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ASLEEP = "asleep"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended."""
        return not JOB_TRANSITIONS[self]


class AttemptState(StrEnum):
    """The last four are final."""

    BOUND = "bound"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Return whether the attempt has ended."""
        return not ATTEMPT_TRANSITIONS[self]


class DependencyCondition(StrEnum):
    """The required end of another job: successful, or any."""

    OK = "ok"
    ANY = "any"


class LogState(StrEnum):
    """The place of an attempt's log: in the database, in a file, or deleted to make room."""

    LIVE = "live"
    FILE = "file"
    DELETED = "deleted"


class Overlap(StrEnum):
    """The action of a schedule that is due while its last run has not ended."""

    SKIP = "skip"
    ALLOW = "allow"
    REPLACE = "replace"


class Missed(StrEnum):
    """The action of a schedule for times that passed while the scheduler was down."""

    SKIP = "skip"
    RUN_ONCE = "run_once"


class RunOutcome(StrEnum):
    """The outcome when a schedule was due; a submitted run has a job with a state of its own."""

    SUBMITTED = "submitted"
    OVERLAPPED = "overlapped"
    MISSED = "missed"
    FAILED = "failed"


class UpdateState(StrEnum):
    """Of the rolling update of a service; the last two are final."""

    ROLLING = "rolling"
    DONE = "done"
    FAILED = "failed"


class Reason(StrEnum):
    """The reason why a job or attempt is in its state; shown with the state."""

    NONE = ""
    WAITING_FOR_APPLIANCE = "waiting_for_appliance"
    WAITING_FOR_RESOURCES = "waiting_for_resources"
    WAITING_FOR_CAP = "waiting_for_cap"
    WAITING_FOR_RETRY = "waiting_for_retry"
    EXIT_CODE = "exit_code"
    OUT_OF_MEMORY = "out_of_memory"
    IMAGE_NOT_FOUND = "image_not_found"
    IMAGE_PULL_FAILED = "image_pull_failed"
    INVALID_JOB = "invalid_job"
    START_FAILED = "start_failed"
    STOPPED_BY_USER = "stopped_by_user"
    APPLIANCE_LOST = "appliance_lost"
    APPLIANCE_UNREACHABLE = "appliance_unreachable"
    EXECUTOR_ERROR = "executor_error"
    SIGNAL = "signal"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    APPLIANCE_DRAINED = "appliance_drained"
    WAITING_FOR_DEPENDENCY = "waiting_for_dependency"
    DEPENDENCY_FAILED = "dependency_failed"
    IDLE_GPU = "idle_gpu"
    UPDATED = "updated"
    RESTORED = "restored"
    MEMBER_ENDED = "member_ended"
    GANG_RESTARTED = "gang_restarted"
    GPU_SLICE_FAILED = "gpu_slice_failed"
    GPU_FAULT_OF_NEIGHBOR = "gpu_fault_of_neighbor"
    WAITING_FOR_DATA = "waiting_for_data"
    DATA_UNAVAILABLE = "data_unavailable"
    NETWORK_FAILED = "network_failed"
    FIRST_MEMBER_ENDED = "first_member_ended"
    PREEMPTED_BY_CLUSTER = "preempted_by_cluster"
    NODE_FAILED = "node_failed"
    CONTRACT_ENDED = "contract_ended"
    BUDGET_SPENT = "budget_spent"
    SCALED_DOWN = "scaled_down"


_J = JobState
_JOB_ENDS = frozenset({_J.SUCCEEDED, _J.FAILED, _J.STOPPED, _J.LOST})
JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _J.SUBMITTED: frozenset({_J.QUEUED, _J.STARTING, _J.STOPPED, _J.ASLEEP}),
    _J.QUEUED: frozenset({_J.STARTING, _J.STOPPED, _J.ASLEEP}),
    _J.STARTING: _JOB_ENDS | {_J.RUNNING, _J.QUEUED, _J.ASLEEP},
    _J.RUNNING: _JOB_ENDS | {_J.QUEUED, _J.ASLEEP},
    _J.ASLEEP: frozenset({_J.QUEUED, _J.STOPPED}),
} | dict.fromkeys(_JOB_ENDS, frozenset())

_A = AttemptState
_ATTEMPT_ENDS = frozenset({_A.SUCCEEDED, _A.FAILED, _A.STOPPED, _A.LOST})
ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    _A.BOUND: frozenset({_A.STARTING, _A.STOPPED}),
    _A.STARTING: _ATTEMPT_ENDS | {_A.RUNNING},
    _A.RUNNING: _ATTEMPT_ENDS,
} | dict.fromkeys(_ATTEMPT_ENDS, frozenset())

_U = UpdateState
UPDATE_TRANSITIONS: dict[UpdateState, frozenset[UpdateState]] = {
    _U.ROLLING: frozenset({_U.DONE, _U.FAILED}),
    _U.DONE: frozenset(),
    _U.FAILED: frozenset(),
}

# States of a job that has not started, or waits to be tried again.
WAITING = (JobState.SUBMITTED, JobState.QUEUED)
# States of a job without an attempt that starts or runs.
WITHOUT_ATTEMPT = (*WAITING, JobState.ASLEEP)
# States in which GPUs, cores and memory are allocated to an attempt.
ALLOCATED_STATES = (AttemptState.STARTING, AttemptState.RUNNING)
