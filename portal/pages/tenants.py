"""`/tenants`: the operator's customers, their users and quotas, and how one is removed."""

from dataclasses import asdict
from enum import StrEnum

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError
from portal.context import current_scope, current_user, database, now
from portal.forms.accounts import InvitationForm
from portal.forms.tenants import NewTenantForm, QuotaForm, RemovalForm
from portal.inviting import send_invitation
from portal.pages.invitations import invite_by_form, show_outcome
from portal.pages.paging import PAGE_SIZE, chosen, page_number, search_text
from portal.showing.platform import tenant_use
from tenants.accounts import (
    create_tenant,
    get_tenant,
    list_tenants,
    set_tenant_state,
    tenant_counts,
)
from tenants.customers.quotas import set_limits
from tenants.customers.removal import find_removal, request_removal
from tenants.models import Invitation, Role, Tenant, TenantState
from tenants.people.invitations import invite, list_invitations
from tenants.people.members import list_users
from tenants.permissions import Permission

pages = Blueprint("tenants", __name__)


class Move(StrEnum):
    """What the buttons of a tenant ask for."""

    ACTIVATE = "activate"
    SUSPEND = "suspend"
    CLOSE = "close"


_STATES = {
    Move.ACTIVATE: TenantState.ACTIVE,
    Move.SUSPEND: TenantState.SUSPENDED,
    Move.CLOSE: TenantState.CLOSED,
}


@pages.get("/tenants")
@pages.post("/tenants")
def index() -> ResponseReturnValue:
    """List the tenants; add one."""
    current_scope().require(Permission.MANAGE_TENANTS)
    form = NewTenantForm()
    if not form.validate_on_submit():
        return _render_index(form), 422 if form.errors else 200
    try:
        with database() as session:
            tenant, invited = _add(session, form)
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render_index(form), error.status
    target = url_for(".show", tenant_id=tenant.id)
    if invited is None:
        flash(f"Tenant {tenant.name} is added. Invite its first admin next.", "success")
        return redirect(target)
    flash(f"Tenant {tenant.name} is added.", "success")
    return show_outcome(send_invitation(*invited), back=target)


@pages.get("/tenants/<tenant_id>")
@pages.post("/tenants/<tenant_id>")
def show(tenant_id: str) -> ResponseReturnValue:
    """Show a tenant with its users; invite one."""
    scope = current_scope()
    with database() as session:
        get_tenant(session, scope, tenant_id)
    scope.require(Permission.MANAGE_TENANTS)
    form = InvitationForm(data={"role": Role.ADMIN.value})
    if not form.validate_on_submit():
        return _render_tenant(form, tenant_id), 422 if form.errors else 200
    try:
        return invite_by_form(form, tenant_id=tenant_id, back=url_for(".show", tenant_id=tenant_id))
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render_tenant(form, tenant_id), error.status


@pages.post("/tenants/<tenant_id>/state")
def switch(tenant_id: str) -> ResponseReturnValue:
    """Suspend a tenant, make it active again, or close it."""
    try:
        move = Move(request.form.get("move", ""))
    except ValueError as error:
        current_scope().require(Permission.MANAGE_TENANTS)
        raise InvalidInputError(f"move is none of {', '.join(Move)}.") from error
    try:
        with database() as session:
            tenant = set_tenant_state(session, current_scope(), tenant_id, _STATES[move], now=now())
    except ConflictError as error:
        flash(error.message, "warning")
    else:
        flash(f"{tenant.name} is {tenant.state.value}.", "success")
    return redirect(url_for(".show", tenant_id=tenant_id))


@pages.get("/tenants/<tenant_id>/quotas")
@pages.post("/tenants/<tenant_id>/quotas")
def quotas(tenant_id: str) -> ResponseReturnValue:
    """Change a tenant's quotas."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        use = tenant_use(session, tenant_id)
    form, status = QuotaForm(data=asdict(use.limits)), 200
    if form.validate_on_submit():
        try:
            with database() as session:
                set_limits(session, scope, tenant_id, form.limits())
        except (InvalidInputError, ConflictError) as error:
            form.show_errors(error)
            status = error.status
        else:
            flash(f"The quotas of {tenant.name} are changed.", "success")
            return redirect(url_for(".show", tenant_id=tenant_id))
    elif form.errors:
        status = 422
    return render_template("tenants/quotas.html", tenant=tenant, use=use, form=form), status


@pages.get("/tenants/<tenant_id>/removal")
@pages.post("/tenants/<tenant_id>/removal")
def removal(tenant_id: str) -> ResponseReturnValue:
    """Ask for the name, and have the tenant removed."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        counts = tenant_counts(session)[tenant_id]
        if find_removal(session, tenant_id) is not None:
            return redirect(url_for("console.removals"))
    form, status = RemovalForm(), 200
    if form.validate_on_submit():
        try:
            with database() as session:
                request_removal(
                    session, scope, tenant_id, name=form.name.data, by=current_user().email,
                    now=now(),
                )  # fmt: skip
        except (InvalidInputError, ConflictError) as error:
            form.show_errors(error)
            status = error.status
        else:
            flash(f"{tenant.name} is being exported, and then removed.", "success")
            return redirect(url_for("console.removals"))
    elif form.errors:
        status = 422
    page = render_template("tenants/removal.html", tenant=tenant, counts=counts, form=form)
    return page, status


def _add(session: Session, form: NewTenantForm) -> tuple[Tenant, tuple[Invitation, str] | None]:
    slug = (form.slug.data or "").strip() or None
    tenant = create_tenant(session, name=form.name.data, slug=slug, now=now())
    email = (form.email.data or "").strip()
    if not email:
        return tenant, None
    invited = invite(
        session, current_scope(), tenant_id=tenant.id, email=email, role=Role.ADMIN, now=now()
    )
    return tenant, invited


def _render_index(form: NewTenantForm) -> str:
    with database() as session:
        page = list_tenants(
            session, current_scope(), state=chosen(TenantState), search=search_text(),
            page=page_number(), page_size=PAGE_SIZE,
        )  # fmt: skip
        counts = tenant_counts(session, [tenant.id for tenant in page.items])
    return render_template(
        "tenants/index.html", form=form, page=page, counts=counts, states=list(TenantState),
        state_filter=chosen(TenantState), search=search_text(),
    )  # fmt: skip


def _render_tenant(form: InvitationForm, tenant_id: str) -> str:
    scope = current_scope()
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        page = list_users(
            session, scope, tenant_id=tenant_id, page=page_number(), page_size=PAGE_SIZE
        )
        return render_template(
            "tenants/show.html",
            form=form,
            tenant=tenant,
            page=page,
            counts=tenant_counts(session, [tenant_id])[tenant_id],
            use=tenant_use(session, tenant_id),
            removal=find_removal(session, tenant_id),
            invitations=list_invitations(session, scope, tenant_id=tenant_id, page_size=PAGE_SIZE),
        )
