"""`/advice`: what a fleet has idle and is short of, and what to do; for operators by tenant."""

from flask import render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.paging import Page
from jobqueue.advice.rules import Advice, AdviceAction
from jobqueue.advice.service import (
    DISMISSED_FOR,
    FleetReport,
    dismiss_advice,
    list_totals,
    request_advice,
    restore_advice,
)
from jobqueue.usage.totals import UsageBy
from portal.context import current_scope, database, now
from portal.pages.common import Pages, changing
from portal.presenters.fleet_advice import Measure, fleet_report, heat_map, shares
from portal.query_string import PAGE_SIZE, asked_page, chosen, ignore_value, page_number, sort_order
from tenants.permissions import Permission

pages = Pages("fleet_advice", __name__, url_prefix="/advice")

MEASURES = {
    Measure.FREE: "Free GPUs",
    Measure.ALLOCATED: "Allocated GPUs",
    Measure.IDLE: "Allocated but idle GPUs",
    Measure.SHORT: "GPUs that were short",
    Measure.WAITING: "GPUs that jobs waited for",
    Measure.RENTED: "Rented GPUs",
    Measure.CAPACITY: "GPUs that could run jobs",
}


@pages.get("")
def index() -> ResponseReturnValue:
    """Show the advice with its figures."""
    scope = current_scope()
    if scope.tenant_id is None:
        return _totals()
    scope.require(Permission.MANAGE_APPLIANCES)
    with database() as session:
        report = fleet_report(session)
    figures = report.figures
    if figures is None or not figures.models:
        return render_template("advice/index.html", report=report, kept_for=DISMISSED_FOR)
    names = {row.gpu_model: row for row in figures.models}
    model = request.args.get("gpu_model", "")
    if model not in names:
        ignore_value("gpu_model", model, "Use one of the list.")
        model = next(iter(names))
    measure = chosen(Measure, "measure") or Measure.ALLOCATED
    number, size = page_number(), PAGE_SIZE
    appliances = figures.appliances[(number - 1) * size : number * size]
    return render_template(
        "advice/index.html",
        report=report,
        kept_for=DISMISSED_FOR,
        figures=figures,
        shares=shares(figures),
        page=Page(appliances, len(figures.appliances), number, size),
        gpu_model=model,
        measure=measure,
        measures=MEASURES,
        week=heat_map(figures, names[model], measure),
        links={advice.key: _link(report, advice) for advice in report.advice},
    )


pages.acts("/compute", request_advice, "The advice is computed now. That takes a few minutes.")


@pages.post("/dismiss")
@changing(back=lambda: url_for("fleet_advice.index"))
def dismiss(session: Session) -> str:
    """Don't show advice for a while."""
    dismiss_advice(session, current_scope(), request.form.get("advice_key", ""), now=now())
    return f"Advice dismissed for {DISMISSED_FOR.days} days"


pages.acts("/dismissals/<dismissal_id>/restore", restore_advice, "Advice is shown again")


def _totals() -> ResponseReturnValue:
    with database() as session:
        page = list_totals(session, current_scope(), sort=sort_order(), **asked_page())
    return render_template("advice/tenants.html", page=page, sort=sort_order())


def _link(report: FleetReport, advice: Advice) -> tuple[str, str]:
    """Return the label and the address of where advice is followed."""
    figures = report.figures
    since = figures.since.date().isoformat() if figures else None
    by = UsageBy.JOB.value
    by_job = url_for("gpu_usage.index", by=by, sort="-idle_gpu_seconds", since=since)
    links = {
        AdviceAction.ADD: ("Add appliance", url_for("enrollment.add")),
        AdviceAction.RENT: ("Rent GPUs", url_for("rent.index", gpu_model=advice.gpu_model)),
        AdviceAction.OFFER: ("Offer GPUs", url_for("provider.add")),
        AdviceAction.REVIEW: ("Simulate rules", url_for("simulations.index")),
        AdviceAction.SCHEDULE: ("Schedule jobs", url_for("job_schedules.index")),
        AdviceAction.LIMIT: ("See idle jobs", by_job),
        AdviceAction.DRAIN: (
            "See appliances",
            url_for("appliances.index", gpu_model=advice.gpu_model),
        ),
    }
    return links[advice.action]
