"""Events of jobs, appliances, alerts, images and invoices for the webhooks that asked for them.

What happened is in the tables of the domains already. This reads them from where each receiver is,
and adds a message to the outbox for each event, once: transactions commit out of order, so what
happened lately is read again, and an event that has a message is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session, joinedload

from alerting.models import AlertTransition, Receiver
from alerting.notification.models import Notification
from alerting.notification.senders.events import cloud_event
from alerting.states import NOTICE, EventTopic, NotificationPurpose, NotificationState, ReceiverKind
from core.db import chunked
from core.money import cents
from jobqueue.images.models import Image
from jobqueue.models import Job, JobEvent
from marketplace.invoices.models import BillingDocument
from tenants.models import Appliance, ApplianceEvent

# A transaction that is older has surely ended.
SETTLED = timedelta(seconds=60)
BATCH = 2000
# The log of deliveries goes back so far.
RETENTION = timedelta(days=14)
PRUNE_BATCH = 500


@dataclass(frozen=True, slots=True)
class Happened:
    """An event before it is a message: what happened to what, and its page."""

    kind: str
    ident: str
    at: datetime
    subject: str
    path: str
    data: Mapping[str, Any]


def queue_events(session: Session, *, public_url: str, now: datetime) -> int:
    """Add messages about what happened to the outbox; return how many."""
    statement = select(Receiver).where(
        Receiver.kind == ReceiverKind.EVENTS, Receiver.events_after.is_not(None)
    )
    return sum(
        _queue(session, receiver, public_url=public_url, now=now)
        for receiver in session.scalars(statement)
    )


def prune_events(session: Session, *, now: datetime) -> int:
    """Delete a batch of old messages of events that were delivered or have failed."""
    done = (NotificationState.SENT, NotificationState.FAILED)
    statement = select(Notification.id).where(
        Notification.purpose == NotificationPurpose.EVENT,
        Notification.state.in_(done),
        Notification.created_at < now - RETENTION,
    )
    idents = list(session.scalars(statement.limit(PRUNE_BATCH)))
    session.execute(
        delete(Notification).where(Notification.id.in_(idents)),
        execution_options={"synchronize_session": False},
    )
    return len(idents)


def _queue(session: Session, receiver: Receiver, *, public_url: str, now: datetime) -> int:
    since = receiver.events_after or now
    events: list[Happened] = []
    settled_at = now - SETTLED
    for topic in receiver.topics or []:
        rows, has_rest = _read(session, EventTopic(topic), receiver.tenant_id or "", since=since)
        if has_rest:
            settled_at = min(settled_at, rows[-1].at)
        events += rows
    queued = _queued(session, receiver, [event.ident for event in events])
    new = [event for event in events if event.ident not in queued]
    for event in sorted(new, key=lambda each: (each.at, each.ident)):
        session.add(_message(receiver, event, public_url=public_url, now=now))
    receiver.events_after = max(since, settled_at)
    return len(new)


def _read(
    session: Session, topic: EventTopic, tenant_id: str, *, since: datetime
) -> tuple[list[Happened], bool]:
    """Return the next events, and whether others follow.

    They are of two moments at least: one moment may have any number, as when a network fails, and
    the next batch begins with the last one.
    """
    limit = BATCH
    while True:
        rows = list(_READERS[topic](session, tenant_id, since, limit))
        has_rest = len(rows) == limit
        if not has_rest or rows[-1].at > since:
            return rows, has_rest
        limit *= 2


def _queued(session: Session, receiver: Receiver, idents: Sequence[str]) -> set[str]:
    """Return which events have a message to the receiver already."""
    queued: set[str] = set()
    for part in chunked(idents):
        statement = select(Notification.group_key).where(
            Notification.receiver_id == receiver.id,
            Notification.group_key.in_(part),
            Notification.purpose == NotificationPurpose.EVENT,
        )
        queued |= set(session.scalars(statement))
    return queued


def _message(
    receiver: Receiver, event: Happened, *, public_url: str, now: datetime
) -> Notification:
    link = f"{public_url}{event.path}"
    data = {**event.data, "tenant_id": receiver.tenant_id, "link": link}
    return Notification(
        tenant_id=receiver.tenant_id,
        receiver_id=receiver.id,
        group_key=event.ident,
        purpose=NotificationPurpose.EVENT,
        payload={
            "kind": NOTICE,
            "subject": f"{event.kind} {event.data.get('name', event.subject)}",
            "text": str(event.data.get("message", "")),
            "link": link,
            "link_name": "Details",
            "event": cloud_event(
                event.kind, event.ident, at=event.at, subject=event.subject, data=data
            ),
        },
        state=NotificationState.WAITING,
        next_try_at=now,
        created_at=now,
    )


def _since(model: Any, tenant_id: str, since: datetime) -> Sequence[ColumnElement[bool]]:  # noqa: ANN401 - any model
    return (model.tenant_id == tenant_id, model.at >= since)


def _jobs(session: Session, tenant_id: str, since: datetime, limit: int) -> Iterator[Happened]:
    statement = (
        select(JobEvent, Job.name, Job.exit_code)
        .join(Job, Job.id == JobEvent.job_id)
        .where(*_since(JobEvent, tenant_id, since))
        .order_by(JobEvent.at, JobEvent.id)
    )
    for event, name, exit_code in session.execute(statement.limit(limit)):
        data = {
            "name": name,
            "state": event.state.value,
            "reason": event.reason.value,
            "message": event.message,
            "exit_code": exit_code if event.state.is_final else None,
        }
        path = f"/jobs/{event.job_id}"
        kind = f"job.{event.state.value}"
        yield Happened(kind, event.id, event.at, event.job_id, path, data)


def _appliances(
    session: Session, tenant_id: str, since: datetime, limit: int
) -> Iterator[Happened]:
    statement = (
        select(ApplianceEvent, Appliance.name)
        .join(Appliance, Appliance.id == ApplianceEvent.appliance_id)
        .where(*_since(ApplianceEvent, tenant_id, since))
        .order_by(ApplianceEvent.at, ApplianceEvent.id)
    )
    for event, name in session.execute(statement.limit(limit)):
        data = {"name": name, "message": event.message, "details": event.details}
        path = f"/appliances/{event.appliance_id}"
        kind = f"appliance.{event.kind}"
        yield Happened(kind, event.id, event.at, event.appliance_id, path, data)


def _alerts(session: Session, tenant_id: str, since: datetime, limit: int) -> Iterator[Happened]:
    statement = (
        select(AlertTransition)
        .options(joinedload(AlertTransition.alert))
        .where(*_since(AlertTransition, tenant_id, since))
        .order_by(AlertTransition.at, AlertTransition.id)
    )
    for transition in session.scalars(statement.limit(limit)).unique():
        alert = transition.alert
        data = {
            "name": alert.rule.name,
            "state": transition.to_state.value,
            "severity": transition.severity.value,
            "value": transition.value,
            "labels": alert.tags,
        }
        path = f"/alerts/{alert.id}"
        kind = f"alert.{transition.to_state.value}"
        yield Happened(kind, transition.id, transition.at, alert.id, path, data)


def _images(session: Session, tenant_id: str, since: datetime, limit: int) -> Iterator[Happened]:
    statement = (
        select(Image)
        .where(Image.tenant_id == tenant_id, Image.pushed_at >= since)
        .order_by(Image.pushed_at, Image.id)
    )
    for image in session.scalars(statement.limit(limit)):
        name = f"{image.repository}:{image.tag}"
        data = {"name": name, "digest": image.digest, "size_bytes": image.size_bytes}
        # The same tag may be pushed again: another digest, another event.
        ident = f"{image.id[:23]}-{image.digest.rpartition(':')[2][:24]}"
        yield Happened("image.pushed", ident, image.pushed_at, image.id, "/images", data)


def _documents(session: Session, tenant_id: str, since: datetime, limit: int) -> Iterator[Happened]:
    statement = (
        select(BillingDocument)
        .where(BillingDocument.tenant_id == tenant_id, BillingDocument.issued_at >= since)
        .order_by(BillingDocument.issued_at, BillingDocument.id)
    )
    for document in session.scalars(statement.limit(limit)):
        data = {
            "name": document.number,
            "month": f"{document.month_at:%Y-%m}",
            "currency": document.currency,
            # As text: no amount becomes a float on its way.
            "total": f"{cents(document.total)}",
            "due": f"{cents(document.due)}",
        }
        kind = f"{document.kind.value}.issued"
        ident = document.id
        yield Happened(kind, ident, document.issued_at, ident, "/billing", data)


_READERS: Mapping[EventTopic, Callable[[Session, str, datetime, int], Iterator[Happened]]] = {
    EventTopic.JOB: _jobs,
    EventTopic.APPLIANCE: _appliances,
    EventTopic.ALERT: _alerts,
    EventTopic.IMAGE: _images,
    EventTopic.BILLING: _documents,
}
