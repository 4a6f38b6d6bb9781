"""The mean of a metric is that of its samples, wherever it stands: to the digit, on every store.

Sample intervals change within the ranges, so that a mean of the means of steps is another one.
Samples are whole numbers, whose sums no store rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from alerting.evaluation.expression import read_groups
from alerting.rule_request import RuleRequest
from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.db import SessionFactory
from dash_app.bars import RankedBar, bar_figure
from dash_app.custom.panels import ChartKind, Panel
from dash_app.figures import time_figure
from dash_app.queries.custom import PanelQuery
from dash_app.queries.telemetry import Telemetry
from dash_app.reports.builders import build
from dash_app.reports.report import ReportBy, ReportKind, Request
from dash_app.reports.source import Source
from dash_app.timerange import Span
from jobqueue.usage.measuring import Period
from tenants.models import Appliance
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.fixtures.memory_stores import memory_store
from timeseries.points import Point
from timeseries.sample_query import query_groups
from timeseries.store import DAY_NS, Aggregate, RangeQuery, Resolution, Store, write

FIELD = "received_bytes_per_second"
# The report on network speed is the one on samples' means.
MEASUREMENT, TAGS = "network", {"interface": "eth0"}
HOURS = 4
START_NS = to_ns(NOON) - HOURS * 3600 * NS_PER_SECOND
SECONDS = HOURS * 3600

Samples = Mapping[int, int]
"""The value at each second after `START_NS`."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of an aggregate of each appliance over a range; a report always has the mean."""

    store: Store
    sessions: SessionFactory
    cast: Cast
    aggregate: Aggregate = Aggregate.AVG

    def read(self, start_s: int, end_s: int, *, step_s: int) -> Iterator[Mapping[str, str]]:
        """Yield the means as texts by appliance, reader by reader."""
        start_ns, end_ns = (START_NS + second * NS_PER_SECOND for second in (start_s, end_s))
        step_ns = step_s * NS_PER_SECOND
        # The first step of a chart may begin before the range.
        lead_ns = start_ns % step_ns
        span = Span(start_ns - lead_ns, end_ns, step_ns, lead_ns)
        for reader in (self._legend, self._bar, self._api, self._rule, self._report):
            yield {ident: exact(value) for ident, value in reader(span).items()}

    def shown(self, span: Span) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the texts of a legend and of bars."""
        query = self._panel(span, ChartKind.LINE)
        ranked = query.ranked()
        legend = time_figure(query.chart(ranked), span, revision="")["layout"]["meta"]["legend"]
        bars = [RankedBar(query.label(key), row[FIELD]) for key, row in ranked.rows.items()]
        (drawn,) = bar_figure(bars, query.scale(), revision="")["data"]
        return (
            {line["name"]: line["stats"][1] for line in legend},
            dict(zip(drawn["y"], drawn["text"], strict=True)),
        )

    def _legend(self, span: Span) -> Mapping[str, float]:
        result = self._telemetry(span).charted(
            MEASUREMENT, (FIELD,), group_by=("appliance",), aggregate=self.aggregate
        )
        lines = [
            result.line(series, name=series.tags["appliance"], color=0) for series in result.series
        ]
        return {line.name: line.summary.whole for line in lines if line.summary}

    def _bar(self, span: Span) -> Mapping[str, float]:
        return {
            key[0]: row[FIELD]
            for key, row in self._panel(span, ChartKind.BAR).ranked().rows.items()
        }

    def _panel(self, span: Span, kind: ChartKind) -> PanelQuery:
        panel = Panel(
            title="",
            chart=kind,
            measurement=MEASUREMENT,
            fields=(FIELD,),
            aggregate=self.aggregate,
            group_by=("appliance",),
        )
        return PanelQuery(self._telemetry(span), span, panel, {})

    def _api(self, span: Span) -> Mapping[str, float | None]:
        query = RangeQuery(
            measurement=MEASUREMENT,
            fields=(FIELD,),
            start_ns=span.range_start_ns,
            end_ns=span.end_ns,
            aggregate=self.aggregate,
            tenants=(self.cast.acme.id,),
            group_by=("appliance",),
        )
        groups, _ = query_groups(self.store, query, page=1, page_size=100)
        return {group.tags["appliance"]: group.values[FIELD][0] for group in groups}

    def _rule(self, span: Span) -> Mapping[str, float]:
        window_seconds = (span.end_ns - span.range_start_ns) / NS_PER_SECOND
        rule = RuleRequest(
            name="",
            measurement=MEASUREMENT,
            field=FIELD,
            aggregate=self.aggregate,
            window_seconds=window_seconds,
        )
        groups = read_groups(
            self.store, rule, tenants=(self.cast.acme.id,), now=from_ns(span.end_ns)
        )
        return {group.tags["appliance"]: group.value for group in groups}

    def _report(self, span: Span) -> Mapping[str, float]:
        period = Period(from_ns(span.range_start_ns), from_ns(span.end_ns))
        request = Request(kind=ReportKind.NETWORK, by=ReportBy.APPLIANCE, period=period)
        scope = scope_of(self.cast.alice)
        with self.sessions() as session:
            source = Source(
                session=session, store=self.store, scope=scope, request=request, now=NOON
            )
            idents = {appliance.name: ident for ident, appliance in source.appliances.items()}
            return {idents[str(row[0])]: float(row[1] or 0) for row in build(source).rows}

    def _telemetry(self, span: Span) -> Telemetry:
        return Telemetry(self.store, scope_of(self.cast.alice), span)


def exact(value: float | None) -> str:
    """Return a value with the eight decimals that reports have."""
    return repr(None if value is None else round(value, 8))


def mean_of(samples: Samples, start_s: int, end_s: int) -> float | None:
    """Return the mean of the samples in a range."""
    values = [value for second, value in samples.items() if start_s <= second < end_s]
    return sum(values) / len(values) if values else None


def write_samples(store: Store, appliance: Appliance, samples: Samples) -> None:
    points = [
        Point(MEASUREMENT, TAGS, {FIELD: float(value)}, START_NS + second * NS_PER_SECOND)
        for second, value in samples.items()
    ]
    identity = {"tenant": appliance.tenant_id, "appliance": appliance.id}
    assert write(store, points, identity=identity) == []


@st.composite
def series(draw: st.DrawFn) -> Samples:
    """Stretches of samples at different intervals, with gaps between them."""
    samples: dict[int, int] = {}
    second = 0
    for _ in range(draw(st.integers(1, 5))):
        second += draw(st.integers(0, 3000))
        interval = draw(st.sampled_from([2, 5, 10, 15, 60, 120, 700]))
        level, slope = draw(st.integers(0, 10_000)), draw(st.integers(-5, 5))
        for number in range(draw(st.integers(1, 60))):
            if second < SECONDS:
                samples[second] = max(0, level + slope * number)
            second += interval
    return samples


@pytest.fixture
def appliances(sessions: SessionFactory, cast: Cast) -> Sequence[Appliance]:
    with sessions.begin() as session:
        return [make_appliance(session, cast.acme, f"gpu-{number}") for number in range(3)]


def expire(store: Store) -> None:
    """Roll the samples up, then delete them."""
    store.maintain(now_ns=START_NS + 3 * DAY_NS)
    store.delete_before(START_NS + 2 * DAY_NS, resolution=Resolution.RAW)


Age = Callable[[Store], object]
AGES: Mapping[str, tuple[int, Age]] = {
    "hot": (1, lambda _store: None),
    "sealed": (1, lambda store: store.maintain(now_ns=START_NS + 3 * DAY_NS)),
    # Hours are left, and windows of five minutes where these take little space.
    "expired": (3600, expire),
}


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.nightly)])
def test_every_reader_has_the_mean_of_the_samples(
    *,
    sessions: SessionFactory,
    cast: Cast,
    appliances: Sequence[Appliance],
    age: str,
    examples: int,
) -> None:
    width_s, grow_old = AGES[age]

    @hypothesis_settings(max_examples=examples)
    @given(
        every=st.lists(series(), min_size=1, max_size=3),
        ends=st.lists(st.integers(0, SECONDS), min_size=2, max_size=2, unique=True),
        step_s=st.sampled_from([10, 60, 300, 900]),
    )
    def check(every: Sequence[Samples], ends: Sequence[int], step_s: int) -> None:
        start_s, end_s = sorted(end - end % width_s for end in ends)
        end_s = max(end_s, start_s + width_s)
        with closing(memory_store()) as store:
            for appliance, samples in zip(appliances, every, strict=False):
                write_samples(store, appliance, samples)
            grow_old(store)
            expected = {
                appliance.id: exact(mean)
                for appliance, samples in zip(appliances, every, strict=False)
                if (mean := mean_of(samples, start_s, end_s)) is not None
            }
            for means in Readers(store, sessions, cast).read(start_s, end_s, step_s=step_s):
                assert means == expected

    check()


def uneven(level: int) -> Samples:
    """A sample each 15 s for half an hour, then one each two minutes, with a gap between."""
    fast = dict.fromkeys(range(0, 1800, 15), level)
    return fast | dict.fromkeys(range(2400, 3600, 120), level + 100)


def test_a_mean_over_a_changed_interval_is_that_of_the_samples_on_every_store(
    *, store: Store, sessions: SessionFactory, cast: Cast, appliances: Sequence[Appliance]
) -> None:
    levels = {appliance: 1000 * number for number, appliance in enumerate(appliances)}
    for appliance, level in levels.items():
        write_samples(store, appliance, uneven(level))
    # 120 samples, and ten that are 100 more.
    expected = {
        appliance.id: exact((130 * level + 1000) / 130) for appliance, level in levels.items()
    }
    store.maintain(now_ns=START_NS + 3 * DAY_NS)
    for means in Readers(store, sessions, cast).read(0, 3600, step_s=300):
        assert means == expected


def test_a_legend_and_a_bar_show_the_same_text(
    store: Store, sessions: SessionFactory, cast: Cast, appliances: Sequence[Appliance]
) -> None:
    for number, appliance in enumerate(appliances):
        write_samples(store, appliance, uneven(3000 * number))
    span = Span(START_NS, START_NS + 3600 * NS_PER_SECOND, 300 * NS_PER_SECOND)
    legend, bars = Readers(store, sessions, cast).shown(span)
    assert legend == bars
    # A mean of the steps' means would be 40 B/s.
    assert legend[appliances[0].id] == "7.7 B/s"


def test_a_legend_the_api_and_a_rule_have_the_same_aggregate_of_a_range(
    store: Store, sessions: SessionFactory, cast: Cast, appliances: Sequence[Appliance]
) -> None:
    for number, appliance in enumerate(appliances):
        write_samples(store, appliance, uneven(3000 * number))
    for aggregate in Aggregate:
        readers = replace(Readers(store, sessions, cast), aggregate=aggregate)
        legend, bar, api, rule, _ = readers.read(40, 3500, step_s=300)
        assert legend.keys() == {appliance.id for appliance in appliances}, aggregate
        assert legend == bar == api == rule, aggregate
