"""Messages in the outbox that are not about an alert: a text with a link."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Receiver
from alerting.notification.models import Notification, NotificationFile
from alerting.states import NOTICE, NotificationState, ReceiverKind


def add_notice(
    session: Session,
    tenant_id: str | None,
    payload: dict[str, str],
    *,
    address: str = "",
    receiver: str = "",
    file: NotificationFile | None = None,
    now: datetime,
) -> bool:
    """Add a message to the outbox; return whether there is somebody to send it to.

    Args:
        session: the session.
        tenant_id: the tenant; None is the platform.
        payload: `subject`, `text`, `link` and `link_name`; an email may also have an address
            `reply_to`, and the name of the `thread` that its program shows it in.
        address: an email address.
        receiver: without an address, the name of a receiver of the tenant.
        file: what an email has attached.
        now: the time.
    """
    receiver_id = None
    if not address:
        receiver_id = session.scalar(
            select(Receiver.id).where(
                Receiver.tenant_id == tenant_id,
                Receiver.name == receiver,
                Receiver.kind != ReceiverKind.ALERTMANAGER,
            )
        )
        if receiver_id is None:
            return False
    session.add(
        Notification(
            tenant_id=tenant_id,
            receiver_id=receiver_id,
            address=address,
            payload={"kind": NOTICE, **payload},
            file=file,
            state=NotificationState.WAITING,
            next_try_at=now,
            created_at=now,
        )
    )
    return True
