"""Record the alerts of which a recipient was notified, while a message is sent and after it.

While a message about an alert is sent, nobody knows what its recipient was notified of: the row of
`delivered_alerts` has no state until the delivery has succeeded, or has surely failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from alerting.models import Alert
from alerting.notification.acknowledgements import is_acknowledgement_due, note_acknowledged
from alerting.notification.models import DeliveredAlert, Notification
from alerting.states import AlertState, NotificationPurpose, NotificationState, Severity


@dataclass(frozen=True, slots=True)
class Claim:
    """A notification that is being sent, and the state and severity that were delivered before.

    `row_id` is the row of `delivered_alerts`; "" for a message that is not about an alert. `is_new`
    says that its recipient was never notified of the alert, not even by a message that timed out.
    """

    notification: Notification
    row_id: str = ""
    is_new: bool = False
    before: tuple[AlertState | None, Severity | None] = (None, None)


def is_current(session: Session, notification: Notification) -> bool:
    """Return whether a notification is still true, and its recipient is not yet notified of it."""
    if notification.purpose is NotificationPurpose.ACKNOWLEDGEMENT:
        return is_acknowledgement_due(session, notification)
    if not notification.about or notification.purpose is NotificationPurpose.REPEAT:
        return True
    row = _delivered(session, notification)
    state, severity = _state_of(notification)
    if state is AlertState.RESOLVED:
        receiver = notification.receiver
        return row is not None and (receiver is None or receiver.sends_resolved)
    alert = session.get(Alert, notification.about)
    if alert is None or (alert.state, alert.severity) != (state, severity):
        return False
    return row is None or (row.state, row.severity) != (state, severity)


def drop(session: Session, notification: Notification) -> None:
    """Note that a notification is not sent, because it is not current."""
    notification.state, notification.tries = NotificationState.SUPPRESSED, 0
    if notification.about and _state_of(notification)[0] is AlertState.RESOLVED:
        # Its receiver is not notified that alerts have resolved.
        row = _delivered(session, notification)
        if row is not None:
            session.delete(row)


def start(session: Session, notification: Notification) -> Claim:
    """Note that a notification is being sent."""
    if not notification.about:
        return Claim(notification)
    row = _delivered(session, notification)
    is_new = row is None
    if row is None:
        row = DeliveredAlert(
            tenant_id=notification.tenant_id,
            alert_id=notification.about,
            recipient=notification.recipient,
            receiver_id=notification.receiver_id,
            group_key=notification.group_key,
            payload=notification.payload,
        )
        session.add(row)
        session.flush()
    before = (row.state, row.severity)
    row.state = row.severity = None
    return Claim(notification, row.id, is_new, before)


def confirm(session: Session, claims: Sequence[Claim], *, now: datetime) -> None:
    """Note that notifications were delivered."""
    for claim in claims:
        if claim.notification.purpose is NotificationPurpose.ACKNOWLEDGEMENT:
            note_acknowledged(session, claim.notification, at=now)
    for claim in filter(_is_about_alert, claims):
        state, severity = _state_of(claim.notification)
        if state is AlertState.RESOLVED:
            session.execute(delete(DeliveredAlert).where(DeliveredAlert.id == claim.row_id))
        else:
            session.execute(
                update(DeliveredAlert)
                .where(DeliveredAlert.id == claim.row_id)
                .values(
                    state=state,
                    severity=severity,
                    payload=claim.notification.payload,
                    delivered_at=now,
                )
            )


def refute(session: Session, claims: Sequence[Claim]) -> None:
    """Note that notifications were not delivered, so that what was before still holds."""
    for claim in filter(_is_about_alert, claims):
        same = DeliveredAlert.id == claim.row_id
        if claim.is_new:
            session.execute(delete(DeliveredAlert).where(same))
        else:
            state, severity = claim.before
            values = {"state": state, "severity": severity}
            session.execute(update(DeliveredAlert).where(same).values(values))


def _is_about_alert(claim: Claim) -> bool:
    return bool(claim.row_id)


def _delivered(session: Session, notification: Notification) -> DeliveredAlert | None:
    return session.scalar(
        select(DeliveredAlert).where(
            DeliveredAlert.alert_id == notification.about,
            DeliveredAlert.recipient == notification.recipient,
        )
    )


def _state_of(notification: Notification) -> tuple[AlertState, Severity]:
    payload = notification.payload
    return AlertState(payload["state"]), Severity(payload["severity"])
