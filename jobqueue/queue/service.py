"""Submit, list, read and stop jobs. Every call checks the permissions of its scope."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session, aliased, selectinload

from core.errors import InvalidInputError, NotFoundError
from core.ids import new_id
from core.keyset import KeysetPage, keyset_page
from core.paging import DEFAULT_PAGE_SIZE, Columns
from core.secretbox import SecretBox
from jobqueue.dispatch.appliance_views import models_of
from jobqueue.dispatch.usable_appliances import tenant_views, usable_views
from jobqueue.dispatch.waiting_jobs import job_view
from jobqueue.holds.service import require_no_hold
from jobqueue.jobs.appliance_requests import check_capacity
from jobqueue.jobs.cluster_requests import cluster_errors
from jobqueue.jobs.end_notices import notify_errors
from jobqueue.jobs.job_secrets import encrypt_secrets, secrets_of_request
from jobqueue.jobs.relations import (
    ArraySpec,
    Dependencies,
    add_dependencies,
    add_other_tasks,
    check_array_size,
    find_dependencies,
    parse_array,
    stored_dependencies,
    waiting_message,
)
from jobqueue.jobs.requests import check_request, permission_errors
from jobqueue.jobs.settings import mount_errors, policy_for_job, settings_of
from jobqueue.jobs.shown import with_attempts, with_users
from jobqueue.jobs.transitions import record_event
from jobqueue.models import Attempt, Job, JobEvent, ServiceScaler
from jobqueue.placement.views import ApplianceView, queue_time
from jobqueue.projects.models import Project
from jobqueue.projects.service import project_for_job
from jobqueue.queue.dataset_use import resolve_datasets
from jobqueue.rentals import on_appliances_of
from jobqueue.states import WAITING, JobState, Reason
from protocol.job_spec import JobRequest
from tenants.fleet.states import in_service
from tenants.models import Appliance, User
from tenants.permissions import Permission
from tenants.quotas import count_rows, reserve_quota
from tenants.scope import Scope

JOB_SORTS: Columns = {
    "name": Job.name,
    "state": Job.state,
    "submitted_at": Job.submitted_at,
    "started_at": Job.started_at,
    "finished_at": Job.finished_at,
    "gpus": Job.gpus,
}
# Fields of a request that are stored otherwise.
_NOT_STORED = frozenset(
    {"secrets", "secrets_from", "after_ok", "after_any", "array", "instances"}
    | {"kind", "container_policy", "project"}
)
MAX_JOBS = 100


def attempts_between(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    start: datetime,
    end: datetime,
    limit: int,
    has_rented: bool = False,
) -> Sequence[Attempt]:
    """Return the attempts that ran on an appliance or a node in a time range, newest first.

    With `has_rented`, those of customers are among them: `jobqueue.rentals.listed_job` has what the
    scope may see of them.
    """
    scope.require(Permission.VIEW)
    statement = (
        select(Attempt)
        .where(
            or_(Attempt.appliance_id == appliance_id, Attempt.node_id == appliance_id),
            Attempt.started_at < end,
            or_(Attempt.finished_at.is_(None), Attempt.finished_at > start),
        )
        .options(*with_users(), selectinload(Attempt.node))
        .order_by(Attempt.started_at.desc())
        .limit(limit)
    )
    if has_rented:
        statement = statement.where(on_appliances_of(scope))
    else:
        statement = scope.select(statement, Attempt)
    return session.scalars(statement).unique().all()


def submit_job(
    session: Session,
    scope: Scope,
    request: JobRequest,
    *,
    box: SecretBox,
    now: datetime,
    views: Sequence[ApplianceView] | None = None,
) -> Job:
    """Add a job to the queue; it is considered for placement once the session has committed.

    Args:
        session: the session.
        scope: of the user.
        request: the job.
        box: encrypts its secrets.
        now: the time.
        views: the appliances that the tenant has and rents, if the caller has read them.

    Raises:
        InvalidInputError: names every invalid field, or a container policy that the tenant does
            not allow, or an array that is too large; code `exceeds_every_appliance` if no
            appliance of the tenant is large enough.
        ForbiddenError: `secrets_from` is another user's job.
        ConflictError: the tenant's job quota is reached, or a budget that the job counts towards
            is spent.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    job, dependencies = checked_job(session, scope, request, now=now, views=views)
    require_no_hold(session, job)
    secrets = secrets_of_request(session, scope, request, box=box)
    job.secret_env, job.secret_names = encrypt_secrets(box, secrets), sorted(secrets)
    members = max(request.instances, request.nodes)
    array = parse_array(request.array) if request.array else ArraySpec(range(members))
    adding = len(array.indexes)
    check_array_size(job, adding)
    reserve_jobs(session, tenant_id, adding)
    if request.array or members > 1:
        job.id = job.array_id = new_id()
        job.array_index, job.array_size, job.array_limit = array.indexes[0], adding, array.limit
    session.add(job)
    session.flush()
    session.refresh(job)
    record_event(session, job, now=now)
    add_dependencies(session, job, dependencies)
    if job.autoscaling is not None:
        session.add(ServiceScaler(service_id=job.id, tenant_id=tenant_id, evaluate_at=now))
    session.flush()
    add_other_tasks(session, job, array.indexes[1:], is_notice_due=False)
    return job


