"""`/jobs`: the list of jobs, and the page of each."""

from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import urlencode

import msgspec
from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, UnavailableError
from jobqueue.gangs.frameworks import framework_description
from jobqueue.jobs.gangs import gang_members, stops_together
from jobqueue.jobs.idle_limits import idle_limit_problem
from jobqueue.jobs.job_secrets import make_secret
from jobqueue.jobs.relations import array_states
from jobqueue.jobs.shown import read_shown
from jobqueue.partitions.isolation import ISOLATION
from jobqueue.partitions.texts import requested_text, slice_text
from jobqueue.projects.service import list_projects
from jobqueue.queue.pending import explain_job
from jobqueue.queue.resubmission import retry_job, set_priority
from jobqueue.queue.retention import delete_job
from jobqueue.queue.service import JOB_SORTS, get_job, job_counts, job_events, list_jobs
from jobqueue.queue.stopping import stop_array, stop_job
from jobqueue.services.autoscaling.service import set_autoscaling, status_of
from jobqueue.services.rolling_updates import latest_update, roll_back
from jobqueue.services.scaling import changeable_service, scale_service, service_instances
from jobqueue.services.web_ui import AsleepError, Proof, origin_of, port_of
from jobqueue.states import WAITING, JobState
from marketplace.costs.groups import job_cost, job_costs
from portal.context import current_principal, current_scope, database, now, portal
from portal.pages.common import Pages, changing, changing_in_parts
from portal.presenters.appliances import gpu_findings
from portal.presenters.arrays import listed
from portal.presenters.jobs import (
    EVIDENCE_LABELS,
    check_text,
    efficiency_of,
    facts_of,
    gpu_names,
    stepper,
)
from portal.presenters.service_load import drawn_load
from portal.presenters.sparklines import HEIGHT, RECENT, WIDTH, sparklines
from portal.presenters.staging import datasets_of
from portal.query_string import PAGE_SIZE, chosen, day, search_text
from protocol.autoscaling import format_autoscaling, parse_autoscaling
from protocol.gpu_slices import GPUSlice
from protocol.job_spec import MAX_PRIORITY, JobKind
from tenants.auditing.recording import record
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.principals import Via
from tenants.tenants import tenant_names
from timeseries.store import StoreUnavailableError

pages = Pages("jobs", __name__)
pages.add_app_template_filter(requested_text, "requested_gpus")
pages.add_app_template_filter(slice_text, "slice_text")
MAX_NUMBER_LENGTH = 4
# The filters in the address of the list.
FILTERS = (
    *("state", "search", "user", "appliance_id", "label", "array_id", "project"),
    *("since", "until"),
)


@pages.get("/jobs")
def index() -> ResponseReturnValue:
    """List jobs, newest first."""
    scope = current_scope()
    with database() as session:
        page = list_jobs(
            session,
            scope,
            sort=_sort(),
            after=request.args.get("after", ""),
            before=request.args.get("before", ""),
            page_size=PAGE_SIZE,
            state=chosen(JobState),
            search=search_text(),
            user=request.args.get("user", "").strip(),
            appliance_id=request.args.get("appliance_id", ""),
            label=request.args.get("label", "").strip(),
            since=day("since"),
            until=day("until", days=1),
            array_id=request.args.get("array_id", ""),
            project=request.args.get("project", ""),
            is_collapsed=_is_collapsed(),
        )
        items = listed(session, scope, page.items) if _is_collapsed() else page.items
        counts = job_counts(session, scope)
        names = appliance_names(session, scope.tenants)
        tenants = tenant_names(session, (job.tenant_id for job in page.items))
        projects = list_projects(session, scope) if scope.tenant_id else []
        costs = job_costs(session, page.items)
    filters = {name: request.args[name] for name in FILTERS if request.args.get(name)}
    return render_template(
        "jobs/index.html",
        page=page.of(items),
        counts=counts,
        states=JobState,
        tenants=tenants,
        projects=projects,
        costs=costs,
        filters=filters,
        sort=_sort(),
        appliance_name=names.get(filters.get("appliance_id", "")),
        live_query=_live_query(),
        sparks=sparklines(page.items),
        spark_size=(WIDTH, HEIGHT),
        spark_hours=RECENT // timedelta(hours=1),
    )


def _is_collapsed() -> bool:
    """Return whether arrays are one row: not among jobs in one state, or the tasks of an array."""
    return chosen(JobState) is None and not request.args.get("array_id")


def _sort() -> str:
    """Return the sort of the address; the newest first if there is none or it is unknown."""
    sort = request.args.get("sort", "")
    return sort if sort.removeprefix("-") in JOB_SORTS else "-submitted_at"


