"""`/gpu-usage`: GPU time by user, job, GPU model and more, from the usage ledger."""

from datetime import timedelta

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from core.money import ZERO
from jobqueue.usage.ledger import recorded_until
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import (
    DEFAULT_SORT,
    USAGE_SORTS,
    UsageBy,
    allocated_now,
    usage_sum,
    usage_totals,
)
from portal.context import current_scope, database
from portal.presenters.gpu_usage import checked_period, costs_of, live_part, usage_file
from portal.query_string import asked_page, chosen, day
from portal.time_zone import local_time

pages = Blueprint("gpu_usage", __name__)

TITLES = {
    UsageBy.USER: "User",
    UsageBy.PROJECT: "Project",
    UsageBy.BUDGET_LABEL: "Budget label",
    UsageBy.JOB: "Job",
    UsageBy.GPU_MODEL: "GPU model",
    UsageBy.APPLIANCE: "Appliance",
    UsageBy.DAY: "Day (UTC)",
    UsageBy.TENANT: "Tenant",
}


@pages.get("/gpu-usage")
def index() -> ResponseReturnValue:
    """Show allocated, used and idle GPU time of a period."""
    scope, period, by = current_scope(), _period(), _by()
    sort = request.args.get("sort", "")
    sort = sort if sort.removeprefix("-") in USAGE_SORTS else DEFAULT_SORT
    with database() as session:
        live = live_part(session, period)
        page = usage_totals(session, scope, period, by=by, live=live, sort=sort, **asked_page())
        total = usage_sum(session, scope, period, live=live)
        costs = costs_of(session, period, by)
        gpus, attempts = allocated_now(session, scope)
        recorded_at = recorded_until(session)
    titles = {
        grouping: title for grouping, title in TITLES.items() if grouping is not UsageBy.TENANT
    }
    return render_template(
        "jobs/gpu_usage.html",
        page=page,
        total=total,
        costs=costs,
        cost=None if costs is None else sum(costs.values(), ZERO),
        gpus=gpus,
        attempts=attempts,
        recorded_at=recorded_at,
        live=live,
        period=period,
        last_day=local_time(period.until - timedelta(microseconds=1)).date(),
        by=by,
        titles=titles if scope.tenant_id else TITLES,
        sort=sort,
    )


@pages.get("/gpu-usage/export")
def export() -> ResponseReturnValue:
    """Download the period as CSV."""
    return usage_file(_period(), _by())


def _by() -> UsageBy:
    return chosen(UsageBy, "by") or (UsageBy.USER if current_scope().tenant_id else UsageBy.TENANT)


def _period() -> Period:
    """Return the period of the address: whole days in UTC, the last one included."""
    return checked_period(day("since"), day("until", days=1))
