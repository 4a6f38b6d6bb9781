"""`/jobs/new`: the form for new jobs, templates and schedules."""

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from flask import flash, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.usable_appliances import tenant_views
from jobqueue.dispatch.waiting_jobs import slice_need
from jobqueue.images.catalog import offered_images
from jobqueue.jobs.cluster_requests import cluster_problems, tenant_clusters
from jobqueue.jobs.end_notices import receiver_names
from jobqueue.jobs.settings import read_policies
from jobqueue.projects.service import default_project, usable_projects
from jobqueue.queue.dataset_use import offered_datasets
from jobqueue.queue.pending import appliance_problems, try_job
from jobqueue.queue.resubmission import request_like
from jobqueue.queue.schedules import create_schedule, get_schedule, replace_schedule
from jobqueue.queue.service import get_job, submit_job
from jobqueue.queue.slice_offers import SliceOffer, slices_that_fit
from jobqueue.queue.templates import (
    Template,
    TemplateRequest,
    get_template,
    load_request,
    request_of,
    save_template,
)
from jobqueue.reservations.views import read_grants
from jobqueue.services.rolling_updates import update_service
from jobqueue.services.scaling import changeable_service, service_instances
from marketplace.costs.estimates import estimate, estimate_text
from portal.context import current_scope, database, now, portal
from portal.forms.jobs import (
    RENAMED,
    SHAPE,
    JobForm,
    changes_of,
    schedule_request,
    values_of,
    values_of_request,
    values_of_schedule,
)
from portal.pages.common import Pages
from protocol.gpu_slices import WHOLE_GPU
from protocol.job_spec import JobRequest
from tenants.permissions import Permission
from tenants.scope import Scope

pages = Pages("job_form", __name__)


@pages.form("/jobs/new")
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
        _offer(session, form, scope.require_tenant())
        offered = _offered(session, scope)
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
            return redirect(url_for("job_templates.index"))
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
            return redirect(url_for("jobs.show", job_id=job.id))
    form.ask_for_secrets_again()
    return render_template(
        "jobs/new.html",
        form=form,
        source=source,
        template=template,
        preview=preview,
        **offered,
    ), form.status


@pages.post("/jobs/new/fit")
def fit() -> ResponseReturnValue:
    """Return what a form that is being filled in would get of the GPUs.

    For the appliance of the form, it also returns why it can't run the job, and for clusters what
    they would refuse.
    """
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    scope.require_tenant()
    form = JobForm()
    form.validate()
    if any(getattr(form, name).errors for name in SHAPE):
        return jsonify(never=[], busy=[], offers=[], clusters=[], cost="")
    never: list[str] = []
    busy: list[str] = []
    with database() as session:
        clusters = tenant_clusters(session, scope.require_tenant())
        form.offer_clusters(clusters)
        wanted, shape = (form.appliance.data or "").strip(), form.shape()
        cluster = form.cluster.data if form.cluster else ""
        problems = cluster_problems(clusters, shape, appliance=cluster or wanted)
        if wanted:
            never, busy = appliance_problems(session, scope, wanted, shape, now=now())
        try:
            offers = slices_that_fit(session, scope, shape, appliance=wanted, now=now())
        except InvalidInputError:  # not a project of the user's
            offers = []
        cost = _cost(session, form, shape, offers)
    shown = [
        {
            "mode": offer.kind.mode,
            "title": offer.title,
            "text": offer.text,
            "isolation": asdict(offer.isolation),
        }
        for offer in offers
    ]
    return jsonify(never=never, busy=busy, offers=shown, clusters=problems, cost=cost)


