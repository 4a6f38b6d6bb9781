"""`/alerts`, `/rules` and `/receivers`: alerts, the rules that raise them, and notifications."""

import logging
from collections.abc import Sequence

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from alerting.backtest import Backtest, backtest_rule
from alerting.expression import Group, check_metric, preview_rule
from alerting.models import Receiver, Rule
from alerting.receivers import (
    check_target,
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    list_receivers,
    send_test,
    update_receiver,
)
from alerting.rule_text import unit_field
from alerting.service import (
    acknowledge_alert,
    alert_transitions,
    create_rule,
    delete_rule,
    get_alert,
    get_rule,
    list_alerts,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from alerting.silences import silences_by_alert
from alerting.states import AlertState, ReceiverKind
from portal.context import current_scope, database, now, portal, public_url
from portal.forms.alerts import (
    RENAMED,
    ReceiverChangeForm,
    ReceiverForm,
    RuleForm,
    values_of,
    with_expression,
)
from portal.pages.common import changing
from portal.query_string import PAGE_SIZE, page_number
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.tenants import tenant_names
from timeseries.store import IDENTITY_TAGS, TENANT_TAG, Store, StoreUnavailableError

log = logging.getLogger(__name__)

pages = Blueprint("alerts", __name__)

BACKTEST_DAYS = 7
NUMBERS = frozenset({"float", "integer", "boolean"})

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
    """List alerts."""
    view = request.args.get("state", "active")
    view = view if view in VIEWS else "active"
    scope = current_scope()
    with database() as session:
        page = list_alerts(
            session, scope, states=VIEWS[view], page=page_number(), page_size=PAGE_SIZE
        )
        names = appliance_names(session, scope.tenants)
        tenants = tenant_names(session, (one.tenant_id for one in page.items))
        silences = silences_by_alert(session, scope, page.items, now=now())
    return render_template(
        "alerts/index.html",
        page=page,
        view=view,
        views=VIEWS,
        names=names,
        tenants=tenants,
        silences=silences,
    )


@pages.get("/alerts/<alert_id>")
def show(alert_id: str) -> ResponseReturnValue:
    """Show an alert and its history."""
    scope = current_scope()
    with database() as session:
        alert = get_alert(session, scope, alert_id)
        page = alert_transitions(session, scope, alert_id, page=page_number(), page_size=PAGE_SIZE)
        names = appliance_names(session, scope.tenants)
        silences = silences_by_alert(session, scope, [alert], now=now())[alert.id]
    return render_template(
        "alerts/show.html", alert=alert, page=page, names=names, silences=silences
    )


@pages.post("/alerts/<alert_id>/acknowledge")
@changing(back="alerts.show")
def acknowledge(session: Session, alert_id: str) -> str:
    """Acknowledge an alert."""
    acknowledge_alert(session, current_scope(), alert_id, now=now())
    return "Alert acknowledged"


@pages.get("/rules")
def rules() -> ResponseReturnValue:
    """List rules."""
    with database() as session:
        page = list_rules(session, current_scope(), page=page_number(), page_size=PAGE_SIZE)
        tenants = tenant_names(session, (one.tenant_id for one in page.items))
    return render_template("rules/index.html", page=page, tenants=tenants)


@pages.get("/rules/new")
@pages.post("/rules/new")
def add_rule() -> ResponseReturnValue:
    """Test or create a rule."""
    scope = current_scope()
    scope.require(Permission.EDIT_ALERTS)
    scope.require_tenant()
    form = RuleForm(_typed(), data={"metric": request.args.get("metric", "")})
    with database() as session:
        form.offer(list_receivers(session, scope))
    return _edit_rule(form, rule=None)


@pages.get("/rules/<rule_id>")
@pages.post("/rules/<rule_id>")
def edit_rule(rule_id: str) -> ResponseReturnValue:
    """Show, test or update a rule."""
    scope = current_scope()
    with database() as session:
        rule = get_rule(session, scope, rule_id)
        form = RuleForm(_typed(), data=values_of(rule))
        form.offer(list_receivers(session, scope))
    return _edit_rule(form, rule=rule)


@pages.post("/rules/<rule_id>/enabled")
def switch_rule(rule_id: str) -> ResponseReturnValue:
    """Enable or disable a rule."""
    scope, is_enabled = current_scope(), request.form.get("is_enabled") == "1"
    with database() as session:
        set_rule_enabled(
            session, scope, rule_id, is_enabled=is_enabled, now=now(), public_url=public_url()
        )
        rule = get_rule(session, scope, rule_id)
    flash(f"Rule {rule.name} {'enabled' if is_enabled else 'disabled'}", "success")
    return redirect(url_for(".rules"))


@pages.post("/rules/<rule_id>/delete")
def remove_rule(rule_id: str) -> ResponseReturnValue:
    """Delete a rule and its alerts."""
    with database() as session:
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())
    flash("Rule deleted", "success")
    return redirect(url_for(".rules"))


@pages.get("/receivers")
@pages.post("/receivers")
def receivers() -> ResponseReturnValue:
    """List receivers and recent notifications; add a receiver."""
    form = ReceiverForm()
    if form.validate_on_submit():
        kind, target = ReceiverKind(form.kind.data), form.target.data.strip()
        with form.showing_errors():
            check_target(current_scope(), kind, target, policy=portal().webhook_policy)
            with database() as session:
                made, secret = create_receiver(
                    session,
                    current_scope(),
                    name=form.name.data.strip(),
                    kind=kind,
                    target=target,
                    box=portal().secrets,
                    now=now(),
                )
            if secret:
                return _render_receivers(ReceiverForm(formdata=None), made=made, secret=secret)
            flash(f"Receiver {made.name} added", "success")
            return redirect(url_for(".receivers"))
    return _render_receivers(form), form.status


