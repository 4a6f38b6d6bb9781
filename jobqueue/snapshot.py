"""What placement looks at: one tenant's appliances and waiting jobs, read from the database."""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session, lazyload

from jobqueue.executors.health import ApplianceHealth, GPUHealth, HealthFinding, HealthState
from jobqueue.executors.health_advice import advice_for
from jobqueue.executors.wire import Inventory
from jobqueue.models import Attempt, Job
from jobqueue.placement import Snapshot
from jobqueue.refusals import ApplianceView, GPUView, Held, JobView
from jobqueue.states import HOLDING, AttemptState, JobState
from tenants.fleet.life import in_service
from tenants.models import Appliance

NOTHING_HELD = Held()
WAITING = (JobState.SUBMITTED, JobState.QUEUED)


@dataclass(frozen=True, slots=True)
class TenantRows:
    """A snapshot, and the jobs behind it by id, for writing the plan's decisions back."""

    snapshot: Snapshot
    jobs: dict[str, Job]


def waiting_tenants(session: Session) -> list[str]:
    """Return the tenants that have jobs to place."""
    statement = select(Job.tenant_id).where(Job.state.in_(WAITING)).distinct()
    return list(session.scalars(statement.order_by(Job.tenant_id)))


def read_tenant(session: Session, tenant_id: str, *, now: datetime) -> TenantRows:
    """Return the tenant's snapshot with the rows that it was made from."""
    appliances = active_appliances(session, tenant_id)
    held = _held_resources(session, tenant_id)
    last_used = _last_used(session, tenant_id)
    jobs = _waiting_jobs(session, tenant_id)
    views = [
        appliance_view(row, held=held.get(row.id, NOTHING_HELD), last_used_at=last_used.get(row.id))
        for row in appliances
    ]
    return TenantRows(
        Snapshot(now=now, appliances=tuple(views), jobs=tuple(job_view(job) for job in jobs)),
        jobs={job.id: job for job in jobs},
    )


def active_appliances(session: Session, tenant_id: str) -> list[Appliance]:
    """Return the tenant's appliances in service, as the database has them now.

    A fenced one is in service, but nobody can tell it anything: it is left out as well.
    """
    statement = select(Appliance).where(
        Appliance.tenant_id == tenant_id, in_service(), Appliance.fenced_at.is_(None)
    )
    return list(session.scalars(statement.execution_options(populate_existing=True)))


def appliance_view(
    row: Appliance, *, held: Held = NOTHING_HELD, last_used_at: datetime | None = None
) -> ApplianceView:
    """Return what placement knows of an appliance."""
    inventory, health = read_inventory(row), read_health(row)
    return ApplianceView(
        id=row.id,
        name=row.name,
        state=row.state,
        is_drained=row.drained_at is not None,
        executors=tuple(inventory.executors),
        cpus=float(inventory.cpu_count),
        memory_bytes=inventory.memory_bytes,
        gpus=_gpu_views(inventory, health),
        fault=_appliance_fault(health),
        held=held,
        last_used_at=last_used_at,
    )


def read_inventory(row: Appliance) -> Inventory:
    """Return an appliance's inventory; one that can't be read has nothing to run jobs with."""
    try:
        return msgspec.convert(row.inventory, Inventory)
    except msgspec.ValidationError:
        return Inventory(hostname=row.name)


def read_health(row: Appliance) -> ApplianceHealth | None:
    """Return what an appliance's agent judged last; None where it is unknown."""
    try:
        return msgspec.convert(row.health, ApplianceHealth | None)
    except msgspec.ValidationError:
        return None


def job_view(job: Job) -> JobView:
    """Return what placement knows of a waiting job."""
    attempt = job.attempt
    is_bound = attempt is not None and attempt.state is AttemptState.BOUND
    return JobView(
        id=job.id,
        name=job.name,
        submitted_at=job.submitted_at,
        gpus=job.gpus,
        gpu_memory_bytes=job.gpu_memory_bytes,
        cpus=job.cpus,
        memory_bytes=job.memory_bytes,
        requested=job.appliance_id,
        bound_to=attempt.appliance_id if attempt and is_bound else None,
    )


def _gpu_views(inventory: Inventory, health: ApplianceHealth | None) -> tuple[GPUView, ...]:
    """Return the GPUs that are here, and as failed ones those that should be.

    A missing GPU comes back after a repair, so it counts among the appliance's, with the memory
    of the largest that is left.
    """
    judged = {gpu.uuid: gpu for gpu in health.gpus} if health else {}
    listed = {gpu.uuid: gpu.memory_bytes for gpu in inventory.gpus}
    largest = max(listed.values(), default=0)
    missing = [
        uuid
        for uuid, gpu in judged.items()
        if uuid not in listed and gpu.state is HealthState.FAILED
    ]
    return tuple(
        _gpu_view(uuid, memory_bytes, judged.get(uuid))
        for uuid, memory_bytes in (listed | dict.fromkeys(missing, largest)).items()
    )


def _gpu_view(uuid: str, memory_bytes: int, judged: GPUHealth | None) -> GPUView:
    if judged is None:
        return GPUView(uuid, memory_bytes)
    return GPUView(uuid, memory_bytes, judged.state, _fault(judged.findings, judged.state))


def _appliance_fault(health: ApplianceHealth | None) -> str:
    """Return why an appliance as a whole failed, "" when it did not."""
    if health is None or health.state is not HealthState.FAILED:
        return ""
    return _fault(health.findings, health.state) or "failed"


def _fault(findings: list[HealthFinding], state: HealthState) -> str:
    return next((advice_for(one.reason).name for one in findings if one.state is state), "")


def _waiting_jobs(session: Session, tenant_id: str) -> list[Job]:
    # Ids sort by age, so this is first come, first served.
    statement = (
        select(Job)
        .where(Job.tenant_id == tenant_id, Job.state.in_(WAITING))
        .order_by(Job.id)
        .options(lazyload(Job.user))
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement))


def _held_resources(session: Session, tenant_id: str) -> dict[str, Held]:
    statement = (
        select(Attempt.appliance_id, Attempt.gpu_uuids, Job.cpus, Job.memory_bytes)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.tenant_id == tenant_id, Attempt.state.in_(HOLDING))
    )
    held: dict[str, Held] = {}
    for appliance_id, gpu_uuids, cpus, memory_bytes in session.execute(statement):
        before = held.get(appliance_id, NOTHING_HELD)
        held[appliance_id] = Held(
            gpu_uuids=before.gpu_uuids | set(gpu_uuids),
            cpus=before.cpus + cpus,
            memory_bytes=before.memory_bytes + memory_bytes,
        )
    return held


def _last_used(session: Session, tenant_id: str) -> dict[str, datetime]:
    statement = (
        select(Attempt.appliance_id, func.max(Attempt.bound_at), func.max(Attempt.assigned_at))
        .where(Attempt.tenant_id == tenant_id)
        .group_by(Attempt.appliance_id)
    )
    return {
        appliance_id: max(bound_at, assigned_at or bound_at)
        for appliance_id, bound_at, assigned_at in session.execute(statement)
    }