def apply_jobs(
    session: Session, scope: Scope, requests: Sequence[JobRequest], *, box: SecretBox, now: datetime
) -> list[Job]:
    """Submit up to `MAX_JOBS` jobs in their order; roll the transaction back on an error.

    Raises:
        InvalidInputError: with the errors of all jobs, by `jobs.NUMBER.FIELD`.
    """
    scope.require(Permission.SUBMIT_JOBS)
    views = usable_views(session, scope.require_tenant(), now=now)
    jobs: list[Job] = []
    errors: dict[str, list[str]] = {}
    for number, request in enumerate(requests):
        try:
            jobs.append(submit_job(session, scope, request, box=box, now=now, views=views))
        except InvalidInputError as error:
            job_errors = error.errors or {"name": [error.message]}
            errors |= {f"jobs.{number}.{name}": list(texts) for name, texts in job_errors.items()}
    if errors:
        count = sum(map(len, errors.values()))
        message = f"No job was submitted: {count} error{'' if count == 1 else 's'}."
        raise InvalidInputError(message, errors=errors)
    return jobs


def rehearse_jobs(
    session: Session, scope: Scope, requests: Sequence[JobRequest], *, box: SecretBox, now: datetime
) -> list[Job]:
    """Return the jobs that `apply_jobs` would submit, of arrays the first task; nothing is stored.

    Raises:
        InvalidInputError: as `apply_jobs` does.
    """
    savepoint = session.begin_nested()
    jobs = apply_jobs(session, scope, requests, box=box, now=now)
    session.expunge_all()
    savepoint.rollback()
    return jobs


def checked_job(
    session: Session,
    scope: Scope,
    request: JobRequest,
    *,
    now: datetime,
    views: Sequence[ApplianceView] | None = None,
) -> tuple[Job, Dependencies]:
    """Return the job of a request, not yet in the session and without its secrets.

    With it come the jobs that it waits for.

    Raises:
        InvalidInputError: names every invalid field; or no appliance is large enough.
    """
    tenant_id = scope.require_tenant()
    settings = settings_of(session, tenant_id)
    errors = [("mounts", error) for error in mount_errors(request.mounts, settings.data_roots)]
    errors += permission_errors(request, settings)
    errors += notify_errors(session, tenant_id, request.notify)
    staged, dataset_errors = resolve_datasets(session, tenant_id, request)
    errors += dataset_errors
    policy = None
    try:
        policy = policy_for_job(session, tenant_id, request.container_policy)
    except InvalidInputError as error:
        errors.append(("container_policy", error.message))
    project = None
    try:
        project = project_for_job(session, scope, request.project)
    except InvalidInputError as error:
        errors.append(("project", error.message))
    wanted = request.appliance_id
    if views is None and wanted is None and request.max_gpu_hour_price:
        views = usable_views(session, tenant_id, now=now)
    elif views is None:
        views = tenant_views(session, tenant_id, only=None if wanted is None else [wanted])
    if not request.max_gpu_hour_price:
        views = [view for view in views if view.rental is None]
    if wanted is not None:
        views = [view for view in views if wanted in {view.id, view.name}]
        if not views:
            errors.append(("appliance_id", _missing_text(session, tenant_id, wanted)))
        else:
            request = replace(request, appliance_id=views[0].id)
    place = views[0].name if wanted is not None and views else None
    errors += cluster_errors(session, tenant_id, replace(request, appliance_id=place))
    dependencies, missing_jobs = find_dependencies(
        session, scope, {"after_ok": request.after_ok, "after_any": request.after_any}
    )
    check_request(request, (*errors, *missing_jobs), scope=scope)
    checked = replace(request, name=request.name.strip(), container_policy=policy)
    values = msgspec.to_builtins(checked) | {"datasets": staged}
    job = Job(
        **{name: value for name, value in values.items() if name not in _NOT_STORED},
        kind=request.kind,
        container_policy=policy,
        project_id=None if project is None else project.id,
        dependencies=stored_dependencies(dependencies),
        reason=Reason.WAITING_FOR_DEPENDENCY if dependencies else Reason.NONE,
        message=waiting_message(dependencies) if dependencies else "",
        tenant_id=tenant_id,
        user_id=scope.user_id,
        state=JobState.SUBMITTED,
        queue_at=queue_time(now, request.priority),
        submitted_at=now,
    )
    check_capacity(job_view(job, models_of(views)), views, now=now)
    return job, dependencies


def _missing_text(session: Session, tenant_id: str, wanted: str) -> str:
    """Return why a job can't request an appliance: it is a node of a cluster, or there is none."""
    is_wanted = or_(Appliance.id == wanted, Appliance.name == wanted)
    named = (Appliance.tenant_id == tenant_id, is_wanted, in_service())
    connector = aliased(Appliance)
    nodes = select(connector.name).join(Appliance, Appliance.connector_id == connector.id)
    name = session.scalar(nodes.where(*named))
    if name is None:
        return NotFoundError.of("appliance", wanted).message
    return f"{wanted!r} is a node of a cluster, whose own queue chooses the node; request {name!r}."


