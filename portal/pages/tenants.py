"""`/tenants`: the operator's customers and their users."""

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError, InvalidInputError
from portal.context import current_scope, database, now
from portal.forms.accounts import TenantForm, UserForm
from portal.pages.paging import PAGE_SIZE, page_number
from tenants.accounts import (
    create_tenant,
    get_tenant,
    list_tenants,
    set_tenant_state,
    tenant_counts,
)
from tenants.members import add_user, list_users
from tenants.models import Role, TenantState
from tenants.permissions import Permission

pages = Blueprint("tenants", __name__)


@pages.get("/tenants")
@pages.post("/tenants")
def index() -> ResponseReturnValue:
    """List the tenants; add one."""
    current_scope().require(Permission.MANAGE_TENANTS)
    form = TenantForm()
    if not form.validate_on_submit():
        return _render_index(form), 422 if form.errors else 200
    try:
        with database() as session:
            slug = form.slug.data.strip() or None
            tenant = create_tenant(session, name=form.name.data, slug=slug, now=now())
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render_index(form), error.status
    flash(f"Tenant {tenant.name} is added. Add its first admin next.", "success")
    return redirect(url_for(".show", tenant_id=tenant.id))


@pages.get("/tenants/<tenant_id>")
@pages.post("/tenants/<tenant_id>")
def show(tenant_id: str) -> ResponseReturnValue:
    """Show a tenant with its users; add a user."""
    scope = current_scope()
    with database() as session:
        get_tenant(session, scope, tenant_id)
    scope.require(Permission.MANAGE_TENANTS)
    form = UserForm(data={"role": Role.ADMIN.value})
    if not form.validate_on_submit():
        return _render_tenant(form, tenant_id), 422 if form.errors else 200
    try:
        with database() as session:
            user = add_user(
                session,
                scope,
                tenant_id=tenant_id,
                email=form.email.data,
                name=form.name.data,
                role=Role(form.role.data),
                password=form.password.data,
                now=now(),
            )
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render_tenant(form, tenant_id), error.status
    flash(f"{user.name} may sign in now.", "success")
    return redirect(url_for(".show", tenant_id=tenant_id))


@pages.post("/tenants/<tenant_id>/state")
def switch(tenant_id: str) -> ResponseReturnValue:
    """Suspend a tenant, or make it active again."""
    is_active = request.form.get("is_active") == "1"
    state = TenantState.ACTIVE if is_active else TenantState.SUSPENDED
    with database() as session:
        tenant = set_tenant_state(session, current_scope(), tenant_id, state)
    flash(f"{tenant.name} is {state.value}.", "success")
    return redirect(url_for(".show", tenant_id=tenant_id))


def _render_index(form: TenantForm) -> str:
    with database() as session:
        page = list_tenants(session, current_scope(), page=page_number(), page_size=PAGE_SIZE)
        counts = tenant_counts(session)
    return render_template("tenants/index.html", form=form, page=page, counts=counts)


def _render_tenant(form: UserForm, tenant_id: str) -> str:
    scope = current_scope()
    with database() as session:
        tenant = get_tenant(session, scope, tenant_id)
        page = list_users(
            session, scope, tenant_id=tenant_id, page=page_number(), page_size=PAGE_SIZE
        )
        counts = tenant_counts(session)[tenant_id]
    return render_template("tenants/show.html", form=form, tenant=tenant, page=page, counts=counts)
