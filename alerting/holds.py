"""What holds notifications back: silences, and appliances that are down (inhibition).

While the pack's rule `appliance-down` fires for an appliance, notifications about its other alerts
are held, because its failure is their cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import Alert, Notification, Rule, Silence
from alerting.silences import active_silences, silenced_until
from alerting.states import AlertState
from timeseries.store import APPLIANCE_TAG

INHIBITING = "appliance-down"
# How long until an inhibited notification is looked at again.
RECHECK = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Holds:
    """The active silences, and the rules that fire for appliances that are down, by appliance."""

    silences: Sequence[Silence]
    down: Mapping[str, str]

    def until(self, notification: Notification, *, now: datetime) -> datetime | None:
        """Return until when a notification is held, or None."""
        payload = notification.payload
        inhibiting = self.down.get(payload.get("appliance_id") or "")
        if inhibiting is not None and payload["rule_id"] != inhibiting:
            return now + RECHECK
        return silenced_until(notification, self.silences)


def current_holds(session: Session, *, now: datetime) -> Holds:
    """Return what holds notifications now."""
    firing = (
        select(Alert)
        .join(Rule, Rule.id == Alert.rule_id)
        .where(Rule.pack_key == INHIBITING, Alert.state == AlertState.FIRING)
    )
    down = {one.tags[APPLIANCE_TAG]: one.rule_id for one in session.scalars(firing)}
    return Holds(active_silences(session, now=now), down)
