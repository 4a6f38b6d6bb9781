"""`/jobs`: the job list, the form for new jobs and the job page."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from urllib.parse import urlencode

from flask import Blueprint, flash, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, UnavailableError
from jobqueue.again import retry_job, set_priority
from jobqueue.arrays import array_states
from jobqueue.container_policies import DESCRIPTIONS, read_policies, set_policies
from jobqueue.end_notices import receiver_names
from jobqueue.images.catalog import offered_images
from jobqueue.job_secrets import make_secret
from jobqueue.pending import appliance_problems, explain_job, pending_reason, try_job
from jobqueue.queue_settings import read_settings, set_settings
from jobqueue.requests import MAX_PRIORITY
from jobqueue.retries import DESCRIPTIONS as FAILURES
from jobqueue.schedules import create_schedule
from jobqueue.service import (
    JOB_SORTS,
    get_job,
    job_counts,
    job_events,
    list_jobs,
    stop_array,
    stop_job,
    submit_job,
)
from jobqueue.shipped_templates import ShippedTemplate
from jobqueue.snapshot import WAITING, tenant_views
from jobqueue.states import JobState
from jobqueue.templates import (
    Template,
    TemplateRequest,
    delete_template,
    get_template,
    list_templates,
    request_of,
    save_template,
)
from jobqueue.web_ui import Proof, origin_of, port_of
from portal.context import current_principal, current_scope, database, now, portal
from portal.forms.jobs import (
    RENAMED,
    SHAPE,
    JobForm,
    PoliciesForm,
    QueueSettingsForm,
    schedule_request,
    shape_of,
    values_of,
    values_of_request,
)
from portal.pages.common import changing
from portal.presenters.appliances import gpu_findings
from portal.presenters.arrays import listed
from portal.presenters.jobs import efficiency_of, gpu_names, stepper
from portal.query_string import PAGE_SIZE, chosen, page_number, search_text
from protocol.attempts import ContainerPolicy
from tenants.auditing.recording import record
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.principals import Via
from tenants.scope import Scope
from tenants.tenants import tenant_names
from timeseries.store import StoreUnavailableError

pages = Blueprint("jobs", __name__)
MAX_PRIORITY_LENGTH = 4
# What the address of the list filters by.
FILTERS = ("state", "search", "user", "appliance_id", "label", "array_id", "since", "until")


@pages.get("/jobs")
def index() -> ResponseReturnValue:
    """List jobs, newest first."""
    scope = current_scope()
    with database() as session:
        page = list_jobs(
            session,
            scope,
            sort=_sort(),
            page=page_number(),
            page_size=PAGE_SIZE,
            state=chosen(JobState),
            search=search_text(),
            user=request.args.get("user", "").strip(),
            appliance_id=request.args.get("appliance_id", ""),
            label=request.args.get("label", "").strip(),
            since=_day("since"),
            until=_day("until", days=1),
            array_id=request.args.get("array_id", ""),
            is_collapsed=_is_collapsed(),
        )
        items = listed(session, scope, page.items) if _is_collapsed() else page.items
        counts = job_counts(session, scope)
        names = appliance_names(session, scope.tenants)
        tenants = tenant_names(session, (job.tenant_id for job in page.items))
    filters = {name: request.args[name] for name in FILTERS if request.args.get(name)}
    return render_template(
        "jobs/index.html",
        page=page.of(items),
        counts=counts,
        states=JobState,
        tenants=tenants,
        filters=filters,
        sort=_sort(),
        appliance_name=names.get(filters.get("appliance_id", "")),
        live_query=_live_query(),
    )


def _is_collapsed() -> bool:
    """Return whether arrays are one row: not among jobs in one state, or the tasks of an array."""
    return chosen(JobState) is None and not request.args.get("array_id")


def _sort() -> str:
    """Return the sort of the address; the newest first if there is none or it is unknown."""
    sort = request.args.get("sort", "")
    return sort if sort.removeprefix("-") in JOB_SORTS else "-submitted_at"


def _day(name: str, *, days: int = 0) -> datetime | None:
    """Return the beginning of a day in the address, in UTC; None if it is not a date."""
    try:
        day = datetime.fromisoformat(request.args.get(name, ""))
        return day.replace(tzinfo=UTC) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None


def _live_query() -> str:
    """Return the same list's query for the API."""
    query: dict[str, object] = {"page": page_number(), "page_size": PAGE_SIZE, "sort": _sort()}
    query |= {name: request.args[name] for name in FILTERS[:6] if request.args.get(name)}
    for name, days in (("since", 0), ("until", 1)):
        at = _day(name, days=days)
        query |= {name: at.isoformat()} if at else {}
    if chosen(JobState) is None:
        query.pop("state", None)
    query |= {"is_collapsed": "true"} if _is_collapsed() else {}
    return urlencode(query)


