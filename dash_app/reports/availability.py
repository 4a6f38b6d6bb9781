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
AVAILABLE = frozenset(
    state.value for state in (ApplianceState.ONLINE, ApplianceState.STALE, ApplianceState.REPORTING)
)


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
    by_appliance = _by_appliance(source)
    target = source.request.target_percent
    groups: dict[str, list[Availability]] = defaultdict(list)
    for appliance_id, record in by_appliance.items():
        groups[source.group_of(appliance_id)].append(record)
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
        _figures(list(by_appliance.values()), target),
        ("An appliance is available while it is online or stale, from its first connection on.",),
    )


def _figures(records: Sequence[Availability], target_percent: float) -> list[Cell]:
    seconds = sum(record.seconds for record in records)
    percent = 100 * sum(record.online_seconds for record in records) / seconds if seconds else None
    met = None if percent is None else "yes" if percent >= target_percent else "no"
    return [
        len(records),
        percent,
        met,
        sum(record.outages for record in records),
        seconds - sum(record.online_seconds for record in records),
        max((record.longest_seconds for record in records if record.outages), default=None),
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
    by_appliance: dict[str, Availability] = {}
    for appliance in source.appliances.values():
        if appliance.connector_id is not None:
            continue  # only its connector is heard from
        left_at = min(
            (at for at in (appliance.retired_at, appliance.revoked_at) if at), default=until
        )
        since, end = max(period.since, appliance.enrolled_at), min(until, left_at)
        if since < end:
            history = changes.get(appliance.id) or [(earliest, appliance.state.value)]
            by_appliance[appliance.id] = available_within(history, since=since, until=end)
    return by_appliance


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
