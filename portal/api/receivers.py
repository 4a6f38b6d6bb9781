"""`/receivers` of a tenant, `/platform/receivers` and `/notifications`, which go to them."""

from functools import partial
from http import HTTPStatus
from typing import Any

from flask import request
from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from alerting.models import Receiver
from alerting.notification.models import Notification
from alerting.notification.receivers import (
    NOTIFICATION_SORTS,
    RECEIVER_SORTS,
    check_target,
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    receivers_page,
    send_test,
    update_receiver,
)
from alerting.notification.undelivered import redeliver
from alerting.states import EventTopic, NotificationState, ReceiverKind, Region
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    page_query,
    sort_field,
    values_of,
)
from portal.context import current_scope, database, now, portal, public_url
from portal.mail import charge_message
from tenants.permissions import Permission

receivers = APIBlueprint(
    "Receivers", "/receivers", "Notification targets.", changes=Permission.EDIT_ALERTS
)
platform_receivers = APIBlueprint(
    "Platform receivers",
    "/platform/receivers",
    "Notification targets of platform rules (operators only).",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)
notifications = APIBlueprint(
    "Notifications",
    "/notifications",
    "Sent and pending notifications.",
    changes=Permission.EDIT_ALERTS,
)


ADMINS = "the tenant's admins"
_SENDS_RESOLVED = "Whether it is notified that an alert has resolved."
_TOPICS = "What its events are about; only for the type `events`, which needs at least one."
_REGION = "Of a PagerDuty or Opsgenie account. Only for these types; without it, us."


class ReceiverSchema(Schema):
    """Where notifications go."""

    id = fields.String()
    name = fields.String()
    kind = fields.Enum(ReceiverKind, by_value=True)
    target = fields.String(
        attribute="shown_target", **about("Without secrets: of a URL only scheme and host.")
    )
    region = fields.Enum(Region, by_value=True, allow_none=True, **about("Of a paging service."))
    sends_resolved = fields.Boolean(**about(_SENDS_RESOLVED))
    topics = fields.List(
        fields.String(metadata={"enum": [topic.value for topic in EventTopic]}),
        allow_none=True,
        **about("Of the type `events`: what its events are about."),
    )
    created_at = instant()


class NewReceiverSchema(ReceiverSchema):
    """A new receiver with its secret."""

    secret = fields.String(**about("Signing key of a webhook, shown only once."))


class ReceiverRequestSchema(StrictSchema):
    """A new receiver."""

    name = fields.String(required=True)
    kind = fields.Enum(ReceiverKind, by_value=True, required=True)
    target = fields.String(
        required=True,
        **about(
            "Email address, URL, apprise address of a chat service, or the key of "
            "an integration of PagerDuty or Opsgenie."
        ),
    )
    region = fields.Enum(Region, by_value=True, load_default=None, **about(_REGION))
    sends_resolved = fields.Boolean(load_default=True, **about(_SENDS_RESOLVED))
    topics = fields.List(
        fields.Enum(EventTopic, by_value=True),
        load_default=list,
        validate=validate.Length(max=len(EventTopic)),
        **about(_TOPICS),
    )


class ReceiverChangeSchema(StrictSchema):
    """A change of a receiver; what is left out stays."""

    name = fields.String()
    target = fields.String()
    region = fields.Enum(Region, by_value=True, **about(_REGION))
    sends_resolved = fields.Boolean(**about(_SENDS_RESOLVED))
    topics = fields.List(
        fields.Enum(EventTopic, by_value=True),
        validate=validate.Length(max=len(EventTopic)),
        **about(_TOPICS),
    )


class NotificationSchema(Schema):
    """A notification in the outbox."""

    id = fields.String()
    receiver_id = fields.String(
        allow_none=True, **about("Null if it goes to the tenant's admins, or to operators.")
    )
    receiver_name = fields.Function(
        lambda message: (
            ADMINS if message.receiver is None and message.tenant_id else message.destination.name
        ),
        metadata={"type": "string"},
    )
    alert_id = fields.String(allow_none=True)
    payload = fields.Dict()
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    last_error = fields.String()
    created_at = instant()
    sent_at = instant()


class NotificationQuery(PageQuery):
    """Filters of the list."""

    alert_id = fields.String(load_default=None)
    sort = sort_field(NOTIFICATION_SORTS, default="-created_at")


