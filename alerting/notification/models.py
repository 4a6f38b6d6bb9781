"""Tables of notifications: the outbox, its files, and what each receiver was notified of."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.dialects.mysql import MEDIUMBLOB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from alerting.models import Receiver
from alerting.states import (
    AlertState,
    NotificationPurpose,
    NotificationState,
    ReceiverKind,
    Severity,
)
from core.db import Base, id_column
from core.ids import ID_LENGTH
from tenants.models import enum_column
from tenants.models.columns import reference, tenant_column

# Of the type that MySQL stores them in.
MAX_FILE_BYTES = 2**24 - 1
ADDRESS_LENGTH = 254


class NotificationFile(Base):
    """A file that emails of the outbox have attached, such as a report; deleted after a week."""

    __tablename__ = "notification_files"

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    name: Mapped[str] = mapped_column(String(200))
    media_type: Mapped[str] = mapped_column(String(100))
    content: Mapped[bytes] = mapped_column(
        LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb")
    )
    created_at: Mapped[datetime] = mapped_column(index=True)


class Notification(Base):
    """A message in the outbox, to a receiver or, without one, to the email `address`.

    One without a tenant is the platform's.
    """

    __tablename__ = "notifications"
    __table_args__ = (Index("ix_notifications_state_next_try_at", "state", "next_try_at"),)

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    receiver_id: Mapped[str | None] = reference("receivers.id", index=True)
    address: Mapped[str] = mapped_column(String(ADDRESS_LENGTH), default="")
    alert_id: Mapped[str | None] = reference("alerts.id", ondelete="SET NULL", index=True)
    group_key: Mapped[str] = mapped_column(String(64), default="")
    """Notifications of one receiver with the same key are sent as one message."""
    group_interval_seconds: Mapped[float] = mapped_column(default=0.0)
    """The least time between two messages of the group."""
    purpose: Mapped[NotificationPurpose] = mapped_column(
        enum_column(NotificationPurpose), default=NotificationPurpose.NOTICE
    )
    payload: Mapped[dict[str, Any]] = mapped_column(default=dict)
    file_id: Mapped[str | None] = reference(
        "notification_files.id", ondelete="SET NULL", index=True
    )
    state: Mapped[NotificationState] = mapped_column(enum_column(NotificationState))
    tries: Mapped[int] = mapped_column(default=0)
    next_try_at: Mapped[datetime]
    last_error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]
    receiver: Mapped[Receiver | None] = relationship(lazy="joined")
    file: Mapped[NotificationFile | None] = relationship()
    """Read with the notification only when it is sent."""

    @property
    def recipient(self) -> str:
        """The receiver's ID, or the address."""
        return self.receiver_id or self.address

    @property
    def about(self) -> str:
        """The ID of the alert whose state it is about, which may be deleted; "" for others."""
        is_about = self.purpose in {NotificationPurpose.CHANGE, NotificationPurpose.REPEAT}
        return str(self.payload["alert_id"]) if is_about else ""

    @property
    def destination(self) -> Receiver:
        """The receiver; for an address, one that is not stored."""
        if self.receiver is not None:
            return self.receiver
        return Receiver(name=self.address, kind=ReceiverKind.EMAIL, target=self.address)


class DeliveredAlert(Base):
    """An alert of which a receiver was notified, until it is notified that the alert has resolved.

    The alert may be deleted meanwhile, with its rule.
    """

    __tablename__ = "delivered_alerts"
    __table_args__ = (
        UniqueConstraint("alert_id", "recipient"),
        Index("ix_delivered_alerts_recipient_group_key", "recipient", "group_key"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str | None] = tenant_column()
    alert_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    recipient: Mapped[str] = mapped_column(String(ADDRESS_LENGTH))
    """As of its notifications."""
    receiver_id: Mapped[str | None] = reference("receivers.id", index=True)
    state: Mapped[AlertState | None] = mapped_column(enum_column(AlertState))
    """Of the last delivery; None while, or after, one that may not have arrived."""
    severity: Mapped[Severity | None] = mapped_column(enum_column(Severity))
    group_key: Mapped[str] = mapped_column(String(64), default="")
    payload: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Of the last delivery."""
    delivered_at: Mapped[datetime | None]
    """When the last message that had it was delivered."""
    acknowledged_at: Mapped[datetime | None]
    """When a paging service was notified that a user works on the alert."""
