"""How long appliances were available in a period, from the history of their states."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.usage.totals import Period
from tenants.fleet.events import EventKind
from tenants.models import Appliance, ApplianceEvent, ApplianceState
from tenants.scope import Scope

AVAILABLE = frozenset({ApplianceState.ONLINE.value, ApplianceState.STALE.value})


@dataclass(frozen=True, slots=True)
class Availability:
    """Seconds of a period in which an appliance existed and was online, and its outages."""

    seconds: float
    online_seconds: float
    outages: int
    longest_seconds: float


def availability(
    session: Session, scope: Scope, period: Period, *, now: datetime
) -> dict[Appliance, Availability]:
    """Return the availability of the scope's appliances that existed in a period, by name."""
    until = min(period.until, now)
    statement = select(Appliance).where(Appliance.enrolled_at < until).order_by(Appliance.name)
    appliances = session.scalars(scope.select(statement, Appliance)).unique().all()
    events: Any = (
        select(ApplianceEvent.appliance_id, ApplianceEvent.at, ApplianceEvent.details)
        .where(ApplianceEvent.kind == EventKind.STATE.value, ApplianceEvent.at < until)
        .order_by(ApplianceEvent.at, ApplianceEvent.id)
    )
    earliest = datetime.min.replace(tzinfo=UTC)
    changes: dict[str, list[tuple[datetime, str]]] = {}
    for ident, at, details in session.execute(scope.select(events, ApplianceEvent)):
        # Older events are pruned: the first one says what was before.
        before = [(earliest, str(details.get("before", "")))]
        changes.setdefault(ident, before).append((at, str(details.get("after", ""))))
    found = {}
    for one in appliances:
        left_at = min((at for at in (one.retired_at, one.revoked_at) if at), default=until)
        since, end = max(period.since, one.enrolled_at), min(until, left_at)
        if since < end:
            history = changes.get(one.id) or [(earliest, one.state.value)]
            found[one] = available_within(history, since=since, until=end)
    return found


def available_within(
    changes: Sequence[tuple[datetime, str]], *, since: datetime, until: datetime
) -> Availability:
    """Return the availability between two instants.

    Args:
        changes: (instant, new state), oldest first, from the enrollment on.
        since: the start.
        until: the end, after the start.
    """
    state, at = "", since
    online, outages, down, longest = 0.0, 0, 0.0, 0.0
    for changed_at, after in [*changes, (until, "")]:
        end = min(max(changed_at, since), until)
        seconds = (end - at).total_seconds()
        if state in AVAILABLE:
            online += seconds
            down = 0.0
        else:
            down += seconds
            longest = max(longest, down)
        if changed_at >= since and state in AVAILABLE and after not in AVAILABLE:
            outages += changed_at < until
        state, at = after, end
    return Availability((until - since).total_seconds(), online, outages, longest)
