"""Support visits: an operator looks at a tenant as one of its users does."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError, InvalidInputError
from portal.context import current_visitor, database, now
from portal.forms.support import VisitForm
from tenants.accounts import get_tenant
from tenants.people.support import DURATION, end_visit, find_visited, start_visit

pages = Blueprint("support", __name__)


@pages.get("/tenants/<tenant_id>/users/<user_id>/visit")
@pages.post("/tenants/<tenant_id>/users/<user_id>/visit")
def visit(tenant_id: str, user_id: str) -> ResponseReturnValue:
    """Ask for the reason; begin the visit."""
    here, form, status = current_visitor(), VisitForm(), 200
    with database() as session:
        user = find_visited(session, here, tenant_id=tenant_id, user_id=user_id)
        tenant = get_tenant(session, here.scope, tenant_id)
    if form.validate_on_submit():
        try:
            with database() as session:
                start_visit(
                    session, here, tenant_id=tenant_id, user_id=user_id,
                    reason=form.reason.data, now=now(),
                )  # fmt: skip
        except (InvalidInputError, ConflictError) as error:
            form.show_errors(error)
            status = error.status
        else:
            return redirect("/")
    status = 422 if form.errors and status == 200 else status  # noqa: PLR2004 - nothing failed yet
    minutes = int(DURATION.total_seconds() // 60)
    page = render_template("support.html", form=form, person=user, tenant=tenant, minutes=minutes)
    return page, status


@pages.post("/support/end")
def end() -> ResponseReturnValue:
    """End the visit of this browser."""
    here = current_visitor()
    with database() as session:
        end_visit(session, here, now=now())
    if here.visit is None:
        return redirect("/")
    flash("The visit is over: you are yourself again.", "success")
    return redirect(url_for("tenants.show", tenant_id=here.visit.tenant_id))
