"""`/appliances`: the enrolled hosts, one of them, and how to add more."""

from typing import Final, Literal

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.paging import MAX_PAGE_SIZE
from jobqueue.models import Job
from jobqueue.service import gpu_holders, list_jobs
from jobqueue.snapshot import read_health
from jobqueue.states import JobState
from portal.api.appliances import enrol_command, install_command
from portal.context import current_scope, database, now
from portal.forms.appliances import EnrolmentForm
from portal.health import finding_rows, gpu_states, gpu_tiers
from portal.inventory import hardware_of, line_speed
from portal.pages.paging import PAGE_SIZE, chosen, page_number, search_text
from tenants.appliances import (
    drain_appliance,
    get_appliance,
    list_appliances,
    revoke_appliance,
    undrain_appliance,
)
from tenants.enrolment import create_enrolment_token
from tenants.models import ApplianceState, HealthState
from tenants.permissions import Permission
from tenants.scope import Scope

pages = Blueprint("appliances", __name__)

UNKNOWN: Final = "unknown"
ACTIVE = (JobState.RUNNING, JobState.STARTING, JobState.QUEUED)


@pages.get("/appliances")
def index() -> ResponseReturnValue:
    """List the appliances."""
    with database() as session:
        page = list_appliances(
            session,
            current_scope(),
            state=chosen(ApplianceState),
            health=_chosen_health(),
            search=search_text(),
            page=page_number(),
            page_size=PAGE_SIZE,
        )
    return render_template(
        "appliances/index.html",
        page=page,
        states=ApplianceState,
        healths=[*(state.value for state in HealthState), UNKNOWN],
    )


@pages.get("/appliances/new")
@pages.post("/appliances/new")
def add() -> ResponseReturnValue:
    """Make an enrolment token and show it once, with the commands to paste."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    form = EnrolmentForm()
    if not form.validate_on_submit():
        return render_template("appliances/new.html", form=form), 422 if form.errors else 200
    try:
        with database() as session:
            token, secret = create_enrolment_token(
                session,
                scope,
                site=form.site.data.strip(),
                region=form.region.data.strip(),
                labels=form.labels.data,
                uses=form.uses.data,
                lifetime=form.chosen_lifetime,
                now=now(),
            )
    except InvalidInputError as error:
        form.show_errors(error)
        return render_template("appliances/new.html", form=form), error.status
    return render_template(
        "appliances/token.html",
        token=token,
        install=install_command(),
        command=enrol_command(secret),
    )


@pages.get("/appliances/<appliance_id>")
def show(appliance_id: str) -> ResponseReturnValue:
    """Show an appliance: what it has, and which job holds which GPU."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        holders = gpu_holders(session, scope)
        jobs = _jobs_on(session, scope, appliance.id)
    gpus = appliance.inventory.get("gpus", [])
    health = read_health(appliance)
    return render_template(
        "appliances/show.html",
        appliance=appliance,
        gpus=[(gpu, holders.get(gpu["uuid"])) for gpu in gpus],
        jobs=jobs,
        health=health,
        findings=finding_rows(health),
        gpu_states=gpu_states(health),
        gpu_tiers=gpu_tiers(health),
        hardware=hardware_of(appliance),
        line_speed=line_speed,
    )


@pages.post("/appliances/<appliance_id>/drain")
def drain(appliance_id: str) -> ResponseReturnValue:
    """Give the appliance no more jobs."""
    with database() as session:
        appliance = drain_appliance(session, current_scope(), appliance_id, now=now())
    flash(f"{appliance.name} takes no new jobs. Those that run go on.", "success")
    return redirect(url_for(".show", appliance_id=appliance_id))


@pages.post("/appliances/<appliance_id>/undrain")
def undrain(appliance_id: str) -> ResponseReturnValue:
    """Give the appliance jobs again."""
    with database() as session:
        appliance = undrain_appliance(session, current_scope(), appliance_id)
    flash(f"{appliance.name} takes jobs again.", "success")
    return redirect(url_for(".show", appliance_id=appliance_id))


@pages.post("/appliances/<appliance_id>/revoke")
def revoke(appliance_id: str) -> ResponseReturnValue:
    """Take the appliance's identity away."""
    with database() as session:
        appliance = revoke_appliance(session, current_scope(), appliance_id, now=now())
    flash(f"{appliance.name} is revoked: its agent is refused from now on.", "success")
    return redirect(url_for(".index"))


def _chosen_health() -> HealthState | Literal["unknown"] | None:
    return UNKNOWN if request.args.get("health") == UNKNOWN else chosen(HealthState, "health")


def _jobs_on(session: Session, scope: Scope, appliance_id: str) -> list[Job]:
    """Return the jobs that run or wait on an appliance, the running ones first."""
    return [
        job
        for state in ACTIVE
        for job in list_jobs(session, scope, state=state, page_size=MAX_PAGE_SIZE).items
        if job.attempt is not None and job.attempt.appliance_id == appliance_id
    ]
