"""Hold notifications back: for silences, alerts that inhibit others, and mute times of routes.

The receivers of a muted route are notified of the current state at the end of the mute time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import NotificationPolicy, Receiver, Rule, Silence
from alerting.notification.inhibition import Inhibitions, current_inhibitions
from alerting.notification.labels import ApplianceLabels, appliance_labels, labels_of_payload
from alerting.notification.models import Notification
from alerting.notification.routes import Route, loaded
from alerting.notification.silences import active_silences, labels_of_silences, silenced_until
from alerting.notification.time_intervals import TimeInterval, contains, parse_time_intervals

# How long until an inhibited notification is looked at again.
RECHECK = timedelta(seconds=30)
MINUTE = timedelta(minutes=1)
# When a longer mute time is looked at again.
MAX_AHEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMutes:
    """The muted routes of a tenant.

    Attributes:
        policy: root of its routes.
        ends: until when routes are muted, by path.
        receivers: names of receivers by ID.
        own_receivers: IDs of the receivers of rules by ID of the rule, which no route mutes.
        labels: of appliances.
    """

    policy: Route
    ends: Mapping[str, datetime]
    receivers: Mapping[str, str]
    own_receivers: Mapping[str, Collection[str]]
    labels: ApplianceLabels

    def until(self, notification: Notification) -> datetime | None:
        """Return until when all routes to the receiver of a notification are muted, or None."""
        payload, receiver_id = notification.payload, notification.receiver_id or ""
        name = self.receivers.get(receiver_id)
        if name is None or receiver_id in self.own_receivers.get(payload["rule_id"], ()):
            return None
        labels = labels_of_payload(payload, self.labels)
        # An alert whose severity has changed may have left the route by which it was sent.
        routes = [route for route in self.policy.matching(labels) if name in _names(route)] or [
            route for route in self.policy.walk() if name in _names(route)
        ]
        ends = [self.ends[route.path] for route in routes if route.path in self.ends]
        return min(ends) if routes and len(ends) == len(routes) else None


Mutes = Mapping[str, TenantMutes]
"""By ID of the tenant; those without muted routes are left out."""


def current_mutes(session: Session, tenant_ids: Collection[str], *, now: datetime) -> Mutes:
    """Return the routes of tenants that are muted now."""
    mutes = {}
    for tenant_id in tenant_ids:
        row = session.get(NotificationPolicy, tenant_id)
        if row is not None and row.time_intervals:
            policy, ends = loaded(row.root), muted_routes(row, now=now)
            if ends:
                mutes[tenant_id] = _mutes_of(session, tenant_id, policy, ends)
    return mutes


def muted_routes(row: NotificationPolicy, *, now: datetime) -> dict[str, datetime]:
    """Return until when routes of a policy are muted now, by path."""
    intervals, _ = parse_time_intervals(row.time_intervals)
    ends = {}
    for route in loaded(row.root).walk():
        if is_muted(route, intervals, at=now):
            ends[route.path] = _end_of_mute(route, intervals, now=now)
    return ends


def is_muted(route: Route, intervals: Mapping[str, TimeInterval], *, at: datetime) -> bool:
    """Return whether a route is in one of its mute times, or in none of its active times."""
    # One of a time zone that no longer exists has no entries, and holds nothing.
    active = [intervals[name] for name in route.active_time_intervals if intervals[name]]
    return any(contains(intervals[name], at) for name in route.mute_time_intervals) or (
        bool(active) and not any(contains(interval, at) for interval in active)
    )


def _end_of_mute(route: Route, intervals: Mapping[str, TimeInterval], *, now: datetime) -> datetime:
    """Return the first minute in which a route is not muted, or a day later."""
    at = now.replace(second=0, microsecond=0) + MINUTE
    while at < now + MAX_AHEAD and is_muted(route, intervals, at=at):
        at += MINUTE
    return at


def _mutes_of(
    session: Session, tenant_id: str, policy: Route, ends: Mapping[str, datetime]
) -> TenantMutes:
    receivers = select(Receiver.id, Receiver.name).where(Receiver.tenant_id == tenant_id)
    rules = select(Rule.id, Rule.receiver_ids).where(Rule.tenant_id == tenant_id)
    return TenantMutes(
        policy=policy,
        ends=ends,
        receivers=dict(session.execute(receivers).all()),
        own_receivers=dict(session.execute(rules).all()),
        labels=appliance_labels(session, {tenant_id: policy.used_labels()}),
    )


def _names(route: Route) -> tuple[str, ...]:
    return (*route.receivers, *route.escalate_to)


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
