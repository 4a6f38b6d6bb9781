"""Builders for tests of fleet advice: two weeks of a fleet, with jobs that ran in whole hours."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from core.ids import new_id
from jobqueue.advice.figures import Addition, FleetFigures, ModelFigures, Waiting
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, JobState
from jobqueue.usage.models import UsageEntry, UsageHour
from protocol.job_spec import JobKind
from tenants.models import Appliance, Tenant, User
from tests.unit.jobqueue.builders import GIB, add_appliance, gpu_uuid

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# A Monday in UTC, as the day two weeks later.
MONDAY = datetime.fromisoformat("2026-02-16T00:00:00+00:00")
LATER = MONDAY + 14 * DAY
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
WORKDAYS = [day for day in range(14) if day % 7 < 5]
MILLISECONDS = 3_600_000
HOURS = 14 * 24


def add_gpus(
    session: Session,
    tenant: Tenant,
    name: str,
    *,
    model: str,
    gpus: int,
    since: datetime = MONDAY,
) -> Appliance:
    """Add an appliance that has been online since the Monday."""
    listed = [
        {"index": at, "uuid": gpu_uuid(name, at), "model": model, "memory_bytes": 80 * GIB}
        for at in range(gpus)
    ]
    appliance = add_appliance(session, tenant, name, gpus=listed)
    appliance.enrolled_at = since
    session.flush()
    return appliance


def add_run(
    session: Session,
    user: User,
    appliance: Appliance,
    start_at: datetime,
    *,
    hours: int = 1,
    gpus: int = 1,
    waited_hours: float = 0,
    idle_ratio: float = 0.0,
    contract_id: str | None = None,
) -> Job:
    """Add a job that ran on the first GPUs of an appliance, and its rows of the ledger."""
    model = appliance.gpu_model
    job = _job(user, submitted_at=start_at - waited_hours * HOUR, gpus=gpus)
    job.state, job.started_at = JobState.SUCCEEDED, start_at
    job.finished_at = start_at + hours * HOUR
    attempt = Attempt(
        id=new_id(),
        job_id=job.id,
        tenant_id=job.tenant_id,
        appliance_id=appliance.id,
        number=1,
        state=AttemptState.SUCCEEDED,
        gpu_uuids=[gpu_uuid(appliance.name, at) for at in range(gpus)],
        bound_at=start_at,
        assigned_at=start_at,
        started_at=start_at,
        finished_at=job.finished_at,
        contract_id=contract_id,
        provider_id=appliance.tenant_id if contract_id else None,
    )
    allocated = gpus * MILLISECONDS
    rows = [
        UsageEntry(
            hour_at=start_at + number * HOUR,
            tenant_id=job.tenant_id,
            user_id=user.id,
            job_id=job.id,
            job_name=job.name,
            attempt_id=attempt.id,
            appliance_id=appliance.id,
            contract_id=contract_id,
            gpu_model=model,
            revision=0,
            allocated_milliseconds=allocated,
            used_milliseconds=round(allocated * (1 - idle_ratio)),
            idle_milliseconds=round(allocated * idle_ratio),
            energy_joules=0,
            recorded_at=start_at,
        )
        for number in range(hours)
    ]
    session.add_all([job, attempt, *rows])
    session.flush()
    return job


def add_waiting(session: Session, user: User, *, since: datetime, gpus: int, models: str) -> Job:
    """Add a job that still waits for GPUs."""
    job = _job(user, submitted_at=since, gpus=gpus)
    job.gpu_models = models.split()
    session.add(job)
    session.flush()
    return job


def close_ledger(session: Session, *, until: datetime = LATER) -> None:
    """Let the ledger have all hours of the two weeks."""
    session.add(UsageHour(hour_at=until - HOUR, recorded_at=until))
    session.flush()


def busy_fleet(session: Session, user: User, tenant: Tenant, *, monday: datetime = MONDAY) -> None:
    """Add two weeks: 8 H100, busy from 9 to 17 on workdays with a queue, and 4 A100 without jobs.

    At 9, two jobs for 8 H100 for 4 hours arrive; the second one starts at 13, after 4 hours. Its
    GPUs are idle half of the time.
    """
    dgx = add_gpus(session, tenant, "dgx-01", model=H100, gpus=8, since=monday)
    add_gpus(session, tenant, "spare-01", model=A100, gpus=4, since=monday)
    for day in WORKDAYS:
        morning = monday + day * DAY + 9 * HOUR
        add_run(session, user, dgx, morning, hours=4, gpus=8)
        afternoon = morning + 4 * HOUR
        add_run(session, user, dgx, afternoon, hours=4, gpus=8, waited_hours=4, idle_ratio=0.5)
    close_ledger(session, until=monday + 14 * DAY)


def model(name: str, **hourly: list[float]) -> ModelFigures:
    """Return the figures of a model with 8 GPUs; lists that are not given are 0."""
    lists = ("capacity", "allocated", "idle", "rented", "waiting")
    arrays: dict[str, Any] = {field: hourly.get(field, [0.0] * HOURS) for field in lists}
    return ModelFigures(gpu_model=name, gpus=8, appliances=1, **arrays)


def figures(*models: ModelFigures, **changes: Any) -> FleetFigures:
    """Return the figures of two weeks."""
    fields: dict[str, Any] = {"since": MONDAY, "until": LATER, "appliances": []}
    return FleetFigures(models=list(models), **(fields | changes))


def hourly(value: float, *, hours: range = range(24), otherwise: float = 0.0) -> list[float]:
    """Return a value at some hours of each day."""
    return [value if number % 24 in hours else otherwise for number in range(HOURS)]


SHORT = model(H100, capacity=hourly(8), allocated=hourly(8), waiting=hourly(8, hours=range(9, 13)))
ADDITION = Addition(
    gpu_model=H100,
    appliance="dgx-01",
    gpus=8,
    today=Waiting(jobs=28, wait_seconds_p50=7200, wait_seconds_p95=14400, waiting_gpu_hours=448),
    changed=Waiting(jobs=28, wait_seconds_p50=0, wait_seconds_p95=60, waiting_gpu_hours=0.5),
)


def _job(user: User, *, submitted_at: datetime, gpus: int) -> Job:
    return Job(
        id=new_id(),
        tenant_id=user.memberships[0].tenant_id,
        user_id=user.id,
        name="train",
        kind=JobKind.BATCH,
        image="acme/train:1",
        gpus=gpus,
        memory_bytes=GIB,
        state=JobState.QUEUED,
        submitted_at=submitted_at,
    )
