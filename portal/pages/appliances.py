"""`/appliances`: the enrolled hosts, and one of them."""

from collections.abc import Callable
from typing import Any

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from core.paging import MAX_PAGE_SIZE
from jobqueue.models import Job
from jobqueue.retirement import retire as retire_idle
from jobqueue.service import gpu_holders, list_jobs
from jobqueue.snapshot import read_health
from jobqueue.states import JobState
from portal.context import current_scope, database, now
from portal.forms.appliances import ApplianceForm
from portal.pages.paging import PAGE_SIZE, chosen, page_number
from portal.showing.appliances import (
    address_of,
    chosen_filter,
    chosen_sort,
    event_tone,
    live_address,
    narrowings,
)
from portal.showing.health import finding_rows, gpu_states, gpu_tiers
from portal.showing.inventory import hardware_of, line_speed
from tenants.entry.certificate_list import newest_certificate, state_of
from tenants.fleet.appliances import (
    ApplianceChanges,
    change_appliance,
    drain_appliance,
    filter_choices,
    get_appliance,
    list_appliances,
    reinstate_appliance,
    revoke_appliance,
    undrain_appliance,
)
from tenants.fleet.events import EventKind, list_events
from tenants.fleet.life import SKEW_LIMIT_SECONDS, LifeState, is_skewed, life_of
from tenants.models import Appliance, HealthState
from tenants.permissions import Permission
from tenants.scope import Scope

pages = Blueprint("appliances", __name__)

ACTIVE = (JobState.RUNNING, JobState.STARTING, JobState.QUEUED)
EVENTS_SHOWN = 8

pages.add_app_template_filter(life_of, "life")
pages.add_app_template_filter(event_tone, "event_tone")
pages.add_app_template_test(is_skewed, "skewed")


@pages.get("/appliances")
def index() -> ResponseReturnValue:
    """List the appliances."""
    wanted, sort = chosen_filter(), chosen_sort()
    scope = current_scope()
    with database() as session:
        page = list_appliances(
            session, scope, wanted, sort=sort, page=page_number(), page_size=PAGE_SIZE,
            is_brief=True,
        )  # fmt: skip
        choices = filter_choices(session, scope)
    return render_template(
        "appliances/index.html",
        page=page,
        sort=sort,
        choices=choices,
        lives=LifeState,
        healths=[state.value for state in HealthState],
        narrowings=narrowings(),
        bulk_address=address_of("appliance_bulk.bulk"),
        live_address=live_address(wanted, sort=sort, page=page),
    )


@pages.get("/appliances/<appliance_id>")
def show(appliance_id: str) -> ResponseReturnValue:
    """Show an appliance: what it has, what happened to it, and which job holds which GPU."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        parts = _parts(session, scope, appliance)
    health = read_health(appliance)
    return render_template(
        "appliances/show.html",
        appliance=appliance,
        **parts,
        health=health,
        findings=finding_rows(health),
        gpu_states=gpu_states(health),
        gpu_tiers=gpu_tiers(health),
        hardware=hardware_of(appliance),
        line_speed=line_speed,
        skew_limit_seconds=SKEW_LIMIT_SECONDS,
    )


@pages.get("/appliances/<appliance_id>/events")
def events(appliance_id: str) -> ResponseReturnValue:
    """List what happened to an appliance."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        page = list_events(
            session, scope, appliance_id, kind=chosen(EventKind, "kind"), page=page_number(),
            page_size=PAGE_SIZE,
        )  # fmt: skip
    return render_template(
        "appliances/events.html", appliance=appliance, page=page, kinds=EventKind
    )


@pages.get("/appliances/<appliance_id>/edit")
@pages.post("/appliances/<appliance_id>/edit")
def edit(appliance_id: str) -> ResponseReturnValue:
    """Change an appliance's name, site, region and labels."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
    scope.require(Permission.MANAGE_APPLIANCES)
    form = ApplianceForm(obj=appliance)
    if not form.validate_on_submit():
        return _edit_page(form, appliance, status=422 if form.errors else 200)
    try:
        with database() as session:
            change_appliance(session, scope, appliance_id, _changes(form), now=now())
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _edit_page(form, appliance, status=error.status)
    flash("The changes are kept.", "success")
    return redirect(url_for(".show", appliance_id=appliance_id))


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
        appliance = undrain_appliance(session, current_scope(), appliance_id, now=now())
    flash(f"{appliance.name} takes jobs again.", "success")
    return redirect(url_for(".show", appliance_id=appliance_id))


@pages.post("/appliances/<appliance_id>/retire")
def retire(appliance_id: str) -> ResponseReturnValue:
    """Take the appliance out of service."""

    def work(session: Session) -> str:
        found = retire_idle(session, current_scope(), appliance_id, now=now())
        return f"{found.name} is retired: its agent is not let in, and its history is kept."

    return _done_or_refused(work, appliance_id)


@pages.post("/appliances/<appliance_id>/reinstate")
def reinstate(appliance_id: str) -> ResponseReturnValue:
    """Take a retired appliance back into service."""

    def work(session: Session) -> str:
        found = reinstate_appliance(session, current_scope(), appliance_id, now=now())
        return f"{found.name} is back in service. Its agent comes back by itself if it runs."

    return _done_or_refused(work, appliance_id)


@pages.post("/appliances/<appliance_id>/revoke")
def revoke(appliance_id: str) -> ResponseReturnValue:
    """Take the appliance's identity away."""
    with database() as session:
        appliance = revoke_appliance(session, current_scope(), appliance_id, now=now())
    flash(f"{appliance.name} is revoked: its agent is refused from now on.", "success")
    return redirect(url_for(".index"))


def _parts(session: Session, scope: Scope, appliance: Appliance) -> dict[str, Any]:
    holders = gpu_holders(session, scope)
    certificate = newest_certificate(session, scope, appliance.id)
    return {
        "gpus": [(gpu, holders.get(gpu["uuid"])) for gpu in appliance.inventory.get("gpus", [])],
        "jobs": _jobs_on(session, scope, appliance.id),
        "events": list_events(session, scope, appliance.id, page_size=EVENTS_SHOWN),
        "certificate": certificate,
        "certificate_state": state_of(certificate, now=now()) if certificate else None,
    }


def _jobs_on(session: Session, scope: Scope, appliance_id: str) -> list[Job]:
    """Return the jobs that run or wait on an appliance, the running ones first."""
    return [
        job
        for state in ACTIVE
        for job in list_jobs(session, scope, state=state, page_size=MAX_PAGE_SIZE).items
        if job.attempt is not None and job.attempt.appliance_id == appliance_id
    ]


def _changes(form: ApplianceForm) -> ApplianceChanges:
    return ApplianceChanges(
        name=form.name.data.strip(),
        site=form.site.data.strip(),
        region=form.region.data.strip(),
        labels=form.labels.data,
    )


def _edit_page(form: ApplianceForm, appliance: Appliance, *, status: int) -> tuple[str, int]:
    return render_template("appliances/edit.html", form=form, appliance=appliance), status


def _done_or_refused(work: Callable[[Session], str], appliance_id: str) -> ResponseReturnValue:
    """Do it and say so; or say on the appliance's page why it can't be done now."""
    try:
        with database() as session:
            flash(work(session), "success")
    except ConflictError as error:
        flash(error.message, "danger")
    return redirect(url_for(".show", appliance_id=appliance_id))
