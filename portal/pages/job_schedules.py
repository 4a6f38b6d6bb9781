"""`/jobs/schedules`: the schedules of jobs, and the runs of each."""

from functools import partial

from flask import render_template
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from jobqueue.models import JobSchedule
from jobqueue.queue.schedule_runs import run_now
from jobqueue.queue.schedules import (
    delete_schedule,
    enable_schedule,
    get_schedule,
    list_runs,
    list_schedules,
    next_runs,
)
from jobqueue.queue.templates import load_request
from portal.context import current_scope, database, now, portal
from portal.pages.common import Pages, changing
from portal.query_string import asked_page
from tenants.permissions import Permission

pages = Pages("job_schedules", __name__)


@pages.get("/jobs/schedules")
def index() -> ResponseReturnValue:
    """List the schedules."""
    with database() as session:
        page = list_schedules(session, current_scope(), **asked_page())
    return render_template("jobs/schedules.html", page=page)


@pages.get("/jobs/schedules/<schedule_id>")
def show(schedule_id: str) -> ResponseReturnValue:
    """Show a schedule and its runs."""
    scope = current_scope()
    with database() as session:
        schedule = get_schedule(session, scope, schedule_id)
        page = list_runs(session, scope, schedule_id, **asked_page())
    return render_template(
        "jobs/schedule.html",
        schedule=schedule,
        job=load_request(schedule.request),
        page=page,
        next_runs=next_runs(schedule),
        may_change=_may_change(schedule),
        # Its jobs run as its user.
        may_edit=schedule.user_id == scope.user_id,
    )


@pages.post("/jobs/schedules/<schedule_id>/run")
@changing(back=".show")
def run(session: Session, schedule_id: str) -> str:
    """Submit a job of a schedule now."""
    made = run_now(session, current_scope(), schedule_id, box=portal().secrets, now=now())
    return made.message or "Job submitted"


pages.acts(
    "/jobs/schedules/<schedule_id>/enable",
    partial(enable_schedule, is_enabled=True),
    "Schedule {.name} enabled",
    back=".show",
)
pages.acts(
    "/jobs/schedules/<schedule_id>/disable",
    partial(enable_schedule, is_enabled=False),
    "Schedule {.name} disabled",
    back=".show",
)
pages.acts("/jobs/schedules/<schedule_id>/delete", delete_schedule, "Schedule {} deleted")


def _may_change(schedule: JobSchedule) -> bool:
    is_own = schedule.user_id == current_scope().user_id
    return current_scope().allows(Permission.SUBMIT_JOBS if is_own else Permission.STOP_ANY_JOB)