def reserve_jobs(session: Session, tenant_id: str, adding: int) -> None:
    """Raise `ConflictError` if a tenant may not have so many more jobs."""
    for name, count in (("active_jobs", active_jobs), ("waiting_jobs", waiting_jobs)):
        reserve_quota(session, tenant_id, name, partial(count, session, tenant_id), adding=adding)


def waiting_jobs(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's jobs that have not started."""
    return count_rows(session, Job.tenant_id == tenant_id, Job.state.in_(WAITING))


def active_jobs(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's jobs that have not ended."""
    active = [state for state in JobState if not state.is_final]
    return count_rows(session, Job.tenant_id == tenant_id, Job.state.in_(active))


class JobFilters(TypedDict, total=False):
    """Filters of the list; empty ones do not filter.

    `search` is a text in the name, image or id. `user` is an email address, an id, or `me`;
    `appliance_id` one on which an attempt was placed, or the node of a cluster where it runs;
    `label` reads `project` or `project=vision`. `project` is a name or an id. `since` and `until`
    limit the time of submission; `array_id` selects the tasks of an array, and `is_collapsed` only
    the first of each.
    """

    state: JobState | None
    search: str
    user: str
    appliance_id: str
    label: str
    since: datetime | None
    until: datetime | None
    array_id: str
    project: str
    is_collapsed: bool


def list_jobs(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    after: str = "",
    before: str = "",
    page_size: int = DEFAULT_PAGE_SIZE,
    **filters: Unpack[JobFilters],
) -> KeysetPage[Job]:
    """Return the jobs visible to the scope, newest first; `sort` has names of `JOB_SORTS`.

    `after` and `before` are cursors of another page.
    """
    scope.require(Permission.VIEW)
    statement = scope.select(select(Job), Job).where(*_conditions(scope, filters))
    statement = statement.options(*with_attempts())
    cursors = {"after": after, "before": before}
    return keyset_page(
        session, statement, JOB_SORTS, last=Job.id, sort=sort, size=page_size, **cursors
    )


def _conditions(scope: Scope, filters: JobFilters) -> Iterator[ColumnElement[bool]]:
    if (state := filters.get("state")) is not None:
        yield Job.state == state
    if search := filters.get("search"):
        columns = (Job.name, Job.image, Job.id)
        yield or_(*(column.icontains(search, autoescape=True) for column in columns))
    if user := filters.get("user"):
        of_email = select(User.id).where(User.email == user.lower())
        wanted = scope.user_id if user == "me" else user
        yield or_(Job.user_id == wanted, Job.user_id.in_(of_email))
    if appliance_id := filters.get("appliance_id"):
        is_there = or_(Attempt.appliance_id == appliance_id, Attempt.node_id == appliance_id)
        # Whether a rented appliance is a certain one is not for its customer.
        is_own = Attempt.contract_id.is_(None)
        yield Job.id.in_(select(Attempt.job_id).where(is_there, is_own))
    if label := filters.get("label"):
        key, equals, value = label.partition("=")
        # Other characters are not in labels, and quotes would end the path in the document.
        label_value = Job.labels[key.replace('"', "").replace("\\", "")].as_string()
        yield label_value == value if equals else label_value.is_not(None)
    if project := filters.get("project"):
        of_name = select(Project.id).where(Project.name == project)
        yield or_(Job.project_id == project, Job.project_id.in_(of_name))
    if array_id := filters.get("array_id"):
        yield Job.array_id == array_id
    if filters.get("is_collapsed"):
        yield or_(Job.array_id.is_(None), Job.array_id == Job.id)
    yield from _time_conditions(filters)


def _time_conditions(filters: JobFilters) -> Iterator[ColumnElement[bool]]:
    if (since := filters.get("since")) is not None:
        yield Job.submitted_at >= since
    if (until := filters.get("until")) is not None:
        yield Job.submitted_at < until


def get_job(session: Session, scope: Scope, job_id: str) -> Job:
    """Return a job; another tenant's job is not found."""
    scope.require(Permission.VIEW)
    return scope.get(session, Job, job_id, kind="job", options=with_attempts())


def job_events(session: Session, scope: Scope, job_id: str) -> list[JobEvent]:
    """Return a job's history, oldest first."""
    job = get_job(session, scope, job_id)
    statement = select(JobEvent).where(JobEvent.job_id == job.id)
    return list(session.scalars(statement.order_by(JobEvent.id)))


def job_counts(session: Session, scope: Scope) -> dict[JobState, int]:
    """Return how many jobs are in each state, those with none included."""
    scope.require(Permission.VIEW)
    counted: Any = select(Job.state, func.count()).group_by(Job.state)
    rows = session.execute(scope.select(counted, Job)).all()
    return dict.fromkeys(JobState, 0) | {row[0]: row[1] for row in rows}
