"""`/billing`: what GPU time costs, by project, user, GPU model and contract, and by month."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from core.csv_cells import csv_text, guarded
from core.errors import InvalidInputError
from core.money import ZERO, amount_text
from jobqueue.usage.measuring import Period
from marketplace.budgets.spending import Spending, month_of
from marketplace.costs.groups import CostBy, cost_groups, cost_sums
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from portal.presenters.costs import money
from portal.query_string import chosen
from tenants.permissions import Permission

pages = Blueprint("costs", __name__, url_prefix="/billing")
pages.add_app_template_filter(money, "in_cents")

SHOWN = 10
MONTHS = 6
FIRST_YEAR, LAST_YEAR = 2000, 9000
TITLES = {
    CostBy.PROJECT: "Project",
    CostBy.USER: "User",
    CostBy.GPU_MODEL: "GPU model",
    CostBy.CONTRACT: "Contract",
    CostBy.JOB: "Job",
    CostBy.DAY: "Day (UTC)",
    CostBy.TENANT: "Tenant",
}
_PANELS = (CostBy.PROJECT, CostBy.USER, CostBy.GPU_MODEL, CostBy.CONTRACT)


@pages.get("")
def index() -> ResponseReturnValue:
    """Show the costs of a month."""
    scope, month, at = current_scope(), _month(), now()
    scope.require(Permission.VIEW_BILLING)
    is_current, last_months = month.since <= at < month.until, _last_months(month)
    with database() as session:
        since = Period(last_months[0].since, month.until)
        sums = cost_sums(session, scope, since, by=CostBy.MONTH, now=at)
        groupings = _PANELS if scope.tenant_id else (CostBy.TENANT, *_PANELS[2:])
        panels = {by: cost_groups(session, scope, month, by=by, now=at) for by in groupings}
        forecast = (
            Spending(session, scope.tenant_id, now=at).of().forecast
            if scope.tenant_id and is_current
            else None
        )
    amounts = {each.since: sums.get(f"{each.since:%Y-%m}", ZERO) for each in last_months}
    return render_template(
        "billing/costs.html",
        month=month,
        is_current=is_current,
        amounts=amounts,
        highest=max(amounts.values()),
        total=amounts[month.since],
        before=amounts[last_months[-2].since],
        forecast=forecast,
        panels=panels,
        titles=TITLES,
        shown=SHOWN,
        rest={
            by: sum((row.amount for row in groups[SHOWN:]), ZERO) for by, groups in panels.items()
        },
    )


@pages.get("/export")
def export() -> ResponseReturnValue:
    """Download the costs of a month as CSV."""
    scope, month, by = current_scope(), _month(), chosen(CostBy, "by") or CostBy.PROJECT
    with database() as session:
        groups = cost_groups(session, scope, month, by=by, now=now())
    currency = portal().settings.billing_currency

    def lines() -> Iterator[str]:
        yield csv_text([[by.value, "name", "amount", "currency"]])
        yield csv_text(
            [guarded(row.key), guarded(row.name), amount_text(row.amount), currency]
            for row in groups
        )

    return stream_file(
        lines(),
        media_type="text/csv; charset=utf-8",
        file_name=f"costs_{by.value}_{month.since:%Y%m}.csv",
    )


def _month() -> Period:
    """Return the month of the address, such as `2026-03`; this one without it."""
    text = request.args.get("month", "")
    try:
        at = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC) if text else now()
    except ValueError:
        at = None
    if at is None or not FIRST_YEAR <= at.year <= LAST_YEAR:
        message = f"{text[:50]!r} is no month. Write it as 2026-03."
        raise InvalidInputError(message, errors={"month": [message]})
    return month_of(at)


def _last_months(month: Period) -> list[Period]:
    """Return a month with those before it, the oldest first."""
    months = [month]
    while len(months) < MONTHS:
        months.append(month_of(months[-1].since - timedelta(days=1)))
    return months[::-1]
