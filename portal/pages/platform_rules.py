"""`/console/rules`: rules that an operator writes for several tenants."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import select
from wtforms import BooleanField, SelectMultipleField, StringField, TextAreaField
from wtforms.validators import DataRequired

from alerting.models import PlatformRule
from alerting.notification.receivers import list_receivers
from alerting.rules.platform_rules import (
    PlatformRuleRequest,
    delete_platform_rule,
    get_platform_rule,
    list_platform_rules,
    save_platform_rule,
)
from portal.context import current_scope, database, now, public_url
from portal.forms.form import CheckboxListField, Form
from portal.pages.common import Pages
from portal.query_string import asked_page
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission
from tenants.tenants import tenant_names

pages = Pages("platform_rules", __name__, url_prefix="/console/rules")


class PlatformRuleForm(Form):
    """A rule of the platform."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    expression = StringField("Expression", [DataRequired("Enter an expression.")])
    annotation = TextAreaField("Annotation", default="")
    tenant_ids = SelectMultipleField("Tenants")
    receivers = CheckboxListField("Receivers", default=list)
    is_enabled = BooleanField("Enabled", default=True)

    def request(self) -> PlatformRuleRequest:
        """Return what was entered."""
        return PlatformRuleRequest(
            **{name: value for name, value in self.data.items() if name != "csrf_token"}
        )


@pages.get("")
def index() -> ResponseReturnValue:
    """List the rules of the platform."""
    with database() as session:
        page = list_platform_rules(session, current_scope(), **asked_page())
        named = [tenant for rule in page.items for tenant in rule.tenant_ids]
        tenants = tenant_names(session, named)
    return render_template("console/rules.html", page=page, tenants=tenants)


@pages.form("/new")
def add() -> ResponseReturnValue:
    """Add a rule of the platform."""
    current_scope().require(Permission.OPERATE)
    return _edit(PlatformRuleForm(), None)


@pages.form("/<platform_rule_id>")
def edit(platform_rule_id: str) -> ResponseReturnValue:
    """Change a rule of the platform."""
    with database() as session:
        rule = get_platform_rule(session, current_scope(), platform_rule_id)
    return _edit(PlatformRuleForm(obj=rule), rule)


pages.acts("/<platform_rule_id>/delete", delete_platform_rule, "Rule deleted", name="remove")


def _edit(form: PlatformRuleForm, rule: PlatformRule | None) -> ResponseReturnValue:
    active = select(Tenant).where(Tenant.state == TenantState.ACTIVE).order_by(Tenant.name)
    with database() as session:
        form.tenant_ids.choices = [(tenant.id, tenant.name) for tenant in session.scalars(active)]
        receivers = list_receivers(session, current_scope(), is_platform=True)
        form.receivers.choices = [
            (receiver.name, f"{receiver.name} ({receiver.kind.value})") for receiver in receivers
        ]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                saved = save_platform_rule(
                    session,
                    current_scope(),
                    form.request(),
                    rule_id=rule.id if rule else None,
                    now=now(),
                    public_url=public_url(),
                )
            flash(f"Rule {saved.name} saved", "success")
            return redirect(url_for(".index"))
    return render_template("console/rule.html", form=form, rule=rule), form.status
