"""`/appliances/updates`: the versions of the agents, and rollouts of the portal's version."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from portal.context import current_scope, database, now, portal
from portal.forms.agent_rollouts import RolloutForm
from portal.installer.wheelhouse import agent_packages
from portal.pages.common import Pages
from portal.query_string import asked_page, chosen
from tenants.fleet.appliances import filter_choices
from tenants.fleet.rollouts import (
    cancel_rollout,
    get_rollout,
    list_rollouts,
    list_updates,
    pause_rollout,
    resume_rollout,
    start_rollout,
    update_counts,
    version_counts,
)
from tenants.models import ApplianceUpdateState
from tenants.permissions import Permission

pages = Pages("agent_rollouts", __name__, url_prefix="/appliances/updates")


@pages.form("")
def index() -> ResponseReturnValue:
    """Show versions and rollouts; start one."""
    scope, packages = current_scope(), agent_packages(portal().settings)
    if request.method == "POST":
        scope.require(Permission.MANAGE_APPLIANCES)
    form = RolloutForm()
    with database() as session:
        sites = filter_choices(session, scope).sites
    form.sites.choices = [(site, site) for site in sites if site]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                rollout = start_rollout(
                    session, scope, form.request(), packages=packages, now=now()
                )
                rollout_id = rollout.id
            flash("Rollout started", "success")
            return redirect(url_for(".show", rollout_id=rollout_id))
    with database() as session:
        page = list_rollouts(session, scope, **asked_page())
        counts = update_counts(session, page.items)
        versions = version_counts(session, scope)
    return render_template(
        "appliances/rollouts.html",
        page=page,
        counts=counts,
        versions=versions,
        packages=packages,
        form=form,
    ), form.status


@pages.get("/<rollout_id>")
def show(rollout_id: str) -> ResponseReturnValue:
    """Show the progress of a rollout."""
    scope, state = current_scope(), chosen(ApplianceUpdateState)
    with database() as session:
        rollout = get_rollout(session, scope, rollout_id)
        counts = update_counts(session, [rollout])[rollout.id]
        page = list_updates(session, scope, rollout_id, state=state, **asked_page())
    return render_template(
        "appliances/rollout.html",
        rollout=rollout,
        counts=counts,
        page=page,
        state=state,
        states=list(ApplianceUpdateState),
    )


pages.acts("/<rollout_id>/pause", pause_rollout, "Rollout paused", back=".show")
pages.acts("/<rollout_id>/resume", resume_rollout, "Rollout resumed", back=".show")
pages.acts("/<rollout_id>/cancel", cancel_rollout, "Rollout canceled", back=".show")
