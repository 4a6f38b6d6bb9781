"""`/usage`: what one's own tenant has against its quotas."""

from flask import Blueprint, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from portal.context import current_scope, database
from portal.showing.platform import tenant_use
from tenants.accounts import get_tenant
from tenants.permissions import Permission

pages = Blueprint("usage", __name__)


@pages.get("/usage")
def index() -> ResponseReturnValue:
    """Show use against limits; operators find that on each tenant's page."""
    scope = current_scope()
    if scope.tenant_id is None:
        return redirect(url_for("console.index"))
    scope.require(Permission.VIEW)
    with database() as session:
        tenant = get_tenant(session, scope, scope.tenant_id)
        use = tenant_use(session, tenant.id)
    return render_template("tenants/usage.html", tenant=tenant, use=use)
