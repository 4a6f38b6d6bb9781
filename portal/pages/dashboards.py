"""`/custom-dashboards`: the list, settings and panels of custom dashboards, and their files."""

from collections.abc import Callable
from dataclasses import fields, replace
from http import HTTPStatus

from flask import flash, redirect, render_template, request
from flask.typing import ResponseReturnValue

from core.errors import InvalidInputError, NotFoundError
from dash_app.custom.dashboards import (
    ITEMS,
    DashboardRequest,
    create_dashboard,
    delete_dashboard,
    get_dashboard,
    list_dashboards,
    replace_dashboard,
    request_of,
)
from dash_app.custom.files import read_yaml, to_yaml
from dash_app.custom.models import CustomDashboard
from dash_app.custom.panels import (
    MAX_PANELS,
    PLACES,
    Panel,
    metric_errors,
    panel_errors,
    raise_errors,
)
from dash_app.custom.scales import NAMED_UNITS
from dash_app.routes import custom_path
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from portal.forms.dashboards import (
    PANEL_FIELDS,
    DashboardForm,
    FileForm,
    PanelForm,
    panel_values,
    settings_of,
)
from portal.forms.form import Form
from portal.middleware.errors import flatten_errors
from portal.pages.common import Pages, plural
from portal.presenters.dashboards import DashboardFileSchema, applied, dashboard_request
from portal.presenters.series import render_series
from portal.query_string import asked_page
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.tenants import tenant_names
from timeseries.store import APPLIANCE_TAG

pages = Pages("dashboards", __name__, url_prefix="/custom-dashboards")

MEDIA_TYPE = "application/yaml"
# Errors of a panel are named by its position, the fields of the form are not.
_PANEL_ERRORS = {
    f"panels.{number}.{name}": PANEL_FIELDS.get(name, name)
    for number in range(MAX_PANELS)
    for name in (field.name for field in fields(Panel))
}


@pages.get("")
def index() -> ResponseReturnValue:
    """List dashboards."""
    scope = current_scope()
    with database() as session:
        page = list_dashboards(session, scope, sort="name", **asked_page())
        rows = [
            (dashboard, custom_path(dashboard.id), ITEMS.may_change(scope, dashboard))
            for dashboard in page.items
        ]
        tenants = tenant_names(
            session, {dashboard.tenant_id for dashboard in page.items if dashboard.tenant_id}
        )
    return render_template("dashboards/index.html", page=page, rows=rows, tenants=tenants)


@pages.form("/new")
def add() -> ResponseReturnValue:
    """Create a dashboard, also as a copy of another one."""
    scope = current_scope()
    scope.require(Permission.EDIT_DASHBOARDS)
    copied = DashboardRequest(name="")
    if ident := request.args.get("copy"):
        with database() as session:
            copied = request_of(get_dashboard(session, scope, ident))
        copied = replace(copied, name=f"Copy of {copied.name}", is_shared=False)
    form = DashboardForm(data=settings_of(copied))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                wanted = replace(copied, **form.values())
                made = create_dashboard(session, scope, wanted, now=now())
            return redirect(custom_path(made.id))
    return render_template("dashboards/settings.html", form=form, dashboard=None), form.status


@pages.form("/import")
def import_file() -> ResponseReturnValue:
    """Create and update dashboards from a file."""
    current_scope().require(Permission.EDIT_DASHBOARDS)
    form, errors = FileForm(), dict[str, list[str]]()
    if form.validate_on_submit():
        try:
            changes = applied(_requests(form.content()), is_dry_run=False)
        except InvalidInputError as error:
            form.status, errors = error.status, error.errors
        else:
            flash(f"{plural(len(changes), 'dashboard')} imported", "success")
            return redirect("/custom-dashboards")
    return render_template("dashboards/import.html", form=form, errors=errors), form.status


@pages.get("/export")
def export() -> ResponseReturnValue:
    """Download one dashboard, or all that the user may change, as a file."""
    scope, ident = current_scope(), request.args.get("id")
    with database() as session:
        if ident:
            dashboards = [get_dashboard(session, scope, ident)]
        else:
            everything = list_dashboards(session, scope, sort="name", page_size=500).items
            dashboards = [
                dashboard for dashboard in everything if ITEMS.may_change(scope, dashboard)
            ]
        text = to_yaml([request_of(dashboard) for dashboard in dashboards])
    return stream_file(iter([text.encode()]), media_type=MEDIA_TYPE, file_name="dashboards.yaml")