def _cost(session: Session, form: JobForm, shape: JobRequest, offers: Sequence[SliceOffer]) -> str:
    """Return what the job costs an hour as a sentence; "" without GPUs or a price."""
    gpus = Decimal(shape.gpus)
    if slice_need(shape) is not None:
        # It gets the smallest part that suffices.
        shares = [offer.kind.share_milli for offer in offers]
        gpus = Decimal(min(shares, default=0)) / WHOLE_GPU
    if not gpus:
        return ""
    counts = [field.data for field in (form.nodes, form.instances) if field]
    is_array = form.array and form.array.data.strip()
    # A job that names no highest price runs on own appliances alone.
    field = form.max_gpu_hour_price
    highest = field.data if field and field.data and not field.errors else Decimal(0)
    cost = estimate(
        session,
        current_scope().require_tenant(),
        gpus=gpus * max(1, *(count or 1 for count in counts), 1),
        gpu_models=shape.gpu_models,
        appliance=(form.appliance.data or "").strip(),
        max_price=highest,
        now=now(),
    )
    unit = "an hour for each task" if is_array else "an hour"
    return estimate_text(cost, portal().settings.billing_currency, unit=unit)


@pages.form("/jobs/<job_id>/update")
def update(job_id: str) -> ResponseReturnValue:
    """Update the instances of a service one by one."""
    scope = current_scope()
    with database() as session:
        job = changeable_service(session, scope, job_id)
        newest = max(service_instances(session, job), key=lambda instance: instance.revision)
        present = request_like(newest)
        form = JobForm(data=values_of_request(present))
        form.fix()
        _offer(session, form, job.tenant_id)
        offered = _offered(session, scope)
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            changes = changes_of(form, present)
            with database() as session:
                box = portal().secrets
                update_service(session, scope, job_id, changes, box=box, now=now())
            flash(f"Updating {job.name}", "success")
            return redirect(url_for("jobs.show", job_id=job_id))
    form.ask_for_secrets_again()
    return render_template("jobs/new.html", form=form, service=newest, **offered), form.status


@pages.form("/jobs/schedules/<schedule_id>/edit")
def edit_schedule(schedule_id: str) -> ResponseReturnValue:
    """Edit a schedule and its job."""
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    with database() as session:
        schedule = get_schedule(session, scope, schedule_id)
        job = load_request(schedule.request)
        form = JobForm(data={**values_of_request(job), **values_of_schedule(schedule)})
        _offer(session, form, schedule.tenant_id)
        offered = _offered(session, scope)
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            # The jobs of a schedule may have a name of their own.
            wanted = schedule_request(
                form, **({"name": job.name} if job.name != schedule.name else {})
            )
            with database() as session:
                box = portal().secrets
                replace_schedule(session, scope, schedule_id, wanted, box=box, now=now())
            flash(f"Schedule {wanted.name} saved", "success")
            return redirect(url_for("job_schedules.show", schedule_id=schedule_id))
    form.ask_for_secrets_again()
    return render_template("jobs/new.html", form=form, schedule=schedule, **offered), form.status


def _offer(session: Session, form: JobForm, tenant_id: str) -> None:
    wanted = (form.appliance.data or "").strip()
    appliances = tenant_views(session, tenant_id, only=[wanted]) if wanted else []
    form.offer(
        appliances[0] if appliances else None,
        read_policies(session, current_scope(), tenant_id),
        receivers=receiver_names(session, tenant_id),
    )
    if form.cluster:  # a service's update has none
        form.offer_clusters(tenant_clusters(session, tenant_id))
    form.offer_rentals(read_grants(session, tenant_id, now=now()).values())
    scope = current_scope()
    form.offer_projects(usable_projects(session, scope), default_project(session, scope))


def _offered(session: Session, scope: Scope) -> dict[str, Any]:
    """Return the images and datasets that the form offers, and the currency of prices."""
    return {
        "images": offered_images(session, scope, portal().registry_tokens.host),
        "currency": portal().settings.billing_currency,
        "offered_datasets": offered_datasets(session, scope) if scope.tenant_id else [],
    }


def _template(session: Session, scope: Scope) -> Template | None:
    """Return the template that the address of the form names."""
    name = request.args.get("template", "")
    return get_template(session, scope, name) if name else None
