"""`/appliances`: the appliance list, bulk actions, and the page of one appliance."""

import logging
from collections.abc import Iterator
from typing import Any

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import MAX_PAGE_SIZE
from jobqueue.dispatch.appliance_lifecycle import (
    change_all,
    drain_progress,
    retire_idle_appliance,
    running_job_names,
    start_drain,
)
from jobqueue.jobs.quarantine import release_appliance
from jobqueue.models import Job
from jobqueue.partitions.allocations import GPUSite, Occupancy, read_gpu_allocations
from jobqueue.partitions.texts import content_text, place_text, slots_text
from jobqueue.queue.service import list_jobs
from jobqueue.rentals import ListedJob, list_rented_jobs
from jobqueue.states import JobState
from portal.context import current_scope, database, now, portal
from portal.forms.appliances import WAIT_CHOICES, ApplianceForm, BulkForm, DrainForm
from portal.pages.common import Pages, plural
from portal.presenters.appliances import (
    active_filters,
    chosen_filter,
    chosen_sort,
    event_tone,
    finding_rows,
    live_url,
    url_with_filters,
)
from portal.presenters.clusters import allocations_of, cluster_titles, cluster_view
from portal.presenters.inventory import hardware_of, line_speed
from portal.query_string import asked_page, chosen, sort_order
from protocol.health import HealthState
from protocol.inventory import GPUInfo
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance
from tenants.fleet.appliance_service import reinstate_appliance, revoke_appliance, undrain_appliance
from tenants.fleet.appliances import (
    Nodes,
    filter_choices,
    get_appliance,
    list_appliances,
    read_health,
    read_inventory,
)
from tenants.fleet.clusters import cluster_totals, connectors, read_cluster, read_node
from tenants.fleet.events import EventKind, list_events
from tenants.fleet.liveness import current_outage, release_mass_outage_guard
from tenants.fleet.nodes import refuse_nodes
from tenants.fleet.states import SKEW_LIMIT_SECONDS, EffectiveStatus, effective_status_of, is_skewed
from tenants.models import Appliance, FleetOutage, Verification
from tenants.permissions import Permission
from tenants.pki.certificates import newest_certificate, state_of
from tenants.scope import Scope

log = logging.getLogger(__name__)

pages = Pages("appliances", __name__)

ACTIVE = (JobState.RUNNING, JobState.STARTING, JobState.QUEUED)
EVENTS_SHOWN = 8
NODE_CHOICES = {
    Nodes.WITHOUT: "Without nodes of clusters",
    Nodes.ALL: "With nodes of clusters",
    Nodes.ONLY: "Only nodes of clusters",
}
BULK_MESSAGES = {
    "drain": "{} drained",
    "undrain": "{} undrained",
    "label": "Label added to {}",
    "unlabel": "Label removed from {}",
    "move": "{} moved",
    "retire": "{} retired. Agents are rejected and history is kept.",
    "reinstate": "{} reinstated. Running agents reconnect automatically.",
}

pages.add_app_template_global(cluster_titles)
pages.add_app_template_filter(effective_status_of, "effective_status")
pages.add_app_template_filter(event_tone, "event_tone")
pages.add_app_template_test(is_skewed, "skewed")
for _text in (content_text, place_text, slots_text):
    pages.add_app_template_global(_text)


@pages.get("/appliances")
def index() -> ResponseReturnValue:
    """List appliances."""
    wanted, sort = chosen_filter(), chosen_sort()
    scope = current_scope()
    with database() as session:
        page = list_appliances(session, scope, wanted, sort=sort, **asked_page())
        choices = filter_choices(session, scope)
        listed_connectors = connectors(session, scope)
        totals = cluster_totals(session, [row.id for row in page.items if row.cluster_kind])
    return render_template(
        "appliances/index.html",
        page=page,
        sort=sort,
        choices=choices,
        statuses=EffectiveStatus,
        healths=[state.value for state in HealthState],
        active_filters=active_filters({row.id: row.name for row in listed_connectors}),
        connectors=listed_connectors,
        nodes_choice=wanted.nodes,
        node_choices=NODE_CHOICES,
        cluster_totals=totals,
        bulk_url=url_with_filters("appliances.bulk"),
        wait_choices=WAIT_CHOICES,
        live_url=live_url(wanted, sort=sort, page=page),
    )


@pages.post("/appliances/bulk")
def bulk() -> ResponseReturnValue:
    """Run an action on all selected appliances."""
    current_scope().require(Permission.MANAGE_APPLIANCES)
    form = BulkForm()
    if form.validate_on_submit():
        try:
            with database() as session:
                changed = change_all(session, current_scope(), form.request(), now=now())
        except (ConflictError, InvalidInputError, NotFoundError) as error:
            flash(error.message, "danger")
        else:
            message = BULK_MESSAGES[form.action.data]
            flash(message.format(plural(len(changed), "appliance")), "success")
    for errors in form.errors.values():
        flash(" ".join(errors), "danger")
    return redirect(url_with_filters("appliances.index"))


pages.acts("/appliances/release-guard", release_mass_outage_guard, "Mass-outage guard released")


@pages.app_template_global("fleet_outage")
def fleet_outage() -> FleetOutage | None:
    """Return the current mass outage; None without one, or if the database is unavailable."""
    try:
        with database() as session:
            return current_outage(session)
    except SQLAlchemyError as error:
        log.warning("Could not read the fleet outage state: %s", error)
        return None


