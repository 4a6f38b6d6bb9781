"""`/platform/housekeeping`: what of the platform wants looking after, for operators."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from alerting.models import Notification
from alerting.states import NotificationState
from alerting.stuck import (
    STUCK_SORTS,
    discard,
    discard_all,
    get_message,
    list_stuck,
    retry,
    retry_all,
)
from jobqueue.cleaning import STUCK_JOB_SORTS, delete_ended
from jobqueue.cleaning import list_stuck as list_stuck_jobs
from portal.api.blueprint import resource
from portal.api.jobs import JobSchema
from portal.api.schemas import PageQuery, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now, portal
from portal.showing.upkeep import JOBS_KEPT_DAYS, Upkeep, ended_before, upkeep
from tenants.permissions import Permission

housekeeping = resource(
    "Housekeeping",
    "/platform",
    "What wants looking after, for operators.",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)

# What the outbox changes by itself: the ETag of a message leaves it out.
_VOLATILE = ("tries", "next_try_at", "last_error")


class StuckMessageSchema(Schema):
    """A message that does not get out."""

    id = fields.String()
    tenant_id = fields.String()
    receiver_id = fields.String(
        allow_none=True, metadata={"description": "Null where it goes to an address by itself."}
    )
    address = fields.String(metadata={"description": "Where it goes that has no receiver."})
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    next_try_at = instant()
    last_error = fields.String()
    created_at = instant()


class ExpiringCertificateSchema(Schema):
    """A certificate in use that ends soon."""

    appliance_id = fields.String()
    appliance_name = fields.String()
    tenant_name = fields.String()
    not_after = instant()


class HousekeepingSchema(Schema):
    """What wants looking after."""

    ended_jobs = fields.Integer(
        metadata={"description": f"Jobs that ended more than {JOBS_KEPT_DAYS} days ago."}
    )
    stuck_jobs = fields.Integer()
    stuck_messages = fields.Integer()
    expiring_certificates = fields.List(fields.Nested(ExpiringCertificateSchema))
    to_prune = fields.Dict(keys=fields.String(), values=fields.Integer())
    database_bytes = fields.Integer(allow_none=True)
    store_bytes = fields.Integer(allow_none=True)
    sample_retention_days = fields.Integer()
    minute_retention_days = fields.Integer()
    hour_retention_days = fields.Integer()


class CleanedSchema(Schema):
    """What was deleted."""

    deleted = fields.Integer()


class RetriedSchema(Schema):
    """What is tried again."""

    retried = fields.Integer()


class MessageQuery(PageQuery):
    """In which order."""

    sort = sort_field(STUCK_SORTS, default="-created_at")


class StuckJobQuery(PageQuery):
    """In which order."""

    sort = sort_field(STUCK_JOB_SORTS, default="submitted_at")


@housekeeping.operation("GET", "/housekeeping", answer=HousekeepingSchema)
def show() -> dict[str, Any]:
    """Return what wants looking after (operator)."""
    with database() as session:
        return _shaped(upkeep(session, current_scope(), portal().settings, now=now()))


@housekeeping.operation("GET", "/jobs/stuck", query=StuckJobQuery, answer=page_of(JobSchema))
def stuck_jobs(query: dict[str, Any]) -> dict[str, Any]:
    """List jobs of all tenants that wait or stop for too long, the oldest first (operator)."""
    with database() as session:
        return envelope(list_stuck_jobs(session, current_scope(), now=now(), **query))


@housekeeping.operation("POST", "/jobs/clean", answer=CleanedSchema)
def clean_jobs() -> dict[str, int]:
    """Delete up to 500 jobs that ended long ago, with their attempts and logs (operator)."""
    with database() as session:
        scope = current_scope()
        return {"deleted": delete_ended(session, scope, before=ended_before(now()), now=now())}


@housekeeping.operation("GET", "/messages", query=MessageQuery, answer=page_of(StuckMessageSchema))
def messages(query: dict[str, Any]) -> dict[str, Any]:
    """List messages of all tenants that don't get out, the newest first (operator)."""
    with database() as session:
        return envelope(list_stuck(session, current_scope(), now=now(), **query))


@housekeeping.operation(
    "GET", "/messages/<notification_id>", answer=StuckMessageSchema, volatile=_VOLATILE
)
def message(notification_id: str) -> Notification:
    """Return a message of any tenant (operator)."""
    with database() as session:
        return get_message(session, current_scope(), notification_id)


@housekeeping.operation("POST", "/messages/<notification_id>/retry", answer=StuckMessageSchema)
def retry_message(notification_id: str) -> Notification:
    """Try a message again now (operator)."""
    with database() as session:
        return retry(session, current_scope(), notification_id, now=now())


@housekeeping.operation(
    "DELETE", "/messages/<notification_id>", status=HTTPStatus.NO_CONTENT, row=Notification
)
def discard_message(notification_id: str) -> None:
    """Give a message up (operator)."""
    with database() as session:
        discard(session, current_scope(), notification_id, now=now())


@housekeeping.operation("POST", "/messages/retry-all", answer=RetriedSchema)
def retry_messages() -> dict[str, int]:
    """Try all messages again that were given up (operator)."""
    with database() as session:
        return {"retried": retry_all(session, current_scope(), now=now())}


@housekeeping.operation("POST", "/messages/discard-all", answer=CleanedSchema)
def discard_messages() -> dict[str, int]:
    """Delete all messages that were given up (operator)."""
    with database() as session:
        return {"deleted": discard_all(session, current_scope(), now=now())}


def _shaped(found: Upkeep) -> dict[str, Any]:
    names = (
        "database_bytes", "store_bytes", "sample_retention_days", "minute_retention_days",
        "hour_retention_days",
    )  # fmt: skip
    return {
        **{name: getattr(found, name) for name in names},
        "ended_jobs": found.jobs.ended,
        "stuck_jobs": found.jobs.stuck,
        "stuck_messages": found.messages.total,
        "expiring_certificates": found.certificates,
        "to_prune": found.useless,
    }
