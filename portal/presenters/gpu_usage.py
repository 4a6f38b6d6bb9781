"""The usage ledger as a file, and its periods."""

from datetime import datetime, timedelta
from decimal import Decimal

from flask import Response
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.money import amount_text
from jobqueue.usage.ledger import floor_hour
from jobqueue.usage.live import Live, live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import UsageBy, usage_csv
from marketplace.costs.groups import MAX_PERIOD, CostBy, cost_sums
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from tenants.permissions import Permission

DEFAULT_DAYS = 30


def checked_period(since: datetime | None, until: datetime | None) -> Period:
    """Return a period with its defaults.

    Raises:
        InvalidInputError: it ends before it begins.
    """
    until = until or now()
    try:
        since = since or floor_hour(until) - timedelta(days=DEFAULT_DAYS)
    except OverflowError:
        since = until
    if since > until:
        message = f"since ({since:%Y-%m-%d}) is after until ({until:%Y-%m-%d}). Swap them."
        raise InvalidInputError(message, errors={"since": [message]})
    return Period(since, until)


def live_part(session: Session, period: Period) -> Live:
    """Return what of a period the ledger doesn't have, for the current user."""
    return live_use(session, portal().store, current_scope(), period, now=now())


def costs_of(session: Session, period: Period, by: UsageBy) -> dict[str, Decimal] | None:
    """Return what groups cost, by key; None if there are no costs that the current user may see."""
    scope = current_scope()
    if not scope.allows(Permission.VIEW_BILLING) or period.until - period.since > MAX_PERIOD:
        return None
    return cost_sums(session, scope, period, by=CostBy(by.value), now=now()) or None


def usage_file(period: Period, by: UsageBy) -> Response:
    """Stream the ledger's sums as CSV."""
    scope = current_scope()
    scope.require(Permission.VIEW)
    with database() as session:
        live = live_part(session, period)
        sums = costs_of(session, period, by)
    costs = None if sums is None else {key: amount_text(cost) for key, cost in sums.items()}
    return stream_file(
        usage_csv(portal().sessions, scope, period, by=by, live=live, costs=costs),
        media_type="text/csv; charset=utf-8",
        file_name=f"gpu-usage_{by.value}_{period.since:%Y%m%d}_{period.until:%Y%m%d}.csv",
    )
