"""`/tenants`: customers, their users and quotas, and their removal; `/usage` for a tenant's own."""

from dataclasses import asdict
from enum import StrEnum

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from portal.context import current_scope, current_user, database, now
from portal.forms.accounts import InvitationForm
from portal.forms.tenants import NewTenantForm, QuotaForm, RemovalForm
from portal.mail import send_invitation
from portal.pages.common import Pages, changing
from portal.pages.invitations import invite_by_form, show_outcome
from portal.presenters.platform import tenant_use
from portal.query_string import PAGE_SIZE, asked_page, chosen, search_text
from tenants.lifecycle.removal import find_removal, request_removal, set_tenant_state
from tenants.lifecycle.usage import tenant_counts
from tenants.models import Role, TenantState
from tenants.permissions import Permission
from tenants.quotas import DEFAULTS, set_limits
from tenants.tenants import create_tenant, get_tenant, list_tenants
from tenants.users.invitations import invite, list_invitations
from tenants.users.members import list_users

pages = Pages("tenants", __name__)


class StateChange(StrEnum):
    """The actions that change a tenant's state."""

    ACTIVATE = "activate"
    SUSPEND = "suspend"
    CLOSE = "close"


_STATES = {
    StateChange.ACTIVATE: TenantState.ACTIVE,
    StateChange.SUSPEND: TenantState.SUSPENDED,
    StateChange.CLOSE: TenantState.CLOSED,
}


@pages.form("/tenants")
def index() -> ResponseReturnValue:
    """List tenants; add one."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    form = NewTenantForm()
    if form.validate_on_submit():
        with form.showing_errors():
            return _add(form)
    with database() as session:
        page = list_tenants(
            session, scope, state=chosen(TenantState), search=search_text(), **asked_page()
        )
        counts = tenant_counts(session, [tenant.id for tenant in page.items])
    html = render_template(
        "tenants/index.html",
        form=form,
        page=page,
        counts=counts,
        states=list(TenantState),
        state_filter=chosen(TenantState),
        search=search_text(),
    )
    return html, form.status


@pages.form("/tenants/<tenant_id>")
def show(tenant_id: str) -> ResponseReturnValue:
    """Show a tenant with its users; invite one."""
    scope = current_scope()
    with database() as session:
        get_tenant(session, scope, tenant_id)
    scope.require(Permission.MANAGE_TENANTS)
    form = InvitationForm(data={"role": Role.ADMIN.value})
    if form.validate_on_submit():
        with form.showing_errors():
            back = url_for(".show", tenant_id=tenant_id)
            return invite_by_form(form, tenant_id=tenant_id, back=back)
    return _render_tenant(form, tenant_id), form.status


@pages.post("/tenants/<tenant_id>/state")
@changing(back=".show")
def switch(session: Session, tenant_id: str) -> str:
    """Suspend, reactivate or close a tenant."""
    scope = current_scope()
    try:
        change = StateChange(request.form.get("move", ""))
    except ValueError as error:
        scope.require(Permission.MANAGE_TENANTS)
        raise InvalidInputError(f"move must be one of {', '.join(StateChange)}.") from error
    tenant = set_tenant_state(session, scope, tenant_id, _STATES[change], now=now())
    return f"{tenant.name} is now {tenant.state.value}"


@pages.form("/tenants/<tenant_id>/quotas")
def quotas(tenant_id: str) -> ResponseReturnValue:
    """Change a tenant's quotas."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        use = tenant_use(session, tenant_id)
    form = QuotaForm(data=asdict(use.limits))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_limits(session, scope, tenant_id, form.limits())
            flash("Quotas saved", "success")
            return redirect(url_for(".show", tenant_id=tenant_id))
    return render_template(
        "tenants/quotas.html", tenant=tenant, use=use, form=form, defaults=DEFAULTS
    ), form.status


@pages.form("/tenants/<tenant_id>/removal")
def removal(tenant_id: str) -> ResponseReturnValue:
    """Confirm and request the removal of a tenant."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        counts = tenant_counts(session)[tenant_id]
        if find_removal(session, tenant_id) is not None:
            return redirect(url_for("console.removals"))
    form = RemovalForm()
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                request_removal(
                    session,
                    scope,
                    tenant_id,
                    name=form.name.data,
                    by=current_user().email,
                    now=now(),
                )
            flash(f"{tenant.name} is being exported and will then be removed.", "success")
            return redirect(url_for("console.removals"))
    html = render_template("tenants/removal.html", tenant=tenant, counts=counts, form=form)
    return html, form.status


@pages.get("/usage")
def usage() -> ResponseReturnValue:
    """Show the user's own tenant's usage against its quotas."""
    scope = current_scope()
    if scope.tenant_id is None:
        return redirect(url_for("console.index"))
    scope.require(Permission.VIEW)
    with database() as session:
        tenant = get_tenant(session, scope, scope.tenant_id)
        use = tenant_use(session, tenant.id)
    return render_template("tenants/usage.html", tenant=tenant, use=use)


def _add(form: NewTenantForm) -> ResponseReturnValue:
    slug, email = (form.slug.data or "").strip() or None, (form.email.data or "").strip()
    with database() as session:
        tenant = create_tenant(session, name=form.name.data, slug=slug, now=now())
        if email:
            invited = invite(
                session,
                current_scope(),
                tenant_id=tenant.id,
                email=email,
                role=Role.ADMIN,
                now=now(),
            )
    target = url_for(".show", tenant_id=tenant.id)
    if not email:
        flash(f"Tenant {tenant.name} created. Invite its first admin next.", "success")
        return redirect(target)
    flash(f"Tenant {tenant.name} created", "success")
    return show_outcome(send_invitation(*invited), back=target)


def _render_tenant(form: InvitationForm, tenant_id: str) -> str:
    scope = current_scope()
    with database() as session:
        page = list_users(session, scope, tenant_id=tenant_id, **asked_page())
        return render_template(
            "tenants/show.html",
            form=form,
            tenant=get_tenant(session, scope, tenant_id),
            page=page,
            counts=tenant_counts(session, [tenant_id])[tenant_id],
            use=tenant_use(session, tenant_id),
            removal=find_removal(session, tenant_id),
            invitations=list_invitations(session, scope, tenant_id=tenant_id, page_size=PAGE_SIZE),
        )