def _live_query() -> str:
    """Return the same list's query for the API."""
    query: dict[str, object] = {"page_size": PAGE_SIZE, "sort": _sort()}
    names = ("after", "before", *FILTERS[:7])
    query |= {name: request.args[name] for name in names if request.args.get(name)}
    for name, days in (("since", 0), ("until", 1)):
        at = day(name, days=days)
        query |= {name: at.isoformat()} if at else {}
    if chosen(JobState) is None:
        query.pop("state", None)
    query |= {"is_collapsed": "true"} if _is_collapsed() else {}
    return urlencode(query)


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
        troubles = [] if job.state.is_final else gpu_findings(job.attempt)
        is_service = job.kind is JobKind.SERVICE
        instances = service_instances(session, job) if is_service else []
        members, stops_gang = gang_members(session, job), stops_together(session, job)
        framework = framework_description(session, job)
        update = latest_update(session, scope, job_id) if is_service else None
        scaling = status_of(session, job)
        load = drawn_load(job) if scaling else None
        datasets = datasets_of(session, job)
        cost, hourly_cost = job_cost(session, job, now=now())
        if is_service:
            read_shown(session, [job])  # its instances were read anew, the job with them
    is_first = job.array_id in {None, job.id}
    held = msgspec.convert(job.attempt.gpu_slice if job.attempt else None, GPUSlice | None)
    needed = Permission.SUBMIT_JOBS if job.user_id == scope.user_id else Permission.STOP_ANY_JOB
    return render_template(
        "jobs/show.html",
        job=job,
        events=events,
        steps=stepper(job, events),
        gpus=gpus,
        held=held,
        isolation=ISOLATION[held.mode] if held else None,
        troubles=troubles,
        pending=pending,
        instances=instances,
        members=members,
        stops_gang=stops_gang,
        framework=framework,
        update=update,
        scaling=scaling,
        load=load,
        scaling_text=format_autoscaling(scaling.policy) if scaling else "",
        has_page=job.state is JobState.RUNNING or (scaling is not None and is_first),
        datasets=datasets,
        cost=cost,
        hourly_cost=hourly_cost,
        facts=facts_of(job),
        health_check=check_text(job),
        idle_limit_problem=idle_limit_problem(job),
        array_states=states.get(job.array_id or "", {}),
        requested=names.get(job.appliance_id or ""),
        may_stop=scope.allows(needed) and not job.state.is_final,
        may_delete=scope.allows(needed) and job.state.is_final,
        may_hide=scope.allows(needed),
        has_terminal=job.state is JobState.RUNNING
        and scope.allows(Permission.OPEN_SHELLS)
        and scope.allows(needed),
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
    return render_template("jobs/efficiency.html", report=report, evidence_labels=EVIDENCE_LABELS)


pages.acts("/jobs/<job_id>/stop", stop_job, "Stopping job {.name}", back=".show")


@pages.post("/jobs/<job_id>/delete")
@changing_in_parts(back=".index")
def delete(session: Session, job_id: str) -> tuple[str, bool]:
    """Delete an ended job."""
    job, is_done = delete_job(session, current_scope(), job_id, now=now())
    return f"{job.name} deleted", is_done


@pages.post("/jobs/<job_id>/stop-array")
@changing_in_parts(back=".show")
def stop_all(session: Session, job_id: str) -> tuple[str, bool]:
    """Stop all tasks of an array."""
    job, is_done = stop_array(session, current_scope(), job_id, now=now())
    return f"Stopping all tasks of {job.name}", is_done


@pages.post("/jobs/<job_id>/scale")
@changing(back=".show")
def scale(session: Session, job_id: str) -> str:
    """Change the number of instances of a service."""
    changeable_service(session, current_scope(), job_id)
    wanted = _number("instances")
    job = scale_service(session, current_scope(), job_id, wanted, now=now())
    return f"{job.name} has {wanted} instance{'' if wanted == 1 else 's'}"


@pages.post("/jobs/<job_id>/autoscaling")
@changing(back=".show")
def autoscale(session: Session, job_id: str) -> str:
    """Change how a service scales by itself; without a text it no longer does."""
    changeable_service(session, current_scope(), job_id)
    text = request.form.get("policy", "").strip()
    try:
        policy = parse_autoscaling(text) if text else None
        job = set_autoscaling(session, current_scope(), job_id, policy, now=now())
    except (ValueError, InvalidInputError) as error:
        raise ConflictError(str(error)) from error
    return f"{job.name} {'scales by itself' if policy else 'no longer scales by itself'}"


pages.acts(
    "/jobs/<job_id>/rollback", roll_back, "Rolling back {.name}", back=".show", name="undo_update"
)


@pages.get("/jobs/<job_id>/open")
def open_port(job_id: str) -> ResponseReturnValue:
    """Open a port of a running job in the browser, on an origin of its own."""
    current, domain = current_principal(), portal().settings.resolved_job_domain
    port = request.args.get("port", default=0, type=int)
    if current.via is not Via.SESSION or current.support_session is not None:
        raise ForbiddenError("Sign in with a browser to open pages of jobs.")
    with database() as session:
        # A request to its page wakes a service that sleeps.
        with suppress(AsleepError):
            port_of(session, current.scope, job_id, port)
        job = get_job(session, current.scope, job_id)
        if not domain:
            raise UnavailableError(
                "Pages of jobs need a domain of their own. Ask the operator to set job_domain."
            )
        record(
            session,
            action="job.web_ui_opened",
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
@changing(back=".show")
def change_priority(session: Session, job_id: str) -> str:
    """Change the priority of a job that waits."""
    current_scope().require(Permission.SUBMIT_JOBS)
    get_job(session, current_scope(), job_id)
    job = set_priority(session, current_scope(), job_id, _number("priority"), now=now())
    return f"Priority of {job.name} changed to {job.priority}"


def _number(name: str) -> int:
    text = request.form.get(name, "").strip()
    if not (text.removeprefix("-").isdecimal() and len(text) <= MAX_NUMBER_LENGTH):
        raise ConflictError(f"The {name} {text[:20]!r} is not a whole number.")
    return int(text)


@pages.post("/jobs/<job_id>/make-secret")
@changing(back=".show")
def hide_variable(session: Session, job_id: str) -> str:
    """Turn a plain environment variable into a secret."""
    name = request.form.get("name", "")
    make_secret(session, current_scope(), job_id, [name], box=portal().secrets)
    return f"{name} is now secret"
