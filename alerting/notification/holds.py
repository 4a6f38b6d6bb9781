"""Hold notifications back: for silences, alerts that inhibit others, and mute times of routes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from alerting.models import Silence
from alerting.notification.inhibition import Inhibitions, current_inhibitions
from alerting.notification.labels import ApplianceLabels
from alerting.notification.models import Notification
from alerting.notification.mutes import Mutes, current_mutes
from alerting.notification.silences import active_silences, labels_of_silences, silenced_until

# How long until an inhibited notification is looked at again.
RECHECK = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Holds:
    """The active silences, what firing alerts inhibit, and the routes that are muted."""

    silences: Sequence[Silence]
    appliances: ApplianceLabels
    inhibitions: Inhibitions
    mutes: Mutes = field(default_factory=dict)

    def until(self, notification: Notification, *, now: datetime) -> datetime | None:
        """Return until when a notification is held, or None."""
        if self.inhibitions.is_inhibited(notification):
            return now + RECHECK
        ends = [silenced_until(notification, self.silences, self.appliances)]
        mutes = self.mutes.get(notification.tenant_id or "")
        if mutes is not None and notification.about:
            ends.append(mutes.until(notification))
        return max((end for end in ends if end is not None), default=None)


def current_holds(session: Session, tenant_ids: Collection[str], *, now: datetime) -> Holds:
    """Return what holds notifications of some tenants now."""
    silences = active_silences(session, now=now)
    labels = labels_of_silences(session, silences)
    inhibitions = current_inhibitions(session, tenant_ids)
    return Holds(silences, labels, inhibitions, current_mutes(session, tenant_ids, now=now))
