"""`/console`: the platform at a glance, across tenants, and the tenants that are being removed."""

from flask import Blueprint, flash, redirect, render_template, send_file, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError
from dash_app.routes import platform_path
from portal.context import current_scope, database, now, portal
from portal.pages.paging import PAGE_SIZE, page_number
from portal.showing.platform import figures
from tenants.customers.removal import discard_export, export_file, list_removals

pages = Blueprint("console", __name__)

TOP = 10


@pages.get("/console")
def index() -> ResponseReturnValue:
    """Show what there is, and who uses most of it."""
    found = figures()
    return render_template(
        "console/index.html", found=found, top=found.tenants[:TOP], charts=platform_path()
    )


@pages.get("/console/removals")
def removals() -> ResponseReturnValue:
    """List the tenants that are being removed, and that were."""
    with database() as session:
        page = list_removals(session, current_scope(), page=page_number(), page_size=PAGE_SIZE)
    return render_template("console/removals.html", page=page)


@pages.get("/console/removals/<removal_id>/export")
def export(removal_id: str) -> ResponseReturnValue:
    """Hand out the export of a tenant."""
    with database() as session:
        path = export_file(
            session, current_scope(), removal_id, folder=portal().settings.exports_dir, now=now()
        )
    return send_file(
        path.resolve(), mimetype="application/zip", as_attachment=True, download_name=path.name
    )


@pages.post("/console/removals/<removal_id>/discard")
def discard(removal_id: str) -> ResponseReturnValue:
    """Delete the export of a removed tenant."""
    folder = portal().settings.exports_dir
    try:
        with database() as session:
            removal = discard_export(session, current_scope(), removal_id, folder=folder, now=now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"The export of {removal.tenant_name} is deleted.", "success")
    return redirect(url_for(".removals"))