@pages.form("/<dashboard_id>/edit")
def edit(dashboard_id: str) -> ResponseReturnValue:
    """Change the settings of a dashboard."""
    dashboard = _changeable(dashboard_id)
    form = DashboardForm(data=settings_of(request_of(dashboard)))
    if form.validate_on_submit() and _saved(
        form, dashboard_id, lambda present: replace(present, **form.values())
    ):
        return redirect(custom_path(dashboard_id))
    text = render_template("dashboards/settings.html", form=form, dashboard=dashboard)
    return text, form.status


pages.acts(
    "/<dashboard_id>/delete",
    delete_dashboard,
    "Dashboard {} deleted",
    back=lambda: "/custom-dashboards",
    name="remove",
)


@pages.form("/<dashboard_id>/panels/new")
def add_panel(dashboard_id: str) -> ResponseReturnValue:
    """Add a panel at the end."""
    return _edit_panel(_changeable(dashboard_id), None)


@pages.form("/<dashboard_id>/panels/<int:number>")
def edit_panel(dashboard_id: str, number: int) -> ResponseReturnValue:
    """Change the panel at a position, from 0."""
    return _edit_panel(_changeable(dashboard_id), number)


@pages.post("/chart")
def chart() -> ResponseReturnValue:
    """Draw the series of the panel in the form, as a part of its page."""
    scope = current_scope()
    scope.require(Permission.EDIT_DASHBOARDS)
    form = PanelForm()
    form.validate()
    if form.metric.errors or form.filters.errors:
        return render_template("rules/chart.html", note="Select a metric to see its series here.")
    errors = panel_errors(replace(form.panel(), title="-"))
    if errors:
        note = " ".join(text for texts in errors.values() for text in texts)
        return render_template("rules/chart.html", note=note)
    with database() as session:
        names = appliance_names(session, scope.tenants)
    idents = {name: ident for ident, name in names.items()}
    wanted = form.series()
    filters = {
        tag: [idents.get(value, value) if tag == APPLIANCE_TAG else value for value in values]
        for tag, values in wanted.filters.items()
        if tag not in PLACES
    }
    return render_series(
        replace(wanted, filters=filters), tenants=scope.tenants, names=names, end=now()
    )


def _edit_panel(dashboard: CustomDashboard, number: int | None) -> ResponseReturnValue:
    panels = list(request_of(dashboard).panels)
    if number is not None and number >= len(panels):
        raise NotFoundError.of("panel", str(number))
    before = None if number is None else panels[number]
    form = PanelForm(
        data=panel_values(before) if before else {"metric": request.args.get("metric")}
    )
    if form.validate_on_submit():
        at = len(panels) if number is None else number

        def changed(present: DashboardRequest) -> DashboardRequest:
            if before is not None and list(present.panels[at : at + 1]) != [before]:
                message = "This panel was changed or moved meanwhile. Open it again to edit it."
                raise InvalidInputError(message)
            end = at if number is not None else len(present.panels)
            return replace(
                present, panels=[*present.panels[:end], form.panel(), *present.panels[end + 1 :]]
            )

        if _saved(form, dashboard.id, changed, checked=form.panel()):
            return redirect(custom_path(dashboard.id))
    text = render_template(
        "dashboards/panel.html",
        form=form,
        dashboard=dashboard,
        back=custom_path(dashboard.id),
        is_new=number is None,
        units=NAMED_UNITS,
    )
    return text, form.status


def _saved(
    form: Form,
    dashboard_id: str,
    changed: Callable[[DashboardRequest], DashboardRequest],
    *,
    checked: Panel | None = None,
) -> bool:
    """Save a change; False if it has errors, which the form then shows."""
    scope = current_scope()
    with form.showing_errors(renamed=_PANEL_ERRORS):
        if checked is not None:
            raise_errors(metric_errors(portal().store, [checked], tenants=scope.tenants))
        with database() as session:
            wanted = changed(request_of(get_dashboard(session, scope, dashboard_id)))
            replace_dashboard(session, scope, dashboard_id, wanted, now=now())
    return form.status == HTTPStatus.OK


def _changeable(dashboard_id: str) -> CustomDashboard:
    with database() as session:
        return ITEMS.changeable(session, current_scope(), dashboard_id)


def _requests(text: str) -> list[DashboardRequest]:
    """Return the dashboards of a file.

    Raises:
        InvalidInputError: with all errors of its structure.
    """
    document = read_yaml(text)
    schema = DashboardFileSchema(exclude=("is_dry_run",))
    errors = schema.validate(document)
    if errors:
        raise InvalidInputError("The file is invalid.", errors=flatten_errors({"file": errors}))
    return [dashboard_request(dashboard) for dashboard in schema.load(document)["dashboards"]]
