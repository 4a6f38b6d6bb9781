"""`/receivers`: where messages go, and whether the last ones arrived."""

from flask import Blueprint, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from alerting.models import Receiver
from alerting.service import (
    create_receiver,
    delete_receiver,
    list_notifications,
    list_receivers,
)
from alerting.states import ReceiverKind
from alerting.targets import check_target
from core.errors import ConflictError, InvalidInputError
from portal.context import current_scope, database, now, portal
from portal.forms.receivers import ReceiverForm
from portal.pages.paging import PAGE_SIZE, page_number

pages = Blueprint("receivers", __name__)


@pages.get("/receivers")
@pages.post("/receivers")
def index() -> ResponseReturnValue:
    """List the receivers and the last messages; add a receiver."""
    form = ReceiverForm()
    if not form.validate_on_submit():
        return _render(form), 422 if form.errors else 200
    kind, target = ReceiverKind(form.kind.data), form.target.data.strip()
    try:
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
    except (InvalidInputError, ConflictError) as error:
        form.show_errors(error)
        return _render(form), error.status
    if secret:
        return _render(ReceiverForm(formdata=None), made=made, secret=secret)
    flash(f"Receiver {made.name} is added.", "success")
    return redirect(url_for(".index"))


@pages.post("/receivers/<receiver_id>/delete")
def delete(receiver_id: str) -> ResponseReturnValue:
    """Delete a receiver."""
    with database() as session:
        delete_receiver(session, current_scope(), receiver_id)
    flash("The receiver is deleted.", "success")
    return redirect(url_for(".index"))


def _render(form: ReceiverForm, *, made: Receiver | None = None, secret: str = "") -> str:
    scope = current_scope()
    with database() as session:
        receivers = list_receivers(session, scope)
        page = list_notifications(session, scope, page=page_number(), page_size=PAGE_SIZE)
    return render_template(
        "receivers.html", form=form, receivers=receivers, page=page, made=made, signing_key=secret
    )
