"""The reputation of a provider as pages show it: filters of its evidence, and its history drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flask import request
from sqlalchemy.orm import Session

from core.paging import Page
from marketplace.cases import Case, Dimension
from marketplace.reputation.models import ReputationDay
from marketplace.reputation.service import Report, history_of, report_of
from portal.context import current_scope, database, now, portal
from portal.query_string import asked_page, chosen, ignore_value

CHART_DAYS = 90
WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 34, 712, 8, 168
_DATES = 5
_LEVELS = (0, 25, 50, 75, 100)
DIMENSION_TEXTS = {
    Dimension.AVAILABILITY: "How long appliances on offer are reachable.",
    Dimension.JOBS: "How often jobs of customers end through a fault of an appliance.",
    Dimension.CHECKS: "Whether appliances are what they claim to be.",
    Dimension.RESPONSE: "How soon requests of customers are answered.",
    Dimension.SATISFACTION: "How customers that ran jobs there rate it.",
}


@dataclass(frozen=True, slots=True)
class HistoryChart:
    """Positions in a picture of `WIDTH` by `HEIGHT`.

    Attributes:
        mean: the line of the expected figure.
        band: the outline of its interval.
        levels: a height and its label, from 0 to 100.
        dates: a position and its label.
    """

    mean: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]]
    levels: Sequence[tuple[float, str]]
    dates: Sequence[tuple[float, str]]


def half_life() -> timedelta:
    """Return the half-life of evidence here."""
    return timedelta(days=portal().settings.reputation_half_life_days)


def read_report(session: Session, tenant_id: str = "") -> Report:
    """Return the reputation of the current tenant, or of any for the operator."""
    return report_of(session, current_scope(), tenant_id, now=now(), half_life=half_life())


def reputation_page(tenant_id: str = "") -> dict[str, Any]:
    """Return what the page about a provider's reputation shows."""
    with database() as session:
        report = read_report(session, tenant_id)
        rows = history_of(session, current_scope(), tenant_id, days=CHART_DAYS, now=now())
    return {
        "report": report,
        "evidence": _evidence(report),
        "kinds": report.kinds(),
        "rows": rows,
        "chart": history_chart(rows),
        "texts": DIMENSION_TEXTS,
        "half_life_days": half_life().days,
        "dimensions": list(Dimension),
    }


def history_chart(rows: Sequence[ReputationDay]) -> HistoryChart | None:
    """Return the picture of a reputation over time; None for less than two days."""
    if len(rows) < 2:  # noqa: PLR2004 - a line
        return None
    first_at = rows[0].day_at
    span = rows[-1].day_at - first_at

    def x_of(row: ReputationDay) -> float:
        return round(LEFT + (RIGHT - LEFT) * ((row.day_at - first_at) / span), 1)

    def y_of(share: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * share, 1)

    xs = [x_of(row) for row in rows]
    upper = [(x, y_of(row.high)) for x, row in zip(xs, rows, strict=True)]
    lower = [(x, y_of(row.low)) for x, row in zip(xs, rows, strict=True)]
    steps = min(_DATES, len(rows)) - 1
    marked = [rows[round(step * (len(rows) - 1) / steps)] for step in range(steps + 1)]
    return HistoryChart(
        mean=[(x, y_of(row.mean)) for x, row in zip(xs, rows, strict=True)],
        band=[*upper, *reversed(lower)],
        levels=[(y_of(level / 100), str(level)) for level in _LEVELS],
        dates=[(x_of(row), f"{row.day_at:%b} {row.day_at.day}") for row in marked],
    )


def _evidence(report: Report) -> Page[Case]:
    """Return the page of the evidence that the address asks for."""
    dimension = chosen(Dimension, "dimension")
    kind = request.args.get("kind", "")
    kinds = {name for names in report.kinds().values() for name in names}
    if kind and kind not in kinds:
        ignore_value("kind", kind, "Choose one from the list.")
        kind = ""
    return report.evidence(dimension=dimension, kind=kind, **asked_page())