@pages.get("/appliances/<appliance_id>")
def show(appliance_id: str) -> ResponseReturnValue:
    """Show an appliance."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        if appliance.connector_id is not None:
            return _show_node(session, scope, appliance)
        details = _details(session, scope, appliance)
        verification = (
            session.get(Verification, appliance_id) if portal().settings.marketplace else None
        )
    health = read_health(appliance)
    return render_template(
        "appliances/show.html",
        appliance=appliance,
        **details,
        verification=verification,
        health=health,
        findings=finding_rows(health),
        gpu_health={gpu.uuid: gpu for gpu in health.gpus} if health else {},
        hardware=hardware_of(appliance),
        line_speed=line_speed,
        skew_limit_seconds=SKEW_LIMIT_SECONDS,
    )


@pages.get("/appliances/<appliance_id>/events")
def events(appliance_id: str) -> ResponseReturnValue:
    """List an appliance's events."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        page = list_events(
            session, scope, appliance_id, kind=chosen(EventKind, "kind"), **asked_page()
        )
    return render_template(
        "appliances/events.html", appliance=appliance, page=page, kinds=EventKind
    )


@pages.form("/appliances/<appliance_id>/edit")
def edit(appliance_id: str) -> ResponseReturnValue:
    """Change an appliance's name, location and labels."""
    scope = current_scope()
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
    scope.require(Permission.MANAGE_APPLIANCES)
    refuse_nodes([appliance])
    form = ApplianceForm(obj=appliance)
    if form.validate_on_submit():
        changes = ApplianceChanges(
            name=form.name.data.strip(),
            site=form.site.data.strip(),
            region=form.region.data.strip(),
            labels=form.labels.data,
        )
        with form.showing_errors():
            with database() as session:
                change_appliance(session, scope, appliance_id, changes, now=now())
            flash("Changes saved", "success")
            return redirect(url_for(".show", appliance_id=appliance_id))
    return render_template("appliances/edit.html", form=form, appliance=appliance), form.status


@pages.form("/appliances/<appliance_id>/drain")
def drain(appliance_id: str) -> ResponseReturnValue:
    """Stop placing jobs on an appliance, and choose what happens to those that run."""
    scope, form = current_scope(), DrainForm()
    scope.require(Permission.MANAGE_APPLIANCES)
    with database() as session:
        appliance = get_appliance(session, scope, appliance_id)
        refuse_nodes([appliance])
        running = running_job_names(session, appliance_id)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                start_drain(session, scope, appliance_id, wait=form.chosen_wait, now=now())
            flash(f"{appliance.name} drained", "success")
            return redirect(url_for(".show", appliance_id=appliance_id))
    return render_template(
        "appliances/drain.html", form=form, appliance=appliance, running=running
    ), form.status


pages.acts(
    "/appliances/<appliance_id>/undrain", undrain_appliance, "{.name} undrained", back=".show"
)
pages.acts(
    "/appliances/<appliance_id>/release",
    release_appliance,
    "{.name} released from quarantine",
    back=".show",
)
pages.acts(
    "/appliances/<appliance_id>/retire",
    retire_idle_appliance,
    "{.name} retired. Its agent is rejected and its history is kept.",
    back=".show",
)
pages.acts(
    "/appliances/<appliance_id>/reinstate",
    reinstate_appliance,
    "{.name} reinstated. Its agent reconnects automatically if it is running.",
    back=".show",
)
pages.acts(
    "/appliances/<appliance_id>/revoke", revoke_appliance, "{.name} revoked. Its agent is rejected."
)


def _details(session: Session, scope: Scope, appliance: Appliance) -> dict[str, Any]:
    certificate = newest_certificate(session, scope, appliance.id)
    return {
        "gpus": list(_gpu_holders(session, scope, appliance)),
        "jobs": _jobs_on(session, scope, appliance.id),
        "rented_jobs": list_rented_jobs(
            session, scope, appliance.id, page_size=MAX_PAGE_SIZE
        ).items,
        "events": list_events(session, scope, appliance.id, page_size=EVENTS_SHOWN),
        "drain": drain_progress(session, appliance),
        "cluster": cluster_view(session, scope, appliance, sort_order()),
        "certificate": certificate,
        "certificate_state": state_of(certificate, now=now()) if certificate else None,
    }


def _show_node(session: Session, scope: Scope, appliance: Appliance) -> str:
    """Return the page of a node of a cluster, which has no agent."""
    node = read_node(appliance)
    return render_template(
        "appliances/node.html",
        appliance=appliance,
        node=node,
        cluster=read_cluster(appliance.connector) if appliance.connector else None,
        allocations=allocations_of(node) if node else [],
        jobs=_jobs_on(session, scope, appliance.id),
        events=list_events(session, scope, appliance.id, page_size=EVENTS_SHOWN),
    )


def _gpu_holders(
    session: Session, scope: Scope, appliance: Appliance
) -> Iterator[tuple[GPUInfo, ListedJob | None, Occupancy | None, dict[str, ListedJob]]]:
    """Yield each GPU with the job that has it, or who has what of it and these jobs by id."""
    allocations = read_gpu_allocations(session, scope, appliance_id=appliance.id)
    inventory = read_inventory(appliance)
    site = GPUSite(appliance.tenant_id, appliance.labels, inventory.partition_modes)
    for gpu in inventory.gpus:
        occupancy = allocations.occupancy(gpu, site)
        yield gpu, allocations.job_of(gpu.uuid), occupancy, allocations.jobs_on(occupancy)


def _jobs_on(session: Session, scope: Scope, appliance_id: str) -> list[Job]:
    """Return the active jobs of an appliance, running jobs first."""
    return [
        job
        for state in ACTIVE
        for job in list_jobs(
            session, scope, state=state, appliance_id=appliance_id, page_size=MAX_PAGE_SIZE
        ).items
        if job.attempt is not None
        and appliance_id in {job.attempt.appliance_id, job.attempt.node_id}
    ]
