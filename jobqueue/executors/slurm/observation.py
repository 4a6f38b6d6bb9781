"""What a job of Slurm means for its attempt.

Source: squeue(1), "JOB STATE CODES" and "JOB REASON CODES".
"""

import signal
from collections.abc import Sequence

from jobqueue.executors.slurm.api import SlurmJob
from protocol.attempts import AttemptObservation, ObservedState

SIGNAL_BASE = 128
_WAITING = {
    "Resources": "it is next, and its resources are not free yet",
    "Priority": "jobs with a higher priority are before it",
    "Dependency": "it waits for other jobs",
    "DependencyNeverSatisfied": "the job that it waits for will never end as it should",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QoS may not use the partition",
    "JobHeldAdmin": "an admin of the cluster holds it",
    "JobHeldUser": "it is held",
    "BeginTime": "its time has not come",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "its partition has too few nodes for it",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionConfig": "its partition can't run it",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "Reservation": "its reservation has not begun",
    "Licenses": "a license is not free",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node can fulfill its constraints",
    "QOSMaxJobsPerUserLimit": "its QoS allows no more running jobs of this user",
    "QOSGrpGRES": "its QoS allows no more of these resources",
    "AssocMaxJobsLimit": "its account allows no more running jobs",
    "AssocGrpGRES": "its account allows no more of these resources",
    "launch failed requeued held": "its node could not launch it, and Slurm holds it",
}
_RUNNING = {
    "SUSPENDED": "Suspended in Slurm.",
    "STOPPED": "Stopped in Slurm by a signal.",
    "STAGE_OUT": "Slurm stages its data out.",
}
_STARTING = {"CONFIGURING": "Slurm prepares its node."}
_PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})


def observe(attempt_id: str, job: SlurmJob, gpu_indices: Sequence[int] = ()) -> AttemptObservation:
    """Return the observation of an attempt from its job."""
    if job.has_ended:
        return _ended(attempt_id, job, gpu_indices)
    if job.state in _PENDING or job.state in _STARTING:
        return AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.STARTING,
            message=_STARTING.get(job.state) or _waiting(job),
        )
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.RUNNING,
        message=_RUNNING.get(job.state, ""),
        node=job.node,
        gpu_indices=list(gpu_indices),
        started_at_ns=job.started_at_ns,
    )


def requeued(attempt_id: str, job: SlurmJob) -> AttemptObservation:
    """Return the end of an attempt whose job Slurm has put back into its queue."""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.FAILED,
        reason="preempted_by_cluster",
        message=f"Slurm put job {job.job_id} back into its queue, so it was cancelled there.",
    )


def _waiting(job: SlurmJob) -> str:
    reason = job.reason if job.reason not in {"", "None"} else "no reason given yet"
    word, _, details = reason.partition(",")
    words = _WAITING.get(word.strip())
    text = f"Pending in Slurm: {reason}"
    return f"{text} ({words})." if words and not details else f"{text}."


def _ended(attempt_id: str, job: SlurmJob, gpu_indices: Sequence[int]) -> AttemptObservation:
    state, (reason, message) = ObservedState.FAILED, _REASONS.get(job.state, ("", ""))
    exit_code, number = job.exit_status or (None, 0)
    if number and not exit_code:
        exit_code = SIGNAL_BASE + number
    if job.state == "COMPLETED":
        state = ObservedState.SUCCEEDED
    elif job.state == "CANCELLED":
        state, reason = ObservedState.STOPPED, "stopped_outside"
        by = f" by {job.cancelled_by}" if job.cancelled_by else ""
        message = f"Cancelled in Slurm{by}, not through the portal."
    elif not reason:
        reason, message = _failure(job, exit_code)
    node = f" on node {job.node}" if job.node else ""
    return AttemptObservation(
        attempt_id=attempt_id,
        state=state,
        exit_code=0 if state is ObservedState.SUCCEEDED else exit_code or None,
        reason=reason,
        message=message.format(node=node),
        node=job.node,
        gpu_indices=list(gpu_indices),
        started_at_ns=job.started_at_ns,
        finished_at_ns=job.ended_at_ns,
    )


_REASONS = {
    "OUT_OF_MEMORY": (
        "out_of_memory",
        "Out of memory: Slurm ended the job{node} above its limit. Request more memory.",
    ),
    "TIMEOUT": ("time_limit", "Slurm ended the job at its time limit, or its partition's."),
    "DEADLINE": ("time_limit", "Slurm ended the job at its deadline."),
    "NODE_FAIL": ("node_failed", "The node failed, says Slurm{node}."),
    "BOOT_FAIL": ("node_failed", "The node could not boot, says Slurm{node}."),
    "PREEMPTED": ("preempted_by_cluster", "Slurm preempted it for another job of the cluster."),
    "REVOKED": ("executor_error", "Slurm revoked it: another cluster of the federation runs it."),
}


def _failure(job: SlurmJob, exit_code: int | None) -> tuple[str, str]:
    if exit_code is None or exit_code == 0:
        return "executor_error", f"Slurm says that the job failed: {job.reason or 'None'}."
    try:
        name = signal.Signals(exit_code - SIGNAL_BASE).name
    except ValueError:
        return "exit_code", f"The command exited with code {exit_code}. See the log."
    return "signal", f"Killed by {name}, not through the portal. See the log."
