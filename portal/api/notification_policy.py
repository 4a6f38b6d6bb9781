"""`/notification-policy`: the tree of routes from alerts to receivers."""

from typing import Any

from marshmallow import Schema, fields

from alerting.policies import preview_policy, read_policy, save_policy
from alerting.routes import printed
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema
from portal.context import current_scope, database, now
from tenants.models import Tenant
from tenants.permissions import Permission

notification_policy = APIBlueprint(
    "Notification policy",
    "/notification-policy",
    "Routes from alerts to receivers.",
    changes=Permission.EDIT_ALERTS,
)


class NotificationPolicySchema(StrictSchema):
    """The tree of routes; see docs/alerts.md for the keys of a route."""

    route = fields.Dict(keys=fields.String(), required=True)


class AlertLabelsSchema(StrictSchema):
    """The labels of an alert."""

    labels = fields.Dict(keys=fields.String(), values=fields.String(), required=True)


class DestinationSchema(Schema):
    """A receiver of the alert."""

    receiver_id = fields.String()
    receiver_name = fields.String()
    matchers = fields.List(fields.String(), metadata={"description": "Those of its route."})
    group_by = fields.List(fields.String())
    escalate_to = fields.List(fields.String())


class DestinationsSchema(Schema):
    """Where an alert goes."""

    destinations = fields.List(fields.Nested(DestinationSchema))


@notification_policy.operation("GET", answer=NotificationPolicySchema, has_etag=True)
def show() -> dict[str, Any]:
    """Return the tenant's tree of routes."""
    with database() as session:
        return {"route": printed(read_policy(session, current_scope()))}


@notification_policy.operation(
    "PUT", body=NotificationPolicySchema, answer=NotificationPolicySchema, has_etag=True
)
def replace(body: dict[str, Any]) -> dict[str, Any]:
    """Replace the tenant's tree of routes."""
    scope = current_scope()
    with database() as session:

        def read() -> dict[str, Any]:
            return {"route": printed(read_policy(session, scope))}

        notification_policy.check_if_match(
            session, Tenant, scope.require_tenant(), read, NotificationPolicySchema
        )
        return {"route": printed(save_policy(session, scope, body["route"], now=now()))}


@notification_policy.operation(
    "POST", "/preview", body=AlertLabelsSchema, answer=DestinationsSchema, needs=Permission.VIEW
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Return where an alert with these labels would go by the saved tree."""
    with database() as session:
        found = preview_policy(session, current_scope(), body["labels"])
    return {
        "destinations": [
            {
                "receiver_id": one.receiver_id,
                "receiver_name": one.receiver_name,
                "matchers": one.route.matchers,
                "group_by": one.route.group_by,
                "escalate_to": one.route.escalate_to,
            }
            for one in found
        ]
    }
