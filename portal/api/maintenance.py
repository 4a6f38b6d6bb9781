"""`/platform/maintenance`: stuck jobs, undelivered notifications and cleanup, for operators."""

from typing import Any

from marshmallow import Schema, fields

from alerting.notification.models import Notification
from alerting.notification.undelivered import (
    UNDELIVERED_SORTS,
    discard,
    discard_all,
    get_undelivered,
    list_undelivered,
    retry,
    retry_all,
)
from alerting.states import NotificationState
from jobqueue.queue.retention import STUCK_JOB_SORTS, list_stuck_jobs
from portal.api.blueprint import APIBlueprint
from portal.api.job_schemas import JobSchema
from portal.api.objects import Objects
from portal.api.schemas import about, envelope, instant, page_of, page_query
from portal.context import current_scope, database, now, portal
from portal.presenters.platform import JOBS_KEPT_DAYS, delete_old_jobs, maintenance_summary
from tenants.permissions import Permission

maintenance = APIBlueprint(
    "Maintenance",
    "/platform",
    "Maintenance of the platform (operators only).",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)


class UndeliveredNotificationSchema(Schema):
    """An undelivered notification."""

    id = fields.String()
    tenant_id = fields.String()
    receiver_id = fields.String(allow_none=True, **about("Null if it goes to `address`."))
    address = fields.String(**about("Email address, if there is no receiver."))
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    next_try_at = instant()
    last_error = fields.String()
    created_at = instant()


class ExpiringCertificateSchema(Schema):
    """A current certificate that expires soon."""

    appliance_id = fields.String()
    appliance_name = fields.String()
    tenant_name = fields.String()
    not_after = instant()


class MaintenanceSchema(Schema):
    """Problems that need attention."""

    ended_jobs = fields.Integer(
        attribute="jobs.ended", **about(f"Jobs that ended more than {JOBS_KEPT_DAYS} days ago.")
    )
    stuck_jobs = fields.Integer(attribute="jobs.stuck")
    undelivered_notifications = fields.Integer(attribute="notifications.total")
    expiring_certificates = fields.List(
        fields.Nested(ExpiringCertificateSchema), attribute="certificates"
    )
    prunable_rows = fields.Dict(
        attribute="prunable",
        keys=fields.String(),
        values=fields.Integer(),
        **about("Expired rows by table."),
    )
    database_bytes = fields.Integer(allow_none=True)
    store_bytes = fields.Integer(allow_none=True)
    sample_retention_days = fields.Integer()
    five_minute_retention_days = fields.Integer()
    hour_retention_days = fields.Integer()


class DeletedSchema(Schema):
    """Number of deleted objects."""

    deleted = fields.Integer()


class RetriedSchema(Schema):
    """Number of notifications to deliver again."""

    retried = fields.Integer()


@maintenance.operation("GET", "/maintenance", answer=MaintenanceSchema)
def show() -> dict[str, Any]:
    """Return what needs attention (operator)."""
    with database() as session:
        return maintenance_summary(session, current_scope(), portal().settings, now=now())


@maintenance.operation(
    "GET",
    "/jobs/stuck",
    query=page_query(STUCK_JOB_SORTS, default="submitted_at"),
    answer=page_of(JobSchema),
)
def stuck_jobs(query: dict[str, Any]) -> dict[str, Any]:
    """List jobs of all tenants that are stuck, oldest first (operator)."""
    with database() as session:
        return envelope(list_stuck_jobs(session, current_scope(), now=now(), **query))


@maintenance.operation("POST", "/jobs/clean", answer=DeletedSchema)
def clean_jobs() -> dict[str, int]:
    """Delete up to 500 old finished jobs with their attempts and logs (operator)."""
    return {"deleted": delete_old_jobs(current_scope())}


objects = Objects(
    maintenance,
    "/notifications/<notification_id>",
    read=get_undelivered,
    answer=UndeliveredNotificationSchema,
    model=Notification,
    # Without the fields that change with every delivery attempt.
    etag=UndeliveredNotificationSchema(exclude=("tries", "next_try_at", "last_error")),
)
objects.lists(
    "List undelivered notifications of all tenants, newest first (operator).",
    list_undelivered,
    query=page_query(UNDELIVERED_SORTS, default="-created_at"),
    path="/notifications",
    name="notifications",
)
objects.shows("Return a notification of any tenant (operator).", name="notification")
objects.acts("Retry a notification now (operator).", retry, "retry", name="retry_notification")
objects.deletes("Discard a notification (operator).", discard, name="discard_notification")


@maintenance.operation("POST", "/notifications/retry-all", answer=RetriedSchema)
def retry_notifications() -> dict[str, int]:
    """Retry all failed notifications (operator)."""
    with database() as session:
        return {"retried": retry_all(session, current_scope(), now=now())}


@maintenance.operation("POST", "/notifications/discard-all", answer=DeletedSchema)
def discard_notifications() -> dict[str, int]:
    """Discard all failed notifications (operator)."""
    with database() as session:
        return {"deleted": discard_all(session, current_scope(), now=now())}