@pages.get("/jobs/new")
@pages.post("/jobs/new")
def add() -> ResponseReturnValue:
    """Submit a job."""
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    scope.require_tenant()
    with database() as session:
        source = get_job(session, scope, request.args["copy"]) if "copy" in request.args else None
        template = _template(session, scope)
        values = values_of(source, scope) if source else {"image": request.args.get("image", "")}
        form = JobForm(data=values_of_request(request_of(template)) if template else values)
        views = tenant_views(session, scope.require_tenant())
        form.offer(
            views,
            read_policies(session, scope, scope.require_tenant()),
            receivers=receiver_names(session, scope.require_tenant()),
        )
        offered = offered_images(session, scope, portal().registry_tokens.host)
    preview = None
    if form.validate_on_submit() and "check" in request.form:
        with form.showing_errors(renamed=RENAMED), database() as session:
            preview = try_job(session, scope, form.request(), now=now())
    elif form.validate_on_submit() and "save" in request.form:
        with form.showing_errors(renamed=RENAMED):
            wanted = TemplateRequest(name=form.name.data, job=form.request())
            with database() as session:
                save_template(session, scope, wanted, now=now())
            flash(f"Template {wanted.name} saved, without secrets", "success")
            return redirect(url_for(".templates"))
    elif form.validate_on_submit() and form.schedule.data.strip():
        with form.showing_errors(renamed=RENAMED):
            planned = schedule_request(form)
            with database() as session:
                made = create_schedule(session, scope, planned, box=portal().secrets, now=now())
            flash(f"Schedule {planned.name} created", "success")
            return redirect(url_for("job_schedules.show", schedule_id=made.id))
    elif form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            with database() as session:
                job = submit_job(session, scope, form.request(), box=portal().secrets, now=now())
            flash(f"Job {job.name} submitted", "success")
            return redirect(url_for(".show", job_id=job.id))
    form.ask_for_secrets_again()
    return render_template(
        "jobs/new.html",
        form=form,
        source=source,
        template=template,
        failures=FAILURES,
        preview=preview,
        images=offered,
    ), form.status


@pages.post("/jobs/new/fit")
def fit() -> ResponseReturnValue:
    """Return why the appliance of a form that is being filled in can't run its job."""
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    scope.require_tenant()
    form = JobForm()
    form.validate()
    wanted = (form.appliance.data or "").strip()
    if not wanted or any(getattr(form, name).errors for name in SHAPE):
        return jsonify(never=[], busy=[])
    with database() as session:
        never, busy = appliance_problems(session, scope, wanted, shape_of(form), now=now())
    return jsonify(never=never, busy=busy)


def _template(session: Session, scope: Scope) -> Template | None:
    """Return the template that the address of the form names."""
    name = request.args.get("template", "")
    return get_template(session, scope, name) if name else None


@pages.get("/jobs/templates")
def templates() -> ResponseReturnValue:
    """List the job templates."""
    scope = current_scope()
    with database() as session:
        found = list_templates(session, scope)
    rows = [(one, request_of(one), _may_change(scope, one)) for one in found]
    return render_template("jobs/templates.html", rows=rows)


def _may_change(scope: Scope, template: Template) -> bool:
    if isinstance(template, ShippedTemplate):
        return False
    is_own = template.user_id == scope.user_id
    return scope.allows(Permission.SUBMIT_JOBS if is_own else Permission.STOP_ANY_JOB)


@pages.post("/jobs/templates/<template_id>/delete")
@changing(back="jobs.templates")
def remove_template(session: Session, template_id: str) -> str:
    """Delete a template."""
    return f"Template {delete_template(session, current_scope(), template_id)} deleted"


@pages.get("/jobs/policies")
@pages.post("/jobs/policies")
def policies() -> ResponseReturnValue:
    """Choose the container policies that jobs may use."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    with database() as session:
        choice = read_policies(session, scope, tenant_id)
    form = PoliciesForm(data={"allowed": choice.allowed, "default": choice.default})
    form.allowed.choices = [(policy.value, policy.value) for policy in ContainerPolicy]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_policies(session, scope, tenant_id, form.choice())
            flash("Container policies saved", "success")
            return redirect(url_for(".policies"))
    return render_template("jobs/policies.html", form=form, descriptions=DESCRIPTIONS), form.status


@pages.get("/jobs/settings")
@pages.post("/jobs/settings")
def settings() -> ResponseReturnValue:
    """Choose how jobs are placed and what they may use."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    with database() as session:
        form = QueueSettingsForm(data=asdict(read_settings(session, scope, tenant_id)))
        if not form.is_submitted():
            form.data_roots.data = list(read_settings(session, scope, tenant_id).data_roots)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_settings(session, scope, tenant_id, form.settings())
            flash("Queue settings saved", "success")
            return redirect(url_for(".settings"))
    return render_template("jobs/settings.html", form=form), form.status


