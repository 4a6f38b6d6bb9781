"""`/rules`: the threshold rules, their form, and what one would say now."""

from collections.abc import Sequence

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from alerting.models import Rule
from alerting.preview import PreviewGroup, preview_rule
from alerting.service import (
    create_rule,
    delete_rule,
    get_rule,
    list_alerts,
    list_receivers,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from core.errors import VedetteError
from portal.context import current_scope, database, now, portal, public_url
from portal.forms.rules import RENAMED, RuleForm, values_of
from portal.pages.paging import PAGE_SIZE, page_number
from portal.showing.catalogue import metric_names, tag_names
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission

pages = Blueprint("rules", __name__)


@pages.get("/rules")
def index() -> ResponseReturnValue:
    """List the rules."""
    scope = current_scope()
    with database() as session:
        page = list_rules(session, scope, page=page_number(), page_size=PAGE_SIZE)
    return render_template("rules/index.html", page=page)


@pages.get("/rules/new")
@pages.post("/rules/new")
def add() -> ResponseReturnValue:
    """Show an empty form; try or save the rule that it describes."""
    scope = current_scope()
    scope.require(Permission.EDIT_ALERTS)
    scope.require_tenant()
    form = RuleForm(data={"metric": request.args.get("metric", "")})
    with database() as session:
        form.offer(list_receivers(session, scope))
    return _edit(form, rule=None)


@pages.get("/rules/<rule_id>")
@pages.post("/rules/<rule_id>")
def edit(rule_id: str) -> ResponseReturnValue:
    """Show a rule in its form; try or save what was changed."""
    scope = current_scope()
    with database() as session:
        rule = get_rule(session, scope, rule_id)
        form = RuleForm(data=values_of(rule))
        form.offer(list_receivers(session, scope))
    return _edit(form, rule=rule)


@pages.post("/rules/<rule_id>/enabled")
def switch(rule_id: str) -> ResponseReturnValue:
    """Switch a rule on or off."""
    is_enabled = request.form.get("is_enabled") == "1"
    with database() as session:
        set_rule_enabled(
            session,
            current_scope(),
            rule_id,
            is_enabled=is_enabled,
            now=now(),
            public_url=public_url(),
        )
        rule = get_rule(session, current_scope(), rule_id)
    flash(f"{rule.name} is switched {'on' if is_enabled else 'off'}.", "success")
    return redirect(url_for(".index"))


@pages.post("/rules/<rule_id>/delete")
def delete(rule_id: str) -> ResponseReturnValue:
    """Delete a rule with its alerts."""
    with database() as session:
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())
    flash("The rule is deleted.", "success")
    return redirect(url_for(".index"))


def _edit(form: RuleForm, *, rule: Rule | None) -> ResponseReturnValue:
    """Answer the form: show it, try the rule on what the store has, or save it."""
    if not form.validate_on_submit():
        return _render(form, rule), 422 if form.errors else 200
    try:
        if request.form.get("action") == "try":
            groups = preview_rule(portal().store, current_scope(), form.request(), now=now())
            return _render(form, rule, groups=groups)
        with database() as session:
            saved = _save(session, form, rule)
    except VedetteError as error:
        form.show_errors(error, renamed=RENAMED)
        return _render(form, rule), error.status
    flash(f"{saved.name} is saved.", "success")
    return redirect(url_for(".index"))


def _save(session: Session, form: RuleForm, rule: Rule | None) -> Rule:
    if rule is None:
        return create_rule(session, current_scope(), form.request(), now=now())
    return update_rule(
        session, current_scope(), rule.id, form.request(), now=now(), public_url=public_url()
    )


def _render(
    form: RuleForm, rule: Rule | None, *, groups: Sequence[PreviewGroup] | None = None
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
        names=names,
        metrics=metric_names(portal().store, scope.tenants),
        tags=tag_names(portal().store, scope.tenants),
        field_name=(form.metric.data or "").partition(".")[2],
    )
