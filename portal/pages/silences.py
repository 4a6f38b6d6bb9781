"""`/silences`: silences of alerts, and the one click that silences an alert."""

from datetime import UTC, datetime, timedelta

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from alerting.notification.silences import (
    SilenceRequest,
    SilenceState,
    create_silence,
    expire_silence,
    list_silences,
    matchers_of,
)
from alerting.rules.service import get_alert
from portal.context import current_scope, database, now
from portal.forms.alerts import SilenceForm
from portal.pages.common import Pages, changing
from portal.query_string import asked_page
from portal.time_zone import in_reader_zone
from tenants.fleet.appliances import appliance_names
from tenants.tenants import tenant_names

pages = Pages("silences", __name__)

STATES = [state.value for state in SilenceState]
ONE_CLICK = timedelta(hours=2)


@pages.form("/silences")
def index() -> ResponseReturnValue:
    """List silences; add one."""
    form, scope = SilenceForm(), current_scope()
    if form.validate_on_submit():
        with form.showing_errors(renamed={"ends_at": "duration"}):
            starts_at = in_reader_zone(form.starts_at.data) if form.starts_at.data else now()
            wanted = SilenceRequest(
                matchers=form.matchers.data,
                starts_at=starts_at,
                ends_at=_end(starts_at, form.duration.data),
                comment=form.comment.data,
            )
            with database() as session:
                create_silence(session, scope, wanted, now=now())
            flash("Silence added", "success")
            return redirect(url_for(".index", state="pending" if starts_at > now() else "active"))
    view = request.args.get("state", "active")
    state = SilenceState(view) if view in STATES else SilenceState.ACTIVE
    with database() as session:
        page = list_silences(session, scope, state=state, now=now(), **asked_page())
        tenants = tenant_names(session, (silence.tenant_id for silence in page.items))
    text = render_template(
        "silences.html", page=page, view=state.value, states=STATES, form=form, tenants=tenants
    )
    return text, form.status


@pages.post("/alerts/<alert_id>/silence")
@changing(back="alerts.show")
def silence_alert(session: Session, alert_id: str) -> str:
    """Silence an alert for two hours."""
    scope = current_scope()
    alert = get_alert(session, scope, alert_id)
    wanted = SilenceRequest(
        matchers=matchers_of(alert, appliance_names(session, (alert.tenant_id,))),
        starts_at=now(),
        ends_at=now() + ONE_CLICK,
    )
    create_silence(session, scope, wanted, now=now())
    return "Alert silenced for 2 hours"


pages.acts("/silences/<silence_id>/expire", expire_silence, "Silence expired")


def _end(starts_at: datetime, seconds: float) -> datetime:
    try:
        return starts_at + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
