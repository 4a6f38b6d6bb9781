"""Small pictures of how a service scaled: its instances and its load in the last hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from core.clock import NS_PER_SECOND, to_ns
from core.errors import UnavailableError
from jobqueue.models import Job
from jobqueue.services.autoscaling.evaluation import MEASUREMENT
from jobqueue.services.scaling import service_id
from portal.context import now, portal
from timeseries.store import Aggregate, RangeQuery, Series

RECENT = timedelta(hours=6)
WIDTH, HEIGHT = 240, 40
_STEP_SECONDS = 120
_MARGIN = 2
_TITLES = {"awake_instances": "Instances", "requests_per_second": "Requests/s"}


@dataclass(frozen=True, slots=True)
class LoadLine:
    """A line of a field: positions in a picture of `width` by `height`, and figures as text."""

    title: str
    points: Sequence[tuple[float, float]]
    highest: str
    label: str
    width: int = WIDTH
    height: int = HEIGHT


def drawn_load(job: Job) -> list[LoadLine]:
    """Return the instances and requests of a service in the last hours.

    There are none without samples, while the store is unavailable, and while the tenant runs too
    many other queries.
    """
    end_ns, step_ns = to_ns(now()), _STEP_SECONDS * NS_PER_SECOND
    start_ns = (end_ns - round(RECENT.total_seconds()) * NS_PER_SECOND) // step_ns * step_ns
    query = RangeQuery(
        measurement=MEASUREMENT,
        fields=tuple(_TITLES),
        aggregate=Aggregate.MAX,
        start_ns=start_ns,
        end_ns=end_ns,
        step_ns=step_ns,
        tenants=(job.tenant_id,),
        filters={"job": (service_id(job),)},
    )
    with portal().queries.running(job.tenant_id) as is_admitted:
        if not is_admitted:
            return []
        try:
            series_list = portal().store.query_range(query)
        except UnavailableError:
            return []
    by_field = {series.field: series for series in series_list if len(series.values) > 1}
    # A young service fills the picture, too.
    start_ns = min((series.times_ns[0] for series in by_field.values()), default=start_ns)
    return [
        _line(title, by_field[field], start_ns, end_ns)
        for field, title in _TITLES.items()
        if field in by_field
    ]


def _line(title: str, series: Series, start_ns: int, end_ns: int) -> LoadLine:
    highest = max(1.0, *series.values)
    points = [
        (
            round(_MARGIN + (WIDTH - 2 * _MARGIN) * (time_ns - start_ns) / (end_ns - start_ns), 1),
            round(_MARGIN + (HEIGHT - 2 * _MARGIN) * (1 - value / highest), 1),
        )
        for time_ns, value in zip(series.times_ns, series.values, strict=True)
    ]
    low, high = min(series.values), max(series.values)
    hours = RECENT // timedelta(hours=1)
    label = f"{title} in the last {hours} hours: {low:.3g} to {high:.3g}"
    return LoadLine(title, points, f"{high:.3g}", label)
