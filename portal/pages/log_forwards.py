"""`/logs/forwarding`: where the lines of a tenant are forwarded to."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from logs.forwarding.service import (
    ForwardRequest,
    create_forward,
    delete_forward,
    get_forward,
    list_forwards,
    update_forward,
)
from logs.lines import Source
from logs.models import ForwardKind, LogForward
from portal.context import current_scope, database, now, portal
from portal.forms.log_forwards import ForwardForm
from portal.pages.common import Pages
from portal.query_string import asked_page
from protocol.lines import LogLevel
from tenants.tenants import tenant_names

pages = Pages("log_forwards", __name__, url_prefix="/logs/forwarding")


@pages.form("")
def index() -> ResponseReturnValue:
    """List targets; add one."""
    return _save(ForwardForm(), None)


@pages.form("/<forward_id>")
def edit(forward_id: str) -> ResponseReturnValue:
    """Change a target."""
    with database() as session:
        forward = get_forward(session, current_scope(), forward_id)
    names = ("name", "sources", "is_enabled")
    shown = {name: getattr(forward, name) for name in names}
    shown |= {"kind": forward.kind.value, "minimum_level": forward.minimum_level.value}
    # The address may have a password: it is not shown, and an empty one keeps it.
    return _save(ForwardForm(data=shown), forward)


pages.acts("/<forward_id>/delete", delete_forward, "Log target deleted", name="remove")


def _save(form: ForwardForm, forward: LogForward | None) -> ResponseReturnValue:
    scope = current_scope()
    if form.validate_on_submit():
        with form.showing_errors():
            wanted = _request(form)
            with database() as session:
                box = portal().secrets
                if forward is None:
                    create_forward(session, scope, wanted, box=box, now=now())
                else:
                    update_forward(session, scope, forward.id, wanted, box=box, now=now())
            flash("Log target saved", "success")
            return redirect(url_for(".index"))
    with database() as session:
        page = list_forwards(session, scope, **asked_page())
        tenants = tenant_names(session, (listed.tenant_id for listed in page.items))
    text = render_template(
        "logs/forwarding.html", page=page, forward=forward, form=form, tenants=tenants
    )
    return text, form.status


def _request(form: ForwardForm) -> ForwardRequest:
    return ForwardRequest(
        name=form.name.data,
        kind=ForwardKind(form.kind.data),
        url=form.url.data or "",
        token=form.token.data or "",
        sources=[Source(source) for source in form.sources.data or ()],
        minimum_level=LogLevel(form.minimum_level.data),
        is_enabled=form.is_enabled.data,
    )
