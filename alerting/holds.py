"""What holds notifications back: silences, and alerts that inhibit others."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from alerting.inhibition import Inhibitions, current_inhibitions
from alerting.labels import ApplianceLabels
from alerting.models import Silence
from alerting.notification_models import Notification
from alerting.silences import active_silences, labels_of_silences, silenced_until

# How long until an inhibited notification is looked at again.
RECHECK = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Holds:
    """The active silences, and what firing alerts inhibit."""

    silences: Sequence[Silence]
    appliances: ApplianceLabels
    inhibitions: Inhibitions

    def until(self, notification: Notification, *, now: datetime) -> datetime | None:
        """Return until when a notification is held, or None."""
        if self.inhibitions.is_inhibited(notification):
            return now + RECHECK
        return silenced_until(notification, self.silences, self.appliances)


NO_HOLDS = Holds((), {}, Inhibitions({}))


def current_holds(session: Session, tenant_ids: Collection[str], *, now: datetime) -> Holds:
    """Return what holds notifications of some tenants now."""
    silences = active_silences(session, now=now)
    labels = labels_of_silences(session, silences)
    return Holds(silences, labels, current_inhibitions(session, tenant_ids))