@pages.get("/jobs/<job_id>")
def show(job_id: str) -> ResponseReturnValue:
    """Show a job: state, placement, log, usage and history."""
    scope = current_scope()
    with database() as session:
        job = get_job(session, scope, job_id)
        events = job_events(session, scope, job_id)
        names = appliance_names(session, scope.tenants)
        states = array_states(session, scope, [job.array_id] if job.array_id else [])
        # These read the inventory and the health of the appliance.
        gpus = gpu_names(job.attempt)
        pending = explain_job(session, scope, job_id, now=now())
        reason = pending_reason(session, job)
        troubles = [] if job.state.is_final else gpu_findings(job.attempt)
    needed = Permission.SUBMIT_JOBS if job.user_id == scope.user_id else Permission.STOP_ANY_JOB
    return render_template(
        "jobs/show.html",
        job=job,
        events=events,
        steps=stepper(job, events),
        gpus=gpus,
        troubles=troubles,
        pending=pending,
        pending_reason=reason,
        array_states=states.get(job.array_id or "", {}),
        requested=names.get(job.appliance_id or ""),
        may_stop=scope.allows(needed) and not job.state.is_final,
        may_hide=scope.allows(needed),
        may_prioritize=scope.allows(needed) and job.state in WAITING,
        max_priority=MAX_PRIORITY if scope.allows(Permission.STOP_ANY_JOB) else 0,
        min_priority=-MAX_PRIORITY,
    )


@pages.get("/jobs/<job_id>/efficiency")
def efficiency(job_id: str) -> ResponseReturnValue:
    """Show how well a job uses what it holds, as a part of its page."""
    try:
        report = efficiency_of(job_id)
    except StoreUnavailableError:
        report = None
    return render_template("jobs/efficiency.html", report=report)


@pages.post("/jobs/<job_id>/stop")
@changing(back="jobs.show")
def stop(session: Session, job_id: str) -> str:
    """Stop a job."""
    return f"Stopping job {stop_job(session, current_scope(), job_id, now=now()).name}"


@pages.post("/jobs/<job_id>/stop-array")
@changing(back="jobs.show")
def stop_all(session: Session, job_id: str) -> str:
    """Stop all tasks of an array."""
    job = stop_array(session, current_scope(), job_id, now=now())
    return f"Stopping all tasks of {job.name}"


@pages.get("/jobs/<job_id>/open")
def open_port(job_id: str) -> ResponseReturnValue:
    """Open a port of a running job in the browser, on an origin of its own."""
    current, domain = current_principal(), portal().settings.resolved_job_domain
    port = request.args.get("port", default=0, type=int)
    if current.via is not Via.SESSION or current.support_session is not None:
        raise ForbiddenError("Sign in with a browser to open pages of jobs.")
    with database() as session:
        port_of(session, current.scope, job_id, port)
        job = get_job(session, current.scope, job_id)
        if not domain:
            raise UnavailableError(
                "Pages of jobs need a domain of their own. Ask the operator to set job_domain."
            )
        record(
            session,
            action="job.web_ui_opened",
            target_kind="job",
            target_id=job.id,
            target_name=job.name,
            tenant_id=job.tenant_id,
            after={"port": port},
            now=now(),
        )
    proof = Proof(job_id, port, current.credential_id or "")
    ticket = urlencode({"ticket": portal().job_proofs.sign("ticket", proof)})
    origin = origin_of(portal().settings.resolved_public_url, domain, job_id, port)
    return redirect(f"{origin}/.vedette/enter?{ticket}", HTTPStatus.SEE_OTHER)


@pages.post("/jobs/<job_id>/retry")
def retry(job_id: str) -> ResponseReturnValue:
    """Submit a job again."""
    try:
        with database() as session:
            job = retry_job(session, current_scope(), job_id, box=portal().secrets, now=now())
    except (ConflictError, InvalidInputError) as error:
        flash(error.message, "warning")
        return redirect(url_for(".show", job_id=job_id))
    flash(f"Job {job.name} submitted again", "success")
    return redirect(url_for(".show", job_id=job.id))


@pages.post("/jobs/<job_id>/priority")
@changing(back="jobs.show")
def change_priority(session: Session, job_id: str) -> str:
    """Change the priority of a job that waits."""
    current_scope().require(Permission.SUBMIT_JOBS)
    get_job(session, current_scope(), job_id)
    text = request.form.get("priority", "").strip()
    if not (text.removeprefix("-").isdecimal() and len(text) <= MAX_PRIORITY_LENGTH):
        raise ConflictError(f"The priority {text[:20]!r} is not a whole number.")
    job = set_priority(session, current_scope(), job_id, int(text), now=now())
    return f"Priority of {job.name} changed to {job.priority}"


@pages.post("/jobs/<job_id>/make-secret")
@changing(back="jobs.show")
def hide_variable(session: Session, job_id: str) -> str:
    """Turn a plain environment variable into a secret."""
    name = request.form.get("name", "")
    make_secret(session, current_scope(), job_id, [name], box=portal().secrets)
    return f"{name} is now secret"
