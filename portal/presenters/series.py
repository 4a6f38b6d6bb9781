"""The picture of a rule's series, as a part of a page."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from flask import render_template, request

from alerting.charts.plots import plot_series
from alerting.evaluation.rule_series import read_series
from alerting.language.text import metric_text
from alerting.rule_request import RuleRequest
from core.clock import to_ns
from core.errors import UnavailableError
from core.quantities import format_duration
from portal.context import current_scope, portal
from portal.time_zone import current_zone

HEIGHT = 220
_LEAST_WIDTH, _MOST_WIDTH = 280, 1600
RETRY_SECONDS = 5


def render_series(
    rule: RuleRequest,
    *,
    tenants: tuple[str, ...] | None,
    names: Mapping[str, str],
    end: datetime,
    start: datetime | None = None,
    firing: Sequence[tuple[datetime, datetime]] = (),
) -> str:
    """Return the picture, or why there is none; `?width=` is that of the page's part.

    Args:
        rule: a valid rule, but for its name and thresholds.
        tenants: those whose series it has, all in scope.
        names: those of appliances by ID.
        end: of the time range.
        start: of the time range; without one, it is what suits the window, up to now.
        firing: the periods to mark.
    """
    width = min(max(request.args.get("width", 720, type=int), _LEAST_WIDTH), _MOST_WIDTH)
    with portal().queries.running(current_scope().tenant_id or "") as is_admitted:
        if not is_admitted:
            return _problem("Your tenant is running other queries.")
        try:
            series = read_series(
                portal().store, rule, tenants=tenants, start=start, end=end, names=names
            )
        except UnavailableError as error:
            return _problem(error.message)
    span = format_duration((to_ns(end) - series.start_ns) // 10**9)
    if not series.lines:
        filters = ", ".join(
            [
                *(
                    f"{tag}={'|'.join(names.get(value, value) for value in values)}"
                    for tag, values in rule.filters.items()
                ),
                *rule.matchers,
            ]
        )
        of = f" with {filters}" if filters else ""
        when = "the last" if start is None else "these"
        text = f"No series match: {metric_text(rule)}{of} has no samples in {when} {span}."
        return render_template("rules/chart.html", warning=text)
    plot = plot_series(
        series,
        size=(width, HEIGHT),
        names=names,
        zone=current_zone(),
        bands=[(to_ns(since), to_ns(until)) for since, until in firing],
    )
    return render_template(
        "rules/chart.html", plot=plot, series=series, span=span, is_latest=start is None
    )


def _problem(text: str) -> str:
    return render_template("rules/chart.html", problem=text, retry_seconds=RETRY_SECONDS)
