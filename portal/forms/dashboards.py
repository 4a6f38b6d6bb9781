"""Forms for custom dashboards and their panels."""

import re
from typing import Any

from wtforms import BooleanField, FileField, SelectField, StringField, TextAreaField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, ValidationError

from alerting.language.text import metric_text, parse_metric
from alerting.rule_request import RuleRequest
from alerting.states import Comparison, Severity
from core.errors import InvalidInputError
from dash_app.custom.dashboards import DashboardRequest
from dash_app.custom.panels import ChartKind, Panel
from dash_app.custom.scales import PanelThreshold
from dash_app.custom.variables import resolved
from portal.forms.alerts import AGGREGATE_CHOICES
from portal.forms.form import FiltersField, Form, LinesField, NumberField, TagsField, parse_number
from timeseries.store import Aggregate

CHART_CHOICES = [
    SelectChoice(ChartKind.LINE.value, "Lines"),
    SelectChoice(ChartKind.BAND.value, "Mean and range"),
    SelectChoice(ChartKind.BAR.value, "Bars"),
    SelectChoice(ChartKind.STAT.value, "Numbers"),
    SelectChoice(ChartKind.HEATMAP.value, "Heat map"),
    SelectChoice(ChartKind.TABLE.value, "Table"),
]
PREVIEW_WINDOW_SECONDS = 60.0
_THRESHOLD = re.compile(
    r"(?P<comparison>[<>]=?|[!=]=)\s*(?P<value>\S+(?:\s+[KMGTP]i?B)?)\s+"
    r"(?P<severity>info|warning|critical)(?:\s+(?P<label>.*))?"
)
FUNCTIONS = [choice for choice in AGGREGATE_CHOICES if choice.value in set(Aggregate)]


def parse_threshold(line: str) -> PanelThreshold:
    """Return the threshold of a line such as `> 85 critical Too hot`."""
    match = _THRESHOLD.fullmatch(line.strip())
    if match is None:
        raise ValueError(
            f"{line.strip()[:100]!r} is no threshold. Write > or <, a value, info, warning or "
            "critical, and a label if you like: > 85 critical Too hot."
        )
    return PanelThreshold(
        value=parse_number(match["value"]),
        severity=Severity(match["severity"]),
        comparison=Comparison(match["comparison"]),
        label=match["label"] or "",
    )


def threshold_text(threshold: PanelThreshold) -> str:
    """Return a threshold as `parse_threshold` reads it."""
    words = (threshold.comparison, f"{threshold.value:.10g}", threshold.severity, threshold.label)
    return " ".join(words).strip()


class DashboardForm(Form):
    """The settings of a dashboard."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    description = StringField("Description", default="")
    is_shared = BooleanField("Share with all users of the tenant")

    def values(self) -> dict[str, Any]:
        """Return the fields of a request."""
        return {
            "name": self.name.data,
            "description": self.description.data,
            "is_shared": self.is_shared.data,
        }


class FileForm(Form):
    """A file of dashboards, uploaded or pasted."""

    file = FileField("File")
    text = TextAreaField("Or paste it")

    def validate_file(self, field: FileField) -> None:
        """Require a file: another client may send a text by this name."""
        if isinstance(field.data, str) and field.data:
            raise ValidationError("This is a text. Send a file, or paste the text below.")

    def validate_text(self, field: TextAreaField) -> None:
        """Require one of both."""
        if not self.file.data and not (field.data or "").strip():
            raise ValidationError("Choose a file, or paste its text.")

    def content(self) -> str:
        """Return the text of the file."""
        if not self.file.data:
            return str(self.text.data)
        return str(self.file.data.read().decode("utf-8", "replace"))


class PanelForm(Form):
    """A panel of a dashboard."""

    title = StringField("Title", [DataRequired("Enter a title.")])
    chart = SelectField("Chart", choices=CHART_CHOICES, default=ChartKind.LINE.value)
    metric = StringField("Metric", [DataRequired("Select a metric.")])
    more_fields = TagsField("More fields", default=list)
    aggregate = SelectField("Function", choices=FUNCTIONS, default=Aggregate.AVG.value)
    group_by = TagsField("Group by", default=list)
    filters = FiltersField("Filters", default=dict)
    unit = StringField("Unit", default="")
    axis_min = NumberField("Axis from")
    axis_max = NumberField("Axis to")
    thresholds = LinesField("Thresholds", parse=parse_threshold, format=threshold_text)
    is_wide = BooleanField("Whole row")

    def validate_metric(self, field: StringField) -> None:
        """Require one metric, such as `gpu.power_watts`."""
        try:
            metric = parse_metric(field.data)
        except InvalidInputError as error:
            raise ValidationError(error.message) from error
        if metric.get("operator"):
            raise ValidationError("A panel has no arithmetic. Select one metric.")

    def series(self) -> RuleRequest:
        """Return what selects the series of the panel's first field, for a preview."""
        panel = resolved(self.panel(), {})
        return RuleRequest(
            name="",
            measurement=panel.measurement,
            field=panel.fields[0],
            aggregate=panel.aggregate.value,
            window_seconds=PREVIEW_WINDOW_SECONDS,
            group_by=panel.group_by,
            filters=panel.filters,
        )

    def panel(self) -> Panel:
        """Return the panel."""
        metric = parse_metric(self.metric.data)
        fields = dict.fromkeys((metric["field"], *self.more_fields.data))
        return Panel(
            title=self.title.data.strip(),
            chart=ChartKind(self.chart.data),
            measurement=metric["measurement"],
            fields=list(fields),
            aggregate=Aggregate(self.aggregate.data),
            group_by=self.group_by.data,
            filters=self.filters.data,
            is_wide=self.is_wide.data,
            unit=(self.unit.data or "").strip(),
            axis_min=self.axis_min.data,
            axis_max=self.axis_max.data,
            thresholds=self.thresholds.data,
        )


PANEL_FIELDS = {"measurement": "metric", "fields": "metric"}
"""Form field by panel field, where the names differ."""


def panel_values(panel: Panel) -> dict[str, Any]:
    """Return the form data of a panel."""
    first, *others = panel.fields
    return {
        "title": panel.title,
        "chart": panel.chart.value,
        "metric": metric_text(RuleRequest(name="", measurement=panel.measurement, field=first)),
        "more_fields": others,
        "aggregate": panel.aggregate.value,
        "group_by": list(panel.group_by),
        "filters": {tag: list(values) for tag, values in panel.filters.items()},
        "is_wide": panel.is_wide,
        "unit": panel.unit,
        "axis_min": panel.axis_min,
        "axis_max": panel.axis_max,
        "thresholds": list(panel.thresholds),
    }


def settings_of(request: DashboardRequest) -> dict[str, Any]:
    """Return the form data of a dashboard."""
    return {
        "name": request.name,
        "description": request.description,
        "is_shared": request.is_shared,
    }
