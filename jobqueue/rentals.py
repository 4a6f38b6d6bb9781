"""Attempts of customers on appliances that they rent: what their providers see of them.

That is which contract they run under, with which GPUs and since when: never names, images,
environment, output or files. See `docs/security.md`.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Unpack

import msgspec
from sqlalchemy import ColumnElement, Select, and_, func, or_, select, true
from sqlalchemy.orm import Session, lazyload

from core.paging import Columns, Page, Paging, list_page
from datasets.models import Dataset, DatasetVersion
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES, AttemptState
from protocol.gpu_processes import GPUProcess
from protocol.lines import LineBatch
from protocol.storage import full_image_name
from tenants.fleet.appliances import get_appliance
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

RENTED_JOB = "rented job"
HIDDEN_IMAGE = "image of a rented job"
HIDDEN_WORD = "(of a rented job)"
RENTED_JOB_SORTS: Columns = {"since": func.coalesce(Attempt.started_at, Attempt.assigned_at)}
# Lines about an attempt may come after its end, and images are named longer than that.
_REMEMBERED = timedelta(days=1)
_MAX_JOBS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedJob:
    """A customer's job on an appliance, as the appliance's tenant sees it; it has no page there."""

    name: ClassVar[str] = RENTED_JOB
    id: str
    contract_id: str
    state: AttemptState
    gpu_uuids: Sequence[str]
    since: datetime | None


ListedJob = Job | RentedJob
"""A job as lists of what runs on an appliance have it."""


def rented_job(attempt: Attempt) -> RentedJob:
    """Return what the provider sees of an attempt."""
    return RentedJob(
        id=attempt.job_id,
        contract_id=attempt.contract_id or "",
        state=attempt.state,
        gpu_uuids=attempt.gpu_uuids,
        since=attempt.started_at or attempt.assigned_at,
    )


def listed_job(attempt: Attempt, scope: Scope) -> ListedJob:
    """Return the job of an attempt as a scope sees it that has its appliance."""
    is_hidden = attempt.contract_id is not None and not scope.owns(attempt)
    return rented_job(attempt) if is_hidden else attempt.job


def owner_text(job: ListedJob) -> str:
    """Return whose a job is."""
    if isinstance(job, RentedJob):
        return "another tenant"
    return job.user.name if job.user else "deleted user"


def on_appliances_of(scope: Scope) -> ColumnElement[bool]:
    """Return the condition of attempts on a scope's appliances, those of customers included."""
    return true() if scope.tenant_id is None else on_appliances_of_tenant(scope.tenant_id)


def on_appliances_of_tenant(tenant_id: str) -> ColumnElement[bool]:
    """Return the condition of attempts on a tenant's appliances, those of customers included."""
    own = select(Appliance.id).where(Appliance.tenant_id == tenant_id)
    return or_(
        and_(Attempt.contract_id.is_(None), Attempt.tenant_id == tenant_id),
        and_(Attempt.contract_id.is_not(None), Attempt.appliance_id.in_(own)),
    )


def list_rented_jobs(
    session: Session, scope: Scope, appliance_id: str, **paging: Unpack[Paging]
) -> Page[RentedJob]:
    """Return the jobs of customers that have resources of an appliance in the scope now."""
    scope.require(Permission.VIEW)
    appliance = get_appliance(session, scope, appliance_id)
    statement = (
        select(Attempt)
        .where(
            Attempt.appliance_id == appliance.id,
            Attempt.contract_id.is_not(None),
            Attempt.state.in_(ALLOCATED_STATES),
        )
        .options(lazyload("*"))
    )
    page = list_page(session, statement, RENTED_JOB_SORTS, last=Attempt.id, **paging)
    return page.of([rented_job(attempt) for attempt in page.items])


def are_rented(session: Session, appliance_id: str, job_ids: Collection[str]) -> set[str]:
    """Return which of some jobs ran, or run, on an appliance that their tenant rented."""
    statement = select(Attempt.job_id).where(
        Attempt.appliance_id == appliance_id,
        Attempt.job_id.in_(job_ids),
        Attempt.contract_id.is_not(None),
    )
    return set(session.scalars(statement)) if job_ids else set()


def rented_data(session: Session, appliance_id: str) -> dict[str, str]:
    """Return the versions of datasets that rented attempts on an appliance read, with tenants."""
    jobs = _rented_jobs(appliance_id).where(Attempt.state.in_(ALLOCATED_STATES))
    return {
        mount["version_id"]: job.tenant_id
        for job in session.scalars(jobs)
        for mount in job.datasets
    }


def images_of_customers(session: Session, appliance_id: str, *, now: datetime) -> set[str]:
    """Return the images of customers' jobs on an appliance, as they are named, of late."""
    return {job.image for job in _jobs_of_customers(session, appliance_id, now=now)}


def words_of_customers(session: Session, appliance_id: str, *, now: datetime) -> set[str]:
    """Return what lines of an appliance may name of customers' jobs: images and sources of data."""
    jobs = _jobs_of_customers(session, appliance_id, now=now)
    versions = {mount["version_id"] for job in jobs for mount in job.datasets}
    sources = (
        select(Dataset.source_url)
        .join(DatasetVersion, DatasetVersion.dataset_id == Dataset.id)
        .where(DatasetVersion.id.in_(versions), Dataset.source_url != "")
    )
    urls = set(session.scalars(sources)) if versions else set()
    return urls.union(*(_names_in_lines(job.image) for job in jobs))


def _jobs_of_customers(session: Session, appliance_id: str, *, now: datetime) -> Sequence[Job]:
    is_recent = or_(Attempt.finished_at.is_(None), Attempt.finished_at > now - _REMEMBERED)
    jobs = _rented_jobs(appliance_id).where(is_recent)
    return session.scalars(jobs.order_by(Attempt.id.desc()).limit(_MAX_JOBS)).all()


def _rented_jobs(appliance_id: str) -> Select[Job]:
    """Return the jobs that ran, or run, on an appliance that their tenant rented."""
    joined = select(Job).join(Attempt, Attempt.job_id == Job.id).options(lazyload("*"))
    return joined.where(Attempt.appliance_id == appliance_id, Attempt.contract_id.is_not(None))


def without_names(
    session: Session, appliance_id: str, processes: Sequence[GPUProcess] | None
) -> Sequence[GPUProcess] | None:
    """Return the processes on an appliance's GPUs, those of rented jobs without their names."""
    rented = are_rented(session, appliance_id, {process.job for process in processes or ()} - {""})
    if not rented:
        return processes
    return [
        msgspec.structs.replace(process, name="", container="")
        if process.job in rented
        else process
        for process in processes or ()
    ]


def without_words(batches: Sequence[LineBatch], words: Collection[str]) -> Sequence[LineBatch]:
    """Return lines of an appliance without what they name of its customers' jobs."""
    if not words:
        return batches
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
    return [
        msgspec.structs.replace(
            batch,
            lines=[
                msgspec.structs.replace(line, text=pattern.sub(HIDDEN_WORD, line.text))
                for line in batch.lines
            ],
        )
        for batch in batches
    ]


def _names_in_lines(image: str) -> Iterator[str]:
    """Yield how lines name an image; a repository without a namespace may be any word."""
    yield image
    full = full_image_name(image)
    yield full
    repository = image.partition("@")[0]
    if "/" in repository:
        head, _, last = repository.rpartition("/")
        yield f"{head}/{last.partition(':')[0]}"
