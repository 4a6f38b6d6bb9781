"""How long the appliances of a contract were reachable, by the portal's own samples.

The portal writes `appliance_status.reachable` of each appliance in service twice a minute, and
nothing while it suspects itself: time without samples does not count. An appliance counts from the
hour in which the customer first used it in a month until the month, or the contract, ends: whether
it is there for the next job matters as much as for the last. So it is down once its provider has
retired or revoked it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.clock import to_ns
from jobqueue.usage.models import UsageEntry
from tenants.models import Appliance
from timeseries.store import APPLIANCE_TAG, HOUR_NS, Aggregate, RangeQuery, Store


@dataclass(frozen=True, slots=True)
class Availability:
    """The measured hours of some appliances, and in how many of them they were not reachable.

    `down_hours` has those of each appliance that was, by its id.
    """

    measured_hours: float = 0.0
    down_hours: Mapping[str, float] = field(default_factory=dict)

    @property
    def down(self) -> float:
        """All hours in which an appliance was not reachable."""
        return sum(self.down_hours.values())

    @property
    def percent(self) -> float | None:
        """The share of the measured time in which appliances were reachable; None without any."""
        if not self.measured_hours:
            return None
        return 100 * (1 - self.down / self.measured_hours)


def rented_since(
    session: Session, contract_id: str, *, since: datetime, until: datetime
) -> dict[str, datetime]:
    """Return the appliances that a contract's jobs used in a period, with the first hour."""
    statement = (
        select(UsageEntry.appliance_id, func.min(UsageEntry.hour_at, type_=UsageEntry.hour_at.type))
        .where(
            UsageEntry.contract_id == contract_id,
            UsageEntry.hour_at >= since,
            UsageEntry.hour_at < until,
        )
        .group_by(UsageEntry.appliance_id)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def gone_since(session: Session, appliance_ids: Iterable[str]) -> dict[str, datetime]:
    """Return since when appliances are retired or revoked, of those that are."""
    statement = select(Appliance.id, Appliance.retired_at, Appliance.revoked_at).where(
        Appliance.id.in_(list(appliance_ids))
    )
    return {
        ident: min(at for at in times if at)
        for ident, *times in session.execute(statement)
        if any(times)
    }


def measure(
    store: Store,
    provider_id: str,
    since_by_appliance: Mapping[str, datetime],
    gone: Mapping[str, datetime],
    *,
    until: datetime,
) -> Availability:
    """Return the availability of appliances, each from its own time on.

    Args:
        store: has the samples.
        provider_id: the tenant of the appliances.
        since_by_appliance: from when on each counts.
        gone: from `gone_since`.
        until: the end of the time.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    starts = {ident: at for ident, at in since_by_appliance.items() if at < until}
    if not starts:
        return Availability()
    query = RangeQuery(
        measurement="appliance_status",
        fields=("reachable",),
        start_ns=to_ns(min(starts.values())) // HOUR_NS * HOUR_NS,
        end_ns=to_ns(until),
        aggregate=Aggregate.AVG,
        step_ns=HOUR_NS,
        tenants=(provider_id,),
        filters={APPLIANCE_TAG: tuple(sorted(starts))},
        group_by=(APPLIANCE_TAG,),
    )
    measured, down = 0.0, defaultdict[str, float](float)
    for ident in starts.keys() & gone.keys():
        hours = max((until - max(gone[ident], starts[ident])).total_seconds(), 0) / 3600
        measured += hours
        down[ident] += hours
    for series in store.query_range(query):
        appliance_id = series.tags[APPLIANCE_TAG]
        start_ns = to_ns(starts[appliance_id])
        end_ns = to_ns(min(gone.get(appliance_id, until), until))
        for at_ns, ratio in zip(series.times_ns, series.values, strict=True):
            counted = (min(at_ns + HOUR_NS, end_ns) - max(at_ns, start_ns)) / HOUR_NS
            if counted > 0:
                measured += counted
                down[appliance_id] += (1 - ratio) * counted
    return Availability(measured, {ident: hours for ident, hours in down.items() if hours > 0})
