"""Actions of alerts on jobs and appliances, in the scope of the tenant."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import and_
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertAction
from alerting.rules.actions import Handler, NothingToDoError, call_webhook
from alerting.states import ActionKind
from jobqueue.dispatch.appliance_lifecycle import start_drain
from jobqueue.dispatch.desired_state import allocated_attempts
from jobqueue.models import Attempt, Job
from jobqueue.queue.service import get_job
from jobqueue.queue.stopping import stop_job
from tenants.fleet.appliance_changes import label_appliances
from tenants.fleet.appliances import get_appliance, read_inventory
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG


def stop_jobs(
    session: Session,
    scope: Scope,
    action: AlertAction,  # noqa: ARG001 - as the other handlers
    alert: Alert,
    *,
    now: datetime,
) -> str:
    """Stop the alert's job, else those on its GPU, else those on its appliance."""
    jobs = [job for job in _jobs(session, scope, alert.tags) if job.stop_requested_at is None]
    if not jobs:
        raise NothingToDoError("No job runs there.")
    for job in jobs:
        stop_job(session, scope, job.id, now=now)
    return f"Stop {', '.join(job.title for job in jobs)}"


def drain_appliance(
    session: Session,
    scope: Scope,
    action: AlertAction,  # noqa: ARG001 - as the other handlers
    alert: Alert,
    *,
    now: datetime,
) -> str:
    """Drain the alert's appliance."""
    appliance = _appliance(session, scope, alert.tags)
    if appliance.drained_at is not None:
        raise NothingToDoError(f"{appliance.name} is drained already.")
    start_drain(session, scope, appliance.id, now=now)
    return f"Drain {appliance.name}"


def label_appliance(
    session: Session, scope: Scope, action: AlertAction, alert: Alert, *, now: datetime
) -> str:
    """Set labels of the alert's appliance."""
    appliance, labels = _appliance(session, scope, alert.tags), action.action["labels"]
    label_appliances(session, scope, [appliance.id], added=labels, now=now)
    pairs = ", ".join(f"{key}={value}" for key, value in labels.items())
    return f"Label {appliance.name} with {pairs}"


HANDLERS: Mapping[ActionKind, Handler] = {
    ActionKind.STOP_JOBS: stop_jobs,
    ActionKind.DRAIN: drain_appliance,
    ActionKind.LABEL: label_appliance,
    ActionKind.WEBHOOK: call_webhook,
}


def _appliance(session: Session, scope: Scope, tags: Mapping[str, str]) -> Appliance:
    if APPLIANCE_TAG not in tags:
        raise NothingToDoError("The alert is not about an appliance.")
    return get_appliance(session, scope, tags[APPLIANCE_TAG])


def _jobs(session: Session, scope: Scope, tags: Mapping[str, str]) -> list[Job]:
    if "job" in tags:
        job = get_job(session, scope, tags["job"])
        return [] if job.state.is_final else [job]
    appliance = _appliance(session, scope, tags)
    on_it = and_(Attempt.tenant_id == appliance.tenant_id, Attempt.appliance_id == appliance.id)
    attempts = allocated_attempts(session, on_it)
    if "gpu" in tags:
        gpus = read_inventory(appliance).gpus
        uuids = {gpu.uuid for gpu in gpus if str(gpu.index) == tags["gpu"]}
        attempts = [attempt for attempt in attempts if uuids & set(attempt.gpu_uuids)]
        mig_uuid = tags.get("uuid", "")
        if mig_uuid.startswith("MIG-"):
            attempts = [attempt for attempt in attempts if _has_slice(attempt, mig_uuid)]
    return [attempt.job for attempt in attempts]


def _has_slice(attempt: Attempt, uuid: str) -> bool:
    """Return whether an attempt has a MIG slice, or the whole GPU, with its slices."""
    return attempt.gpu_slice is None or attempt.gpu_slice.get("uuid") == uuid
