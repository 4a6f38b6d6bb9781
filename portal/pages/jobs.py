"""`/jobs`: the queue, the form that feeds it, and the page that follows one job."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from core.paging import MAX_PAGE_SIZE
from jobqueue.service import get_job, job_counts, job_events, list_jobs, stop_job, submit_job
from jobqueue.states import JobState
from portal.context import current_scope, database, now
from portal.forms.jobs import RENAMED, JobForm
from portal.pages.paging import PAGE_SIZE, chosen, page_number, search_text
from portal.showing.health import troubles
from portal.showing.placement import gpu_names, stepper
from tenants.fleet.appliances import appliance_names, list_appliances
from tenants.permissions import Permission
from tenants.scope import Scope

pages = Blueprint("jobs", __name__)


@pages.get("/jobs")
def index() -> ResponseReturnValue:
    """List the jobs, newest first."""
    scope = current_scope()
    with database() as session:
        page = list_jobs(
            session,
            scope,
            state=chosen(JobState),
            search=search_text(),
            page=page_number(),
            page_size=PAGE_SIZE,
        )
        counts = job_counts(session, scope)
    return render_template("jobs/index.html", page=page, counts=counts, states=JobState)


@pages.get("/jobs/new")
@pages.post("/jobs/new")
def add() -> ResponseReturnValue:
    """Show the form, or submit the job that it describes."""
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    scope.require_tenant()
    form = JobForm()
    with database() as session:
        _offer_appliances(form, session, scope)
    if not form.validate_on_submit():
        return render_template("jobs/new.html", form=form), 422 if form.errors else 200
    try:
        with database() as session:
            job = submit_job(session, scope, form.request(), now=now())
    except InvalidInputError as error:
        form.show_errors(error, renamed=RENAMED)
        return render_template("jobs/new.html", form=form), error.status
    flash(f"Job {job.name} is submitted.", "success")
    return redirect(url_for(".show", job_id=job.id))


@pages.get("/jobs/<job_id>")
def show(job_id: str) -> ResponseReturnValue:
    """Show a job: state, placement, log, use and history."""
    scope = current_scope()
    with database() as session:
        job = get_job(session, scope, job_id)
        events = job_events(session, scope, job_id)
        names = appliance_names(session, scope.tenants)
    needed = Permission.SUBMIT_JOBS if job.user_id == scope.user_id else Permission.STOP_ANY_JOB
    return render_template(
        "jobs/show.html",
        job=job,
        events=events,
        steps=stepper(job, events),
        gpus=gpu_names(job.attempt),
        troubles=[] if job.state.is_final else troubles(job.attempt),
        requested=names.get(job.appliance_id or ""),
        may_stop=scope.allows(needed) and not job.state.is_final,
    )


@pages.post("/jobs/<job_id>/stop")
def stop(job_id: str) -> ResponseReturnValue:
    """Ask a job to stop."""
    try:
        with database() as session:
            job = stop_job(session, current_scope(), job_id, now=now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"Job {job.name} is asked to stop.", "success")
    return redirect(url_for(".show", job_id=job_id))


def _offer_appliances(form: JobForm, session: Session, scope: Scope) -> None:
    form.offer(list_appliances(session, scope, page_size=MAX_PAGE_SIZE).items)
