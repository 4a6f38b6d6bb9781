"""`/receivers` and `/notifications`: where messages go, and whether they arrived."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from alerting.models import Receiver
from alerting.service import (
    create_receiver,
    delete_receiver,
    list_notifications,
    list_receivers,
)
from alerting.states import NotificationState, ReceiverKind
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of, whole_list
from portal.context import current_scope, database, now

receivers = resource("Receivers", "/receivers", "Where messages go.")
notifications = resource("Notifications", "/notifications", "Messages, sent and waiting.")


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
    receiver_id = fields.String()
    receiver_name = fields.String(attribute="receiver.name")
    alert_id = fields.String(allow_none=True)
    payload = fields.Dict()
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    last_error = fields.String()
    created_at = instant()
    sent_at = instant()


@receivers.operation("GET", answer=page_of(ReceiverSchema))
def list_all() -> dict[str, Any]:
    """List receivers."""
    with database() as session:
        return whole_list(list_receivers(session, current_scope()))


@receivers.operation(
    "POST", body=ReceiverRequestSchema, answer=NewReceiverSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> Receiver:
    """Add a receiver; a webhook's signing key is in this answer only."""
    with database() as session:
        return create_receiver(session, current_scope(), now=now(), **body)


@receivers.operation("DELETE", "/<receiver_id>", status=HTTPStatus.NO_CONTENT)
def delete(receiver_id: str) -> None:
    """Delete a receiver."""
    with database() as session:
        delete_receiver(session, current_scope(), receiver_id)


@notifications.operation("GET", query=PageQuery, answer=page_of(NotificationSchema))
def list_sent(query: dict[str, Any]) -> dict[str, Any]:
    """List messages, newest first."""
    with database() as session:
        return envelope(list_notifications(session, current_scope(), **query))