@pages.get("/receivers/<receiver_id>")
@pages.post("/receivers/<receiver_id>")
def edit_receiver(receiver_id: str) -> ResponseReturnValue:
    """Rename a receiver, or replace its address."""
    scope = current_scope()
    with database() as session:
        receiver = get_receiver(session, scope, receiver_id)
    form = ReceiverChangeForm(data={"name": receiver.name})
    if form.validate_on_submit():
        with form.showing_errors():
            check_target(scope, receiver.kind, form.target.data, policy=portal().webhook_policy)
            with database() as session:
                update_receiver(
                    session,
                    scope,
                    receiver_id,
                    name=form.name.data,
                    target=form.target.data,
                    box=portal().secrets,
                )
            flash("Changes saved", "success")
            return redirect(url_for(".receivers"))
    return render_template("receiver.html", receiver=receiver, form=form), form.status


@pages.post("/receivers/<receiver_id>/test")
@changing(back="alerts.receivers")
def test_receiver(session: Session, receiver_id: str) -> str:
    """Send a test message."""
    send_test(session, current_scope(), receiver_id, public_url=public_url(), now=now())
    return "Test message queued. Its delivery is listed under recent notifications."


@pages.post("/receivers/<receiver_id>/delete")
@changing(back="alerts.receivers")
def remove_receiver(session: Session, receiver_id: str) -> str:
    """Delete a receiver."""
    delete_receiver(session, current_scope(), receiver_id)
    return "Receiver deleted"


def _typed() -> MultiDict[str, str] | None:
    return with_expression(request.form) if request.method == "POST" else None


def _edit_rule(form: RuleForm, *, rule: Rule | None) -> ResponseReturnValue:
    scope, groups, backtest = current_scope(), None, None
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            wanted = form.request()
            form.show_expression(wanted)
            if request.form.get("action") == "try":
                groups = preview_rule(portal().store, scope, wanted, now=now())
            elif request.form.get("action") == "backtest":
                backtest = backtest_rule(
                    portal().store, scope, wanted, now=now(), days=BACKTEST_DAYS
                )
            else:
                if rule is None or (rule.measurement, rule.field) != (
                    wanted.measurement,
                    wanted.field,
                ):
                    check_metric(portal().store, scope, wanted)
                with database() as session:
                    if rule is None:
                        saved = create_rule(session, scope, wanted, now=now())
                    else:
                        saved = update_rule(
                            session, scope, rule.id, wanted, now=now(), public_url=public_url()
                        )
                flash(f"Rule {saved.name} saved", "success")
                return redirect(url_for(".rules"))
    return _render_rule(form, rule, groups, backtest), form.status


def _render_rule(
    form: RuleForm, rule: Rule | None, groups: Sequence[Group] | None, backtest: Backtest | None
) -> str:
    scope = current_scope()
    with database() as session:
        names = appliance_names(session, scope.tenants)
        alerts = list_alerts(session, scope, rule_id=rule.id).items if rule else []
    return render_template(
        "rules/edit.html",
        form=form,
        rule=rule,
        alerts=alerts,
        groups=groups,
        backtest=backtest,
        backtest_days=BACKTEST_DAYS,
        names=names,
        metrics=_metric_names(portal().store, scope.tenants),
        tags=_tag_names(portal().store, scope.tenants),
        field_name=unit_field(form.request()) if groups else "",
    )


def _render_receivers(form: ReceiverForm, *, made: Receiver | None = None, secret: str = "") -> str:
    scope = current_scope()
    with database() as session:
        receivers = list_receivers(session, scope)
        page = list_notifications(session, scope, page=page_number(), page_size=PAGE_SIZE)
        tenants = tenant_names(
            session,
            [*(one.tenant_id for one in receivers), *(one.tenant_id for one in page.items)],
        )
    return render_template(
        "receivers.html",
        form=form,
        receivers=receivers,
        page=page,
        tenants=tenants,
        made=made,
        signing_key=secret,
    )


def _metric_names(store: Store, tenants: tuple[str, ...] | None) -> list[str]:
    """Return `measurement.field` of all numeric fields, sorted."""
    try:
        return sorted(
            f"{measurement}.{name}"
            for measurement in store.measurements(tenants=tenants)
            for name, kind in store.fields(measurement, tenants=tenants).items()
            if kind in NUMBERS
        )
    except StoreUnavailableError as error:
        log.warning("Could not list metrics: %s", error.message)
        return []


def _tag_names(store: Store, tenants: tuple[str, ...] | None) -> list[str]:
    """Return the tags that a rule can group by, `appliance` first."""
    try:
        found = {
            tag
            for measurement in store.measurements(tenants=tenants)
            for tag in store.tags(measurement, tenants=tenants)
        }
    except StoreUnavailableError as error:
        log.warning("Could not list tags: %s", error.message)
        found = set()
    others = sorted(found - set(IDENTITY_TAGS))
    return [tag for tag in IDENTITY_TAGS if tag != TENANT_TAG] + others
