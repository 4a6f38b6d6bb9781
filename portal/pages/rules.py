"""`/rules`: the rules that raise alerts, and the form that edits, draws and tests one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from http import HTTPStatus

from flask import (
    flash,
    jsonify,
    redirect,
    render_template,
    request,
    stream_with_context,
    url_for,
)
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from alerting.evaluation.expression import Group, preview_rule
from alerting.evaluation.rule_series import request_of
from alerting.language.checks import rule_errors
from alerting.language.metric_checks import check_metric
from alerting.models import Rule
from alerting.notification.receivers import list_receivers
from alerting.rule_request import LEVEL_FIELDS, RuleRequest
from alerting.rules.backtest import MAX_DAYS, Backtest, backtest_in_parts, backtest_rule
from alerting.rules.pack import is_offered
from alerting.rules.service import (
    create_rule,
    delete_rule,
    get_rule,
    list_alerts,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from portal.context import current_scope, database, now, portal, public_url
from portal.downloads import stream_file
from portal.forms.alerts import RENAMED, RuleForm, values_of, with_expression
from portal.pages.common import Pages
from portal.presenters.series import render_series
from portal.query_string import asked_page
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from tenants.scope import Scope
from tenants.tenants import tenant_names

pages = Pages("rules", __name__)

DEFAULT_BACKTEST_DAYS = 7
_DEFAULTS = asdict(RuleRequest(name="", measurement="", field=""))
# A picture shows a rule that isn't complete.
_UNNEEDED = ("name", *LEVEL_FIELDS)


@pages.get("/rules")
def index() -> ResponseReturnValue:
    """List rules."""
    scope, settings = current_scope(), portal().settings
    with database() as session:
        page = list_rules(session, scope, **asked_page())
        tenants = tenant_names(session, (rule.tenant_id for rule in page.items))
        expects_pack = (
            settings.rule_pack
            and scope.tenant_id is not None
            and not is_offered(session, scope.tenant_id)
        )
    return render_template(
        "rules/index.html",
        page=page,
        tenants=tenants,
        interval_seconds=settings.evaluation_interval_seconds,
        expects_pack=expects_pack,
    )


@pages.form("/rules/new")
def add() -> ResponseReturnValue:
    """Test or create a rule."""
    scope = current_scope()
    scope.require(Permission.EDIT_ALERTS)
    scope.require_tenant()
    form = RuleForm(_typed(), data=_DEFAULTS | {"metric": request.args.get("metric", "")})
    with database() as session:
        form.offer(list_receivers(session, scope))
    return _edit_rule(form, rule=None)


@pages.post("/rules/chart")
def chart() -> ResponseReturnValue:
    """Draw the series of the rule in the form, as a part of its page."""
    scope = current_scope()
    scope.require(Permission.EDIT_ALERTS)
    form = RuleForm(_typed(), data=_DEFAULTS)
    form.validate()
    errors = [
        f"{field.label.text}: {text}"
        for field in (form.expression, form.window_seconds, form.ahead_seconds)
        if field is not None
        for text in field.errors
    ]
    if errors or (form.metric is not None and form.metric.errors):
        text = " ".join(errors) or "Select a metric to see its series here."
        return render_template("rules/chart.html", note=text)
    wanted = form.request()
    errors_by_field = rule_errors(replace(wanted, name="-"))
    errors = [
        text for name, texts in errors_by_field.items() if name not in _UNNEEDED for text in texts
    ]
    if errors:
        return render_template("rules/chart.html", note=" ".join(errors))
    with database() as session:
        names = appliance_names(session, scope.tenants)
    return render_series(wanted, tenants=scope.tenants, names=names, end=now())


@pages.post("/rules/backtest")
def run_backtest() -> ResponseReturnValue:
    """Stream lines of JSON: how far the backtest of the rule in the form is, and its result."""
    scope = current_scope()
    scope.require(Permission.EDIT_ALERTS)
    form = RuleForm(_typed(), data=_DEFAULTS)
    with database() as session:
        form.offer(list_receivers(session, scope))
        names = appliance_names(session, scope.tenants)
    if not form.validate():
        return jsonify(errors=form.errors), HTTPStatus.UNPROCESSABLE_ENTITY
    days = _backtest_days()
    parts = backtest_in_parts(
        portal().store, scope, form.request(), now=now(), days=days, names=names
    )

    def lines() -> Iterator[str]:
        for part in parts:
            if isinstance(part, Backtest):
                text = render_template(
                    "rules/backtest.html", backtest=part, backtest_days=days, names=names
                )
                yield json.dumps({"html": text}) + "\n"
            else:
                yield json.dumps({"done": part}) + "\n"

    return stream_file(stream_with_context(lines()), media_type="application/x-ndjson")


@pages.get("/rules/<rule_id>/chart")
def saved_chart(rule_id: str) -> ResponseReturnValue:
    """Draw the series of a saved rule, as a part of its page."""
    scope = current_scope()
    with database() as session:
        rule = get_rule(session, scope, rule_id)
        names = appliance_names(session, scope.tenants)
    return render_series(request_of(rule), tenants=(rule.tenant_id,), names=names, end=now())


@pages.form("/rules/<rule_id>")
def edit(rule_id: str) -> ResponseReturnValue:
    """Show, test or update a rule."""
    scope = current_scope()
    with database() as session:
        rule = get_rule(session, scope, rule_id)
        form = RuleForm(_typed(), data=values_of(rule))
        form.offer(list_receivers(session, scope))
    return _edit_rule(form, rule=rule)


@pages.post("/rules/<rule_id>/enabled")
def switch(rule_id: str) -> ResponseReturnValue:
    """Enable or disable a rule."""
    scope, is_enabled = current_scope(), request.form.get("is_enabled") == "1"
    with database() as session:
        set_rule_enabled(
            session, scope, rule_id, is_enabled=is_enabled, now=now(), public_url=public_url()
        )
        rule = get_rule(session, scope, rule_id)
    flash(f"Rule {rule.name} {'enabled' if is_enabled else 'disabled'}", "success")
    return redirect(url_for(".index"))


@pages.post("/rules/<rule_id>/delete")
def remove(rule_id: str) -> ResponseReturnValue:
    """Delete a rule and its alerts."""
    with database() as session:
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())
    flash("Rule deleted", "success")
    return redirect(url_for(".index"))


def _names(scope: Scope) -> dict[str, str]:
    """Return the names of appliances, which PromQL has in place of IDs."""
    with database() as session:
        return appliance_names(session, scope.tenants)


def _backtest_days() -> int:
    """Return the days of a backtest, which the form gives."""
    typed = request.form.get("backtest_days", "")
    return min(int(typed), MAX_DAYS) if typed.isdecimal() else DEFAULT_BACKTEST_DAYS


def _typed() -> MultiDict[str, str] | None:
    return with_expression(request.form) if request.method == "POST" else None


def _edit_rule(form: RuleForm, *, rule: Rule | None) -> ResponseReturnValue:
    scope, groups, backtest = current_scope(), None, None
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            wanted = form.request()
            form.show_expression(wanted)
            if request.form.get("action") == "try":
                groups = preview_rule(portal().store, scope, wanted, now=now(), names=_names(scope))
            elif request.form.get("action") == "backtest":
                backtest = backtest_rule(
                    portal().store,
                    scope,
                    wanted,
                    now=now(),
                    days=_backtest_days(),
                    names=_names(scope),
                )
            else:
                check_metric(portal().store, scope, wanted, before=rule)
                with database() as session:
                    if rule is None:
                        saved = create_rule(session, scope, wanted, now=now())
                    else:
                        saved = update_rule(
                            session, scope, rule.id, wanted, now=now(), public_url=public_url()
                        )
                flash(f"Rule {saved.name} saved", "success")
                return redirect(url_for(".index"))
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
        backtest_days=_backtest_days(),
        names=names,
        tested=form.request() if groups else None,
    )
