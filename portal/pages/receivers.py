"""`/receivers` of a tenant, and `/console/receivers` of the platform: who is notified of alerts."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from alerting.models import Receiver
from alerting.notification.receivers import (
    check_target,
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    list_receivers,
    send_test,
    update_receiver,
)
from alerting.states import PAGING_KINDS, EventTopic, ReceiverKind, Region
from portal.context import current_scope, database, now, portal, public_url
from portal.forms.alerts import ReceiverChangeForm, ReceiverForm
from portal.mail import charge_message
from portal.pages.common import Pages, changing
from portal.query_string import asked_page
from tenants.permissions import Permission
from tenants.tenants import tenant_names

pages = Pages("receivers", __name__, url_prefix="/receivers")
platform_pages = Pages("platform_receivers", __name__, url_prefix="/console/receivers")


def _is_platform() -> bool:
    return request.blueprint == platform_pages.name


def _index() -> str:
    return url_for(".index")


@platform_pages.form("")
@pages.form("")
def index() -> ResponseReturnValue:
    """List receivers and recent notifications; add a receiver."""
    scope, is_platform = current_scope(), _is_platform()
    form = ReceiverForm()
    if form.validate_on_submit():
        kind, target = ReceiverKind(form.kind.data), form.target.data.strip()
        policy = portal().webhook_policy
        with form.showing_errors():
            check_target(scope, kind, target, policy=policy, is_platform=is_platform)
            with database() as session:
                made, secret = create_receiver(
                    session,
                    scope,
                    name=form.name.data.strip(),
                    kind=kind,
                    target=target,
                    region=Region(form.region.data) if kind in PAGING_KINDS else None,
                    sends_resolved=form.sends_resolved.data,
                    topics=_topics(form) if kind is ReceiverKind.EVENTS else (),
                    box=portal().secrets,
                    now=now(),
                    is_platform=is_platform,
                )
            if secret:
                return _render(ReceiverForm(formdata=None), made=made, secret=secret)
            flash(f"Receiver {made.name} added", "success")
            return redirect(_index())
    return _render(form), form.status


@platform_pages.form("/<receiver_id>")
@pages.form("/<receiver_id>")
def edit(receiver_id: str) -> ResponseReturnValue:
    """Rename a receiver, or replace its address."""
    scope, is_platform = current_scope(), _is_platform()
    with database() as session:
        receiver = get_receiver(session, scope, receiver_id, is_platform=is_platform)
    names = ("name", "region", "sends_resolved", "topics")
    form = ReceiverChangeForm(data={name: getattr(receiver, name) for name in names})
    if receiver.region is None:
        del form.region
    has_topics = receiver.kind is ReceiverKind.EVENTS
    del form[("sends_resolved" if has_topics else "topics")]
    if form.validate_on_submit():
        target, policy = form.target.data or "", portal().webhook_policy
        with form.showing_errors():
            check_target(scope, receiver.kind, target, policy=policy, is_platform=is_platform)
            with database() as session:
                update_receiver(
                    session,
                    scope,
                    receiver_id,
                    name=form.name.data,
                    target=target,
                    region=Region(form.region.data) if receiver.region else None,
                    sends_resolved=None if has_topics else form.sends_resolved.data,
                    topics=_topics(form) if has_topics else None,
                    box=portal().secrets,
                    is_platform=is_platform,
                )
            flash("Changes saved", "success")
            return redirect(_index())
    text = render_template(
        "receiver.html", receiver=receiver, form=form, can_edit=scope.allows(_changes())
    )
    return text, form.status


@platform_pages.post("/<receiver_id>/test")
@pages.post("/<receiver_id>/test")
@changing(back=_index)
def test(session: Session, receiver_id: str) -> str:
    """Send a test message."""
    send_test(
        session,
        current_scope(),
        receiver_id,
        public_url=public_url(),
        now=now(),
        is_platform=_is_platform(),
    )
    charge_message(session)
    return "Test message queued. Its delivery is listed under recent notifications."


@platform_pages.post("/<receiver_id>/delete")
@pages.post("/<receiver_id>/delete")
@changing(back=_index)
def remove(session: Session, receiver_id: str) -> str:
    """Delete a receiver."""
    delete_receiver(session, current_scope(), receiver_id, is_platform=_is_platform())
    return "Receiver deleted"


def _topics(form: ReceiverForm | ReceiverChangeForm) -> list[EventTopic]:
    return [EventTopic(topic) for topic in form.topics.data or ()]


def _changes() -> Permission:
    return Permission.OPERATE if _is_platform() else Permission.EDIT_ALERTS


def _render(form: ReceiverForm, *, made: Receiver | None = None, secret: str = "") -> str:
    scope, is_platform = current_scope(), _is_platform()
    with database() as session:
        receivers = list_receivers(session, scope, is_platform=is_platform)
        page = list_notifications(session, scope, is_platform=is_platform, **asked_page())
        owners = [
            *(receiver.tenant_id for receiver in receivers),
            *(receiver.tenant_id for receiver in page.items),
        ]
        tenants = tenant_names(session, filter(None, owners))
    return render_template(
        "receivers.html",
        form=form,
        receivers=receivers,
        page=page,
        tenants=tenants,
        made=made,
        signing_key=secret,
        is_platform=is_platform,
        can_edit=scope.allows(_changes()),
    )
