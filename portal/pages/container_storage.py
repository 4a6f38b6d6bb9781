"""`/appliances/ID/storage` and `/appliances/cleanup-policies`: images and stopped containers."""

from dataclasses import asdict

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.clock import from_ns
from jobqueue.storage.policies import read_policies, set_policies
from jobqueue.storage.service import read_storage, start_cleanup
from portal.context import current_scope, database, now
from portal.forms.container_storage import CleanupPolicyForm
from portal.pages.common import Pages
from tenants.fleet.appliances import filter_choices
from tenants.permissions import Permission

pages = Pages("container_storage", __name__)


@pages.get("/appliances/<appliance_id>/storage")
def show(appliance_id: str) -> ResponseReturnValue:
    """Show the images and stopped containers of an appliance, and what is deleted next."""
    with database() as session:
        view = read_storage(session, current_scope(), appliance_id, now=now())
    images = view.report.images if view.report else []
    deleted = [image for image in images if view.plan.images[image.image_id].is_deleted]
    return render_template(
        "appliances/storage.html",
        appliance=view.appliance,
        view=view,
        images=sorted(images, key=lambda image: (image not in deleted, -image.size_bytes)),
        deleted=deleted,
        from_ns=from_ns,
    )


pages.acts(
    "/appliances/<appliance_id>/storage/clean", start_cleanup, "Cleanup started", back=".show"
)


@pages.form("/appliances/cleanup-policies")
def policies() -> ResponseReturnValue:
    """Show and change the cleanup policies of all sites."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id, site = scope.require_tenant(), request.args.get("site", "")
    with database() as session:
        present = read_policies(session, scope, tenant_id)
        sites = sorted({*filter_choices(session, scope).sites, *present, site} - {""})
    form = CleanupPolicyForm(data={"site": site, **asdict(present.get(site, present[""]))})
    form.site.choices = [("", "All other sites"), *((name, name) for name in sites)]
    if form.validate_on_submit():
        changed = present | {form.site.data: form.policy()}
        if form.is_removal:
            del changed[form.site.data]
        with form.showing_errors():
            with database() as session:
                set_policies(session, scope, tenant_id, changed)
            flash("Cleanup policies saved", "success")
            return redirect(url_for(".policies"))
    return render_template(
        "appliances/cleanup_policies.html", form=form, policies=sorted(present.items()), site=site
    ), form.status
