"""The data of custom panels: the series with the greatest values, within bounds.

Every panel ranks its series by one value for each over the whole range first, so that a tag with
thousands of values costs one aggregate, not thousands of lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from core.quantities import unit_of
from dash_app.charts import Chart, Line, Threshold
from dash_app.custom.panels import MAX_SERIES, ChartKind, Panel
from dash_app.figures import natural_order
from dash_app.queries.fleet_charts import heat_span
from dash_app.queries.telemetry import Extremes, Result, Telemetry
from dash_app.timerange import Span
from timeseries.store import APPLIANCE_TAG, Aggregate, Series

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The groups of a panel with their values over the range by field, greatest first.

    `total` counts those left out, too.
    """

    rows: Mapping[Key, Mapping[str, float]]
    total: int

    @property
    def note(self) -> str:
        """Return a note on the series that are left out; empty for none."""
        shown = len(self.rows)
        return "" if shown == self.total else f"The greatest {shown} of {self.total} series"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """Queries the data of one panel.

    Attributes:
        telemetry: within the scope; panels share it, with its first error.
        span: the range.
        panel: the panel.
        appliances: names by id, for labels and filters.
    """

    telemetry: Telemetry
    span: Span
    panel: Panel
    appliances: Mapping[str, str]

    def ranked(self) -> Ranked:
        """Return the panel's groups with a value for each field over the whole range."""
        panel = self.panel
        result = self._telemetry(panel.filters).over_span(
            panel.measurement,
            tuple(panel.fields),
            group_by=tuple(panel.group_by),
            aggregate=panel.aggregate,
        )
        rows: dict[Key, dict[str, float]] = {}
        for series in result.series:
            if series.values:
                rows.setdefault(self._key(series), {})[series.field] = series.values[-1]
        first = panel.fields[0]
        order = sorted(rows, key=lambda key: (-rows[key].get(first, float("-inf")), key))
        max_rows = MAX_SERIES[panel.chart] // len(panel.fields)
        return Ranked({key: rows[key] for key in order[: max(1, max_rows)]}, len(rows))

    def chart(self, ranked: Ranked, span: Span | None = None) -> Chart:
        """Return the panel's lines over its range, or over another one."""
        panel = self.panel
        telemetry = self._telemetry(self._filters(ranked), span)
        fields, group_by = tuple(panel.fields), tuple(panel.group_by)
        is_map = panel.chart is ChartKind.HEATMAP
        read = telemetry.over_time if is_map else telemetry.charted
        result = read(panel.measurement, fields, group_by=group_by, aggregate=panel.aggregate)
        extremes = Extremes({})
        if panel.aggregate is Aggregate.AVG and not is_map:
            is_band = panel.chart is ChartKind.BAND
            extremes = telemetry.extremes(
                panel.measurement, fields, group_by=group_by, is_of_many=is_band
            )
        return replace(
            self.scale(),
            lines=tuple(self._lines(ranked, result, extremes)),
            aggregate=panel.aggregate,
            problem=result.problem,
        )

    def _lines(self, ranked: Ranked, result: Result, extremes: Extremes) -> list[Line]:
        """Return the series of the ranked groups as lines, in the order of their names."""
        fields = tuple(self.panel.fields)
        ordered = sorted(ranked.rows, key=lambda key: natural_order(self.label(key)))
        places = {key: at for at, key in enumerate(ordered)}
        lines = []
        for series in result.series:
            key = self._key(series)
            if key in places:
                color = places[key] * len(fields) + fields.index(series.field)
                line = Line(
                    name=self.label(key, series.field),
                    times_ns=series.times_ns,
                    values=series.values,
                    color=color,
                    summary=result.summary(series),
                )
                lines.append(extremes.behind(line, series))
        return sorted(lines, key=lambda line: line.color)

    def scale(self) -> Chart:
        """Return a chart without lines, with the panel's unit, limits and thresholds."""
        panel = self.panel
        unit_field = panel.unit_field(panel.fields[0])
        return Chart(
            field=unit_field,
            thresholds=tuple(
                Threshold(threshold.value, threshold.text(unit_field), threshold.severity)
                for threshold in panel.thresholds
            ),
            limits=(panel.axis_min, panel.axis_max),
            # The author of a panel wants to see how far its values are from their thresholds.
            least_peak=max((threshold.value for threshold in panel.thresholds), default=0.0),
        )

    def heat_rows(self, ranked: Ranked) -> Chart:
        """Return the panel's lines with few enough values for a heat map."""
        return self.chart(ranked, heat_span(self.span))

    def label(self, key: Key, field: str = "") -> str:
        """Return the name of a group, and of a field where the panel has several."""
        parts = [
            self.appliances.get(text, text) if tag == APPLIANCE_TAG else _tag_text(tag, text)
            for tag, text in zip(self.panel.group_by, key, strict=True)
        ]
        if field and (len(self.panel.fields) > 1 or not parts):
            parts.append(field_text(field))
        return " · ".join(parts)

    def _key(self, series: Series) -> Key:
        return tuple(series.tags.get(tag, "") for tag in self.panel.group_by)

    def _filters(self, ranked: Ranked) -> Mapping[str, Sequence[str]]:
        """Return filters that allow the ranked groups, and few others."""
        if len(ranked.rows) == ranked.total or not ranked.rows:
            return self.panel.filters
        values = zip(self.panel.group_by, zip(*ranked.rows, strict=True), strict=True)
        return {
            **self.panel.filters,
            **{tag: sorted(set(tag_values)) for tag, tag_values in values},
        }

    def _telemetry(
        self, filters: Mapping[str, Sequence[str]], span: Span | None = None
    ) -> Telemetry:
        idents: dict[str, list[str]] = {}
        for ident, name in self.appliances.items():
            idents.setdefault(name, []).append(ident)
        self.telemetry.span = span or self.span
        self.telemetry.filters = {
            tag: tuple(
                ident
                for value in values
                for ident in (idents.get(value, [value]) if tag == APPLIANCE_TAG else [value])
            )
            for tag, values in filters.items()
        }
        return self.telemetry


def field_text(name: str) -> str:
    """Return a field's name without the unit, which its values have."""
    return name.removesuffix(unit_of(name).suffix).replace("_", " ")


def _tag_text(tag: str, text: str) -> str:
    """Return the value of a tag, with the tag where the value says nothing by itself."""
    if tag == "gpu":
        return f"GPU {text}"
    return text or f"no {tag}"
