"""The demo's past: the jobs that its simulated GPUs worked for in the history of their samples.

Jobs can't be submitted in the past, so they are added to the database, through the services and
as the user who submits jobs now.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from cli.database import open_database
from cli.demo_users import JOBS
from collector.data_dir import Identity
from core.clock import utc_now
from core.db import transaction
from core.settings import load_server_settings
from jobqueue.queue.past_jobs import PastJob, add_past_jobs
from jobqueue.states import JobState
from plugins.simulation.config import SimulationConfig, Workload, fraction
from plugins.simulation.history import job_id_of, planned_workloads
from protocol.job_spec import JobKind
from tenants.models import Role
from tenants.scope import Scope
from tenants.users.signin import find_user

LONGEST_WAIT = timedelta(minutes=8)
FAILED_SHARE = 0.08


def add_past(
    config: SimulationConfig, identity: Identity, email: str, *, planned: tuple[datetime, datetime]
) -> int:
    """Add the jobs of a simulated appliance's past; return how many.

    Args:
        config: of the simulated appliance.
        identity: its identity in the portal.
        email: whose jobs they are.
        planned: the span of its history.
    """
    with (
        open_database(load_server_settings()) as (_engine, sessions),
        transaction(sessions) as session,
    ):
        user = find_user(session, email)
        if user is None:
            return 0
        scope = Scope(user_id=user.id, role=Role.MEMBER, tenant_id=identity.tenant_id)
        jobs = list(past_jobs(config, *planned))
        return add_past_jobs(session, scope, identity.appliance_id, jobs, now=utc_now())


def past_jobs(config: SimulationConfig, start_at: datetime, end_at: datetime) -> Iterator[PastJob]:
    """Yield the jobs of a simulated appliance that ran in a span, cut at both ends."""
    for workload in planned_workloads(config, start_at, end_at):
        started_at = max(workload.started_at, start_at)
        finished_at = min(workload.until_at or end_at, end_at)
        if started_at < finished_at:
            yield _job(workload, started_at, finished_at)


def _job(workload: Workload, started_at: datetime, finished_at: datetime) -> PastJob:
    name = workload.workload_id
    trainings = [job for job in JOBS if not job.exit_code]
    template = trainings[int(fraction(f"job:{name}") * (len(trainings) - 1) + 0.5)]
    number = 100 + int(fraction(f"number:{name}") * 899)
    state = JobState.SUCCEEDED
    if workload.is_service:
        state = JobState.STOPPED
    elif fraction(f"failed:{name}") < FAILED_SHARE:
        state = JobState.FAILED
    return PastJob(
        id=job_id_of(workload),
        name=f"{'inference' if workload.is_service else template.name}-{number}",
        kind=JobKind.SERVICE if workload.is_service else JobKind.BATCH,
        image="acme/serve:1.3" if workload.is_service else template.image,
        command=("python", "serve.py") if workload.is_service else template.command,
        gpu_uuids=workload.gpu_uuids,
        cpus=round(workload.cpus, 1),
        memory_bytes=workload.memory_bytes,
        submitted_at=started_at - fraction(f"wait:{name}") * LONGEST_WAIT,
        started_at=started_at,
        finished_at=finished_at,
        state=state,
    )