@platform_receivers.operation(
    "GET", query=page_query(RECEIVER_SORTS, default="name"), answer=page_of(ReceiverSchema)
)
@receivers.operation(
    "GET", query=page_query(RECEIVER_SORTS, default="name"), answer=page_of(ReceiverSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List receivers."""
    with database() as session:
        return envelope(
            receivers_page(session, current_scope(), is_platform=_is_platform(), **query)
        )


@platform_receivers.operation(
    "POST", body=ReceiverRequestSchema, answer=NewReceiverSchema, status=HTTPStatus.CREATED
)
@receivers.operation(
    "POST", body=ReceiverRequestSchema, answer=NewReceiverSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> dict[str, Any]:
    """Create a receiver; only this response has the signing key of a webhook."""
    scope, is_platform = current_scope(), _is_platform()
    policy = portal().webhook_policy
    check_target(scope, body["kind"], body["target"], policy=policy, is_platform=is_platform)
    with database() as session:
        made, secret = create_receiver(
            session, scope, box=portal().secrets, now=now(), is_platform=is_platform, **body
        )
    return values_of(ReceiverSchema, made) | {"secret": secret}


@platform_receivers.operation("GET", "/<receiver_id>", answer=ReceiverSchema)
@receivers.operation("GET", "/<receiver_id>", answer=ReceiverSchema)
def show(receiver_id: str) -> Receiver:
    """Return a receiver."""
    with database() as session:
        return _read(session, receiver_id)


@platform_receivers.operation(
    "PATCH", "/<receiver_id>", body=ReceiverChangeSchema, answer=ReceiverSchema
)
@receivers.operation("PATCH", "/<receiver_id>", body=ReceiverChangeSchema, answer=ReceiverSchema)
def change(receiver_id: str, body: dict[str, Any]) -> Receiver:
    """Change a receiver; its kind and signing key stay."""
    scope, target, is_platform = current_scope(), body.get("target", ""), _is_platform()
    with database() as session:
        before = _read(session, receiver_id)
    policy = portal().webhook_policy
    check_target(scope, before.kind, target, policy=policy, is_platform=is_platform)
    with database() as session:
        _check_if_match(session, receiver_id)
        return update_receiver(
            session,
            scope,
            receiver_id,
            name=body.get("name", before.name),
            target=target,
            region=body.get("region"),
            sends_resolved=body.get("sends_resolved"),
            topics=body.get("topics"),
            box=portal().secrets,
            is_platform=is_platform,
        )


@platform_receivers.operation("POST", "/<receiver_id>/test", answer=NotificationSchema)
@receivers.operation("POST", "/<receiver_id>/test", answer=NotificationSchema)
def test(receiver_id: str) -> Notification:
    """Send a test message; the notification's `state` shows whether it was delivered."""
    with database() as session:
        notification = send_test(
            session,
            current_scope(),
            receiver_id,
            public_url=public_url(),
            now=now(),
            is_platform=_is_platform(),
        )
        charge_message(session)
        return notification


@platform_receivers.operation("DELETE", "/<receiver_id>", status=HTTPStatus.NO_CONTENT)
@receivers.operation("DELETE", "/<receiver_id>", status=HTTPStatus.NO_CONTENT)
def delete(receiver_id: str) -> None:
    """Delete a receiver."""
    with database() as session:
        _check_if_match(session, receiver_id)
        delete_receiver(session, current_scope(), receiver_id, is_platform=_is_platform())


@notifications.operation(
    "GET",
    query=NotificationQuery,
    answer=page_of(NotificationSchema),
)
def list_sent(query: dict[str, Any]) -> dict[str, Any]:
    """List notifications, newest first."""
    with database() as session:
        return envelope(list_notifications(session, current_scope(), **query))


@notifications.operation("POST", "/<notification_id>/redeliver", answer=NotificationSchema)
def send_again(notification_id: str) -> Notification:
    """Send a notification again that was sent or has failed; it keeps its ID."""
    with database() as session:
        notification = redeliver(session, current_scope(), notification_id, now=now())
        charge_message(session)
        return notification


def _is_platform() -> bool:
    return bool(request.blueprint == platform_receivers.name)


def _read(session: Session, receiver_id: str) -> Receiver:
    return get_receiver(session, current_scope(), receiver_id, is_platform=_is_platform())


def _check_if_match(session: Session, receiver_id: str) -> None:
    read = partial(_read, session, receiver_id)
    receivers.check_if_match(session, Receiver, receiver_id, read, ReceiverSchema)
