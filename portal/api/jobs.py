"""`/jobs`: submit, list, follow and stop jobs."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from marshmallow import fields, validate
from sqlalchemy.orm import Session

from core.keyset import KeysetPage
from jobqueue.jobs.job_secrets import make_secret
from jobqueue.jobs.shown import shown_job
from jobqueue.models import Job
from jobqueue.queue.resubmission import retry_job, set_priority
from jobqueue.queue.retention import delete_job
from jobqueue.queue.service import JOB_SORTS, get_job, job_events, list_jobs, submit_job
from jobqueue.queue.stopping import stop_array, stop_job
from jobqueue.states import JobState
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import JobRequestSchema, job_request
from portal.api.job_schemas import EventSchema, JobDetailSchema, JobSchema
from portal.api.objects import Objects
from portal.api.schemas import (
    KeysetQuery,
    StrictSchema,
    about,
    keyset_page_of,
    sort_field,
)
from portal.context import current_scope, database, in_parts, now, portal
from portal.presenters.arrays import listed
from protocol.job_spec import MAX_PRIORITY
from tenants.permissions import Permission

jobs = APIBlueprint("Jobs", "/jobs", "Container jobs.", changes=Permission.SUBMIT_JOBS)


class SecretNamesSchema(StrictSchema):
    """Names of variables that become secret."""

    names = fields.List(fields.String(), required=True, validate=validate.Length(min=1))


class JobQuery(KeysetQuery):
    """Filters of the list."""

    state = fields.Enum(JobState, by_value=True, load_default=None)
    search = fields.String(load_default="")
    user = fields.String(load_default="", **about("An email address, an ID, or `me`."))
    appliance_id = fields.String(load_default="")
    label = fields.String(load_default="", **about("`project` or `project=vision`."))
    since = fields.AwareDateTime(load_default=None, **about("Submitted at this time or later."))
    until = fields.AwareDateTime(load_default=None, **about("Submitted before this time."))
    project = fields.String(load_default="", **about("Name or id."))
    array_id = fields.String(load_default="", **about("Tasks of this array."))
    is_collapsed = fields.Boolean(load_default=False, **about("Only the first task of each array."))
    sort = sort_field(JOB_SORTS, default="-submitted_at")


class PrioritySchema(StrictSchema):
    """A new priority."""

    priority = fields.Integer(
        strict=True, required=True, validate=validate.Range(min=-MAX_PRIORITY, max=MAX_PRIORITY)
    )


def shown_jobs(session: Session, rows: Sequence[Job]) -> list[Job]:
    """Return changed jobs as they are shown."""
    return [shown_job(session, job) for job in rows]


@jobs.operation("GET", query=JobQuery, answer=keyset_page_of(JobSchema))
def list_all(query: dict[str, Any]) -> KeysetPage[Any]:
    """List jobs, newest first."""
    with database() as session:
        page = list_jobs(session, current_scope(), **query)
        if not query["is_collapsed"]:
            return page
        return page.of(listed(session, current_scope(), page.items))


@jobs.operation("POST", body=JobRequestSchema, answer=JobDetailSchema, status=HTTPStatus.CREATED)
def submit(body: dict[str, Any]) -> Job:
    """Submit a job; it runs on the first appliance with enough free resources."""
    with database() as session:
        job = submit_job(
            session, current_scope(), job_request(body), box=portal().secrets, now=now()
        )
        return shown_job(session, job)


@jobs.operation("GET", "/<job_id>", answer=JobDetailSchema)
def show(job_id: str) -> Job:
    """Return a job with all its attempts."""
    with database() as session:
        return get_job(session, current_scope(), job_id)


@jobs.operation("DELETE", "/<job_id>", status=HTTPStatus.NO_CONTENT)
def delete(job_id: str) -> None:
    """Delete an ended job with its attempts, history and logs; 409 if it has not ended.

    With the first task of an array, all its tasks are deleted. Its usage stays in reports.
    """
    scope, at = current_scope(), now()

    def delete_part(session: Session) -> tuple[Job, bool]:
        jobs.check_if_match(
            session, Job, job_id, lambda: get_job(session, scope, job_id), JobDetailSchema
        )
        return delete_job(session, scope, job_id, now=at)

    in_parts(delete_part)


objects = Objects(jobs, "/<job_id>", read=get_job, answer=JobDetailSchema, shown=shown_jobs)
objects.acts(
    "Submit a job again, as it is; one with secrets only by its user.",
    retry_job,
    "retry",
    status=HTTPStatus.CREATED,
)
objects.acts(
    "Change the priority of a job that waits; above 0 only by an admin.",
    set_priority,
    "priority",
    body=PrioritySchema,
    name="change_priority",
)
objects.acts("Request that a job stops; idempotent.", stop_job, "stop")


@jobs.operation("POST", "/<job_id>/stop-array", answer=JobDetailSchema)
def stop_all(job_id: str) -> Job:
    """Request that all tasks of a job's array stop."""
    scope, at = current_scope(), now()

    def stop_part(session: Session) -> tuple[Job, bool]:
        job, is_done = stop_array(session, scope, job_id, now=at)
        return (shown_job(session, job) if is_done else job), is_done

    return in_parts(stop_part)


objects.acts(
    "Turn plain environment variables of a job into secrets.\n\nTheir values are not returned any "
    "more. Backups of the database may still have them.",
    make_secret,
    "make-secret",
    body=SecretNamesSchema,
    name="hide_variables",
)
objects.lists(
    "List the events of a job, oldest first.",
    job_events,
    path="/<job_id>/events",
    answer=EventSchema,
    name="events",
)
