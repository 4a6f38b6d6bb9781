"""Report on how long appliances were available, from the history of their states."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from dash_app.reports.report import Cell, Column, Unit
from dash_app.reports.source import Source, Table
from tenants.fleet.events import EventKind
from tenants.models import ApplianceEvent, ApplianceState

_NOT_CONNECTED = frozenset({"", ApplianceState.ENROLLED.value})
AVAILABLE = frozenset({ApplianceState.ONLINE.value, ApplianceState.STALE.value})


@dataclass(frozen=True, slots=True)
class Availability:
    """Seconds of a period from an appliance's first connection on, and its outages.

    An outage is time in which it was not available; what is no outage has no length.
    """

    seconds: float
    online_seconds: float
    outages: int
    longest_seconds: float


def availability(source: Source) -> Table:
    """Return the share of the period in which appliances were available, against the target."""
    found = _by_appliance(source)
    target = source.request.target_percent
    groups: dict[str, list[Availability]] = defaultdict(list)
    for appliance_id, one in found.items():
        groups[source.group_of(appliance_id)].append(one)
    columns = (
        Column("appliances", "Appliances"),
        Column("available_percent", "Available", Unit.PERCENT),
        Column("target_met", f"At least {target:g} %", Unit.TEXT),
        Column("outages", "Outages"),
        Column("unavailable_seconds", "Unavailable", Unit.SECONDS),
        Column("longest_outage_seconds", "Longest outage", Unit.SECONDS),
    )
    return Table(
        columns,
        [(name, *_figures(groups[name], target)) for name in sorted(groups)],
        _figures(list(found.values()), target),
        ("An appliance is available while it is online or stale, from its first connection on.",),
    )


def _figures(known: Sequence[Availability], target_percent: float) -> list[Cell]:
    seconds = sum(one.seconds for one in known)
    percent = 100 * sum(one.online_seconds for one in known) / seconds if seconds else None
    met = None if percent is None else "yes" if percent >= target_percent else "no"
    return [
        len(known),
        percent,
        met,
        sum(one.outages for one in known),
        seconds - sum(one.online_seconds for one in known),
        max((one.longest_seconds for one in known if one.outages), default=None),
    ]


def _by_appliance(source: Source) -> dict[str, Availability]:
    """Return the availability of the appliances that existed in the period, by id."""
    period, session = source.request.period, source.session
    until = min(period.until, source.now)
    events: Any = (
        select(ApplianceEvent.appliance_id, ApplianceEvent.at, ApplianceEvent.details)
        .where(ApplianceEvent.kind == EventKind.STATE.value, ApplianceEvent.at < until)
        .order_by(ApplianceEvent.at, ApplianceEvent.id)
    )
    earliest = datetime.min.replace(tzinfo=UTC)
    changes: dict[str, list[tuple[datetime, str]]] = {}
    for ident, at, details in session.execute(source.scope.select(events, ApplianceEvent)):
        # Older events are pruned: the first one says what was before.
        before = [(earliest, str(details.get("before", "")))]
        changes.setdefault(ident, before).append((at, str(details.get("after", ""))))
    found: dict[str, Availability] = {}
    for one in source.appliances.values():
        left_at = min((at for at in (one.retired_at, one.revoked_at) if at), default=until)
        since, end = max(period.since, one.enrolled_at), min(until, left_at)
        if since < end:
            history = changes.get(one.id) or [(earliest, one.state.value)]
            found[one.id] = available_within(history, since=since, until=end)
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
    waiting, online, outages, down, longest = 0.0, 0.0, 0, 0.0, 0.0
    for changed_at, after in [*changes, (until, "")]:
        end = min(max(changed_at, since), until)
        seconds = (end - at).total_seconds()
        if state in AVAILABLE:
            online += seconds
            down = 0.0
        elif state in _NOT_CONNECTED:
            waiting += seconds
        elif seconds:
            outages += not down
            down += seconds
            longest = max(longest, down)
        state, at = after, end
    return Availability((until - since).total_seconds() - waiting, online, outages, longest)
