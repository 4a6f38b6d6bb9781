"""The usage ledger as a file, and its periods."""

from datetime import datetime, timedelta

from flask import Response

from core.errors import InvalidInputError
from jobqueue.usage.totals import Period, UsageBy, usage_csv
from portal.context import current_scope, now, portal
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
        since = since or until - timedelta(days=DEFAULT_DAYS)
    except OverflowError:
        since = until
    if since > until:
        message = f"since ({since:%Y-%m-%d}) is after until ({until:%Y-%m-%d}). Swap them."
        raise InvalidInputError(message, errors={"since": [message]})
    return Period(since, until)


def usage_file(period: Period, by: UsageBy) -> Response:
    """Stream the ledger's sums as CSV."""
    scope = current_scope()
    scope.require(Permission.VIEW)
    return stream_file(
        usage_csv(portal().sessions, scope, period, by=by),
        media_type="text/csv; charset=utf-8",
        file_name=f"gpu-usage_{by.value}_{period.since:%Y%m%d}_{period.until:%Y%m%d}.csv",
    )
