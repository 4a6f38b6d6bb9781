"""Jobs that ran before this server knew their appliance, such as those of the demo's first day.

They are added as they ended, with attempt and history. The usage ledger measures their hours at its
next run, so add them after their samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert
from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.states import AttemptState, JobState, Reason
from jobqueue.usage.ledger import check_again
from jobqueue.usage.measuring import Period
from protocol.job_spec import JobKind
from tenants.auditing.recording import record
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

# The final state of an attempt, the reason and the exit code, by the final state of its job.
_ENDS = {
    JobState.SUCCEEDED: (AttemptState.SUCCEEDED, Reason.NONE, 0),
    JobState.FAILED: (AttemptState.FAILED, Reason.EXIT_CODE, 1),
    JobState.STOPPED: (AttemptState.STOPPED, Reason.STOPPED_BY_USER, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job that has ended; `id` is the tag `job` of its samples."""

    id: str
    name: str
    kind: JobKind
    image: str
    command: Sequence[str]
    gpu_uuids: Sequence[str]
    cpus: float
    memory_bytes: int
    submitted_at: datetime
    started_at: datetime
    finished_at: datetime
    state: JobState


def add_past_jobs(
    session: Session,
    scope: Scope,
    appliance_id: str,
    jobs: Sequence[PastJob],
    *,
    now: datetime,
    contract_id: str | None = None,
) -> int:
    """Add jobs of the scope's user that ran on an appliance; return how many.

    Args:
        session: the session.
        scope: of the user.
        appliance_id: where they ran.
        jobs: the jobs.
        now: the current time.
        contract_id: the contract under which the appliance was rented from another tenant.

    Raises:
        NotFoundError: the scope has no such appliance.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    if contract_id is None:
        appliance = scope.get(session, Appliance, appliance_id, kind="appliance")
    else:
        appliance = session.get_one(Appliance, appliance_id)
    job_rows, attempt_rows, event_rows = [], [], []
    for job in jobs:
        attempt_state, reason, exit_code = _ENDS[job.state]
        end = {"reason": reason, "exit_code": exit_code, "finished_at": job.finished_at}
        job_rows.append(
            {
                "id": job.id,
                "tenant_id": tenant_id,
                "user_id": scope.user_id,
                "name": job.name,
                "kind": job.kind,
                "image": job.image,
                "command": list(job.command),
                "gpus": len(job.gpu_uuids),
                "cpus": job.cpus,
                "memory_bytes": job.memory_bytes,
                "state": job.state,
                "queue_at": job.submitted_at,
                "submitted_at": job.submitted_at,
                "started_at": job.started_at,
                **end,
            }
        )
        attempt_rows.append(
            {
                "id": new_id(),
                "job_id": job.id,
                "tenant_id": tenant_id,
                "appliance_id": appliance_id,
                "contract_id": contract_id,
                "provider_id": contract_id and appliance.tenant_id,
                "number": 1,
                "state": attempt_state,
                "gpu_uuids": list(job.gpu_uuids),
                "bound_at": job.started_at,
                "assigned_at": job.started_at,
                "started_at": job.started_at,
                **end,
            }
        )
        event_rows += [
            {
                "id": new_id(),
                "job_id": job.id,
                "tenant_id": tenant_id,
                "state": state,
                "reason": reason if at is job.finished_at else Reason.NONE,
                "at": at,
            }
            for state, at in (
                (JobState.SUBMITTED, job.submitted_at),
                (JobState.RUNNING, job.started_at),
                (job.state, job.finished_at),
            )
        ]
    for model, rows in ((Job, job_rows), (Attempt, attempt_rows), (JobEvent, event_rows)):
        if rows:
            session.execute(insert(model), rows)
    if jobs:
        since, until = min(job.started_at for job in jobs), max(job.finished_at for job in jobs)
        check_again(session, Period(since, until))
    record(
        session,
        action="past_jobs.added",
        # The customer does not see which appliance it was.
        target_kind="contract" if contract_id else "appliance",
        target_id=contract_id or appliance_id,
        target_name=contract_id or appliance.name,
        tenant_id=tenant_id,
        after={"jobs": len(job_rows)},
        now=now,
    )
    return len(job_rows)
