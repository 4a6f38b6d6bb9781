"""`/notification-policy`: the tree of routes from alerts to receivers."""

from functools import partial
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from alerting.notification.inhibition import printed_rules
from alerting.notification.policies import (
    preview_policy,
    read_inhibit_rules,
    read_policy,
    read_time_intervals,
    save_policy,
)
from alerting.notification.routes import printed
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about, instant
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
    """Routes, inhibition rules and time intervals; docs/alerts.md lists their keys."""

    route = fields.Dict(keys=fields.String(), required=True)
    inhibit_rules = fields.List(
        fields.Dict(keys=fields.String(), values=fields.List(fields.String())),
        load_default=None,
        **about(
            "Alerts (`source_matchers`) that hold notifications about others "
            "(`target_matchers`) with the same values of the labels in `equal`. "
            "Without the field, those that ship."
        ),
    )
    time_intervals = fields.List(
        fields.Dict(keys=fields.String()),
        load_default=list,
        **about(
            "Named times for `mute_time_intervals` and `active_time_intervals` of "
            "routes, as in Alertmanager: `name` and `time_intervals`."
        ),
    )


class AlertLabelsSchema(StrictSchema):
    """The labels of an alert."""

    labels = fields.Dict(keys=fields.String(), values=fields.String(), required=True)


class DestinationSchema(Schema):
    """A receiver of the alert."""

    receiver_id = fields.String()
    receiver_name = fields.String()
    matchers = fields.List(fields.String(), **about("Those of its route."))
    group_by = fields.List(fields.String())
    escalate_to = fields.List(fields.String())
    muted_until = instant(**about("The end of the mute time that its route is in now, if any."))


class DestinationsSchema(Schema):
    """Where an alert goes."""

    destinations = fields.List(fields.Nested(DestinationSchema))


@notification_policy.operation("GET", answer=NotificationPolicySchema, has_etag=True)
def show() -> dict[str, Any]:
    """Return the tenant's tree of routes and its inhibition rules."""
    with database() as session:
        return _policy(session)


@notification_policy.operation(
    "PUT", body=NotificationPolicySchema, answer=NotificationPolicySchema, has_etag=True
)
def replace(body: dict[str, Any]) -> dict[str, Any]:
    """Replace the tenant's tree of routes and its inhibition rules."""
    scope = current_scope()
    with database() as session:
        notification_policy.check_if_match(
            session,
            Tenant,
            scope.require_tenant(),
            partial(_policy, session),
            NotificationPolicySchema,
        )
        rules = body["inhibit_rules"]
        save_policy(
            session,
            scope,
            body["route"],
            inhibit_rules=rules,
            time_intervals=body["time_intervals"],
            now=now(),
        )
        return _policy(session)


@notification_policy.operation(
    "POST", "/preview", body=AlertLabelsSchema, answer=DestinationsSchema, needs=Permission.VIEW
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Return where an alert with these labels would go by the saved tree."""
    with database() as session:
        destinations = preview_policy(session, current_scope(), body["labels"], now=now())
    return {
        "destinations": [
            {
                "receiver_id": destination.receiver_id,
                "receiver_name": destination.receiver_name,
                "matchers": destination.route.matchers,
                "group_by": destination.route.group_by,
                "escalate_to": destination.route.escalate_to,
                "muted_until": destination.muted_until,
            }
            for destination in destinations
        ]
    }


def _policy(session: Session) -> dict[str, Any]:
    scope = current_scope()
    rules = read_inhibit_rules(session, scope)
    return {
        "route": printed(read_policy(session, scope)),
        "inhibit_rules": printed_rules(rules),
        "time_intervals": read_time_intervals(session, scope),
    }
