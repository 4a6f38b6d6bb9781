"""`/receivers` and `/notifications`: where messages go, and whether they arrived."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from alerting.models import Receiver
from alerting.receivers import (
    NOTIFICATION_SORTS,
    RECEIVER_SORTS,
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    receivers_page,
)
from alerting.states import NotificationState, ReceiverKind
from alerting.targets import check_target
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now, portal
from tenants.permissions import Permission

receivers = resource(
    "Receivers", "/receivers", "Where messages go.", changes=Permission.EDIT_ALERTS
)
notifications = resource("Notifications", "/notifications", "Messages, sent and waiting.")


ADMINS = "the tenant's admins"


class ReceiverSchema(Schema):
    """An email address or a webhook."""

    id = fields.String()
    name = fields.String()
    kind = fields.Enum(ReceiverKind, by_value=True)
    target = fields.String()
    created_at = instant()


class NewReceiverSchema(ReceiverSchema):
    """A receiver at the moment it is made."""

    secret = fields.String(metadata={"description": "A webhook's signing key, shown only now."})


class ReceiverRequestSchema(StrictSchema):
    """A new receiver."""

    name = fields.String(required=True)
    kind = fields.Enum(ReceiverKind, by_value=True, required=True)
    target = fields.String(required=True)


class NotificationSchema(Schema):
    """A message of the outbox."""

    id = fields.String()
    receiver_id = fields.String(
        allow_none=True, metadata={"description": "Null where it goes to the tenant's admins."}
    )
    receiver_name = fields.Function(
        lambda message: message.receiver.name if message.receiver else ADMINS,
        metadata={"type": "string"},
    )
    alert_id = fields.String(allow_none=True)
    payload = fields.Dict()
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    last_error = fields.String()
    created_at = instant()
    sent_at = instant()


class ReceiverQuery(PageQuery):
    """In which order."""

    sort = sort_field(RECEIVER_SORTS, default="name")


class NotificationQuery(PageQuery):
    """In which order."""

    sort = sort_field(NOTIFICATION_SORTS, default="-created_at")


@receivers.operation("GET", query=ReceiverQuery, answer=page_of(ReceiverSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List receivers."""
    with database() as session:
        return envelope(receivers_page(session, current_scope(), **query))


@receivers.operation(
    "POST", body=ReceiverRequestSchema, answer=NewReceiverSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Add a receiver; a webhook's signing key is in this answer only."""
    check_target(current_scope(), body["kind"], body["target"], policy=portal().webhook_policy)
    with database() as session:
        made, secret = create_receiver(
            session, current_scope(), box=portal().secrets, now=now(), **body
        )
    shown = ReceiverSchema().dump(made)
    return {**shown, "kind": made.kind, "created_at": made.created_at, "secret": secret}


@receivers.operation("GET", "/<receiver_id>", answer=ReceiverSchema)
def show(receiver_id: str) -> Receiver:
    """Return a receiver."""
    with database() as session:
        return get_receiver(session, current_scope(), receiver_id)


@receivers.operation("DELETE", "/<receiver_id>", status=HTTPStatus.NO_CONTENT, row=Receiver)
def delete(receiver_id: str) -> None:
    """Delete a receiver."""
    with database() as session:
        delete_receiver(session, current_scope(), receiver_id)


@notifications.operation("GET", query=NotificationQuery, answer=page_of(NotificationSchema))
def list_sent(query: dict[str, Any]) -> dict[str, Any]:
    """List messages, newest first."""
    with database() as session:
        return envelope(list_notifications(session, current_scope(), **query))
