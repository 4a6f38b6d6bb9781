"""`/alerts`: what the rules found, the worst first, and the history of one alert."""

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from alerting.service import alert_transitions, get_alert, list_alerts
from alerting.states import AlertState
from portal.context import current_scope, database
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.fleet.appliances import appliance_names

pages = Blueprint("alerts", __name__)

VIEWS: dict[str, tuple[AlertState, ...] | None] = {
    "active": (AlertState.FIRING, AlertState.PENDING, AlertState.NO_DATA),
    "firing": (AlertState.FIRING,),
    "pending": (AlertState.PENDING,),
    "no_data": (AlertState.NO_DATA,),
    "resolved": (AlertState.RESOLVED,),
    "all": None,
}


@pages.get("/alerts")
def index() -> ResponseReturnValue:
    """List the alerts of the chosen view."""
    view = request.args.get("state", "active")
    view = view if view in VIEWS else "active"
    scope = current_scope()
    with database() as session:
        page = list_alerts(
            session, scope, states=VIEWS[view], page=page_number(), page_size=PAGE_SIZE
        )
        names = appliance_names(session, scope.tenants)
    return render_template(
        "alerts/index.html",
        page=page,
        view=view,
        views=VIEWS,
        names=names,
    )


@pages.get("/alerts/<alert_id>")
def show(alert_id: str) -> ResponseReturnValue:
    """Show an alert with its history."""
    scope = current_scope()
    with database() as session:
        alert = get_alert(session, scope, alert_id)
        page = alert_transitions(session, scope, alert_id, page=page_number(), page_size=PAGE_SIZE)
        names = appliance_names(session, scope.tenants)
    return render_template("alerts/show.html", alert=alert, page=page, names=names)
