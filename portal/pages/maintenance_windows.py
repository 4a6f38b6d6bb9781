"""`/silences/windows`: silences that recur."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from alerting.models import MaintenanceWindow
from alerting.notification.maintenance_windows import (
    WindowRequest,
    create_window,
    delete_window,
    get_window,
    list_windows,
    update_window,
)
from alerting.notification.silences import SilenceState
from portal.context import current_scope, database, now
from portal.forms.alerts import WindowForm
from portal.pages.common import Pages
from portal.query_string import asked_page
from tenants.tenants import tenant_names

pages = Pages("maintenance_windows", __name__, url_prefix="/silences/windows")


@pages.form("")
def index() -> ResponseReturnValue:
    """List maintenance windows; add one."""
    return _save(WindowForm(), None)


@pages.form("/<window_id>")
def edit(window_id: str) -> ResponseReturnValue:
    """Change a maintenance window."""
    with database() as session:
        window = get_window(session, current_scope(), window_id)
    return _save(WindowForm(obj=window), window)


pages.acts("/<window_id>/delete", delete_window, "Maintenance window deleted", name="remove")


def _save(form: WindowForm, window: MaintenanceWindow | None) -> ResponseReturnValue:
    scope = current_scope()
    if form.validate_on_submit():
        with form.showing_errors():
            wanted = WindowRequest(
                **{name: value for name, value in form.data.items() if name != "csrf_token"}
            )
            with database() as session:
                if window is None:
                    create_window(session, scope, wanted, now=now())
                else:
                    update_window(session, scope, window.id, wanted, now=now())
            flash("Maintenance window saved", "success")
            return redirect(url_for(".index"))
    with database() as session:
        page = list_windows(session, scope, **asked_page())
        tenants = tenant_names(session, (listed.tenant_id for listed in page.items))
    text = render_template(
        "maintenance_windows.html",
        page=page,
        window=window,
        form=form,
        tenants=tenants,
        states=[state.value for state in SilenceState],
    )
    return text, form.status
