"""The form of a threshold rule."""

from collections.abc import Iterable
from typing import Any

from wtforms import BooleanField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, ValidationError

from alerting.models import Receiver, Rule
from alerting.service import RuleRequest
from alerting.states import Comparison, NoDataPolicy
from portal.forms.base import Form
from portal.forms.fields import (
    CheckboxListField,
    DurationField,
    NumberField,
    PairsField,
    WordsField,
)
from timeseries.store import Aggregate

RENAMED = {
    "measurement": "metric",
    "field": "metric",
    "window_seconds": "window",
    "for_seconds": "for_",
    "keep_firing_seconds": "keep_firing",
    "receiver_ids": "receivers",
}
AGGREGATE_CHOICES = [
    SelectChoice(Aggregate.AVG.value, "average"),
    SelectChoice(Aggregate.MAX.value, "maximum"),
    SelectChoice(Aggregate.MIN.value, "minimum"),
    SelectChoice(Aggregate.LAST.value, "last value"),
    SelectChoice(Aggregate.SUM.value, "sum"),
    SelectChoice(Aggregate.COUNT.value, "count of samples"),
    SelectChoice(Aggregate.P50.value, "median"),
    SelectChoice(Aggregate.P95.value, "95th percentile"),
    SelectChoice(Aggregate.P99.value, "99th percentile"),
]
COMPARISON_CHOICES = [
    SelectChoice(Comparison.ABOVE.value, "above"),
    SelectChoice(Comparison.BELOW.value, "below"),
]
NO_DATA_CHOICES = [
    SelectChoice(NoDataPolicy.KEEP.value, "keep the state"),
    SelectChoice(NoDataPolicy.RESOLVE.value, "resolve the alert"),
    SelectChoice(NoDataPolicy.ALERT.value, "alert that data is missing"),
]


class RuleForm(Form):
    """A rule as its author writes it."""

    name = StringField("Name", [DataRequired("Give the rule a name.")])
    metric = StringField("Metric", [DataRequired("Choose what is watched.")])
    aggregate = SelectField("Aggregate", choices=AGGREGATE_CHOICES, default=Aggregate.AVG.value)
    window = DurationField("Over the last", default=300.0)
    group_by = WordsField("One alert for each", default=lambda: ["appliance"])
    filters = PairsField("Only where", default=dict)
    comparison = SelectField("Alert when", choices=COMPARISON_CHOICES)
    warning_threshold = NumberField("Warning at")
    critical_threshold = NumberField("Critical at")
    warning_reset = NumberField("Warning ends at")
    critical_reset = NumberField("Critical ends at")
    for_ = DurationField("For at least", default=0.0)
    keep_firing = DurationField("Keep firing for", default=0.0)
    no_data = SelectField("When data stops", choices=NO_DATA_CHOICES)
    receivers = CheckboxListField("Send to", default=list)
    is_enabled = BooleanField("Enabled", default=True)

    def offer(self, receivers: Iterable[Receiver]) -> None:
        """Let the user choose among these receivers."""
        self.receivers.choices = [(r.id, f"{r.name} ({r.kind.value})") for r in receivers]

    def validate_metric(self, field: StringField) -> None:
        """Take `measurement.field` only."""
        measurement, dot, name = field.data.strip().partition(".")
        if not measurement or not dot or not name:
            raise ValidationError(
                f"{field.data!r} is not a metric. Write measurement.field, such as "
                "gpu.temperature_celsius."
            )

    def request(self) -> RuleRequest:
        """Return the rule that the user asks for."""
        measurement, _, name = self.metric.data.strip().partition(".")
        return RuleRequest(
            name=self.name.data.strip(),
            measurement=measurement,
            field=name,
            aggregate=Aggregate(self.aggregate.data),
            window_seconds=self.window.data,
            group_by=self.group_by.data,
            filters=_filters(self.filters.data),
            comparison=Comparison(self.comparison.data),
            warning_threshold=self.warning_threshold.data,
            critical_threshold=self.critical_threshold.data,
            warning_reset=self.warning_reset.data,
            critical_reset=self.critical_reset.data,
            for_seconds=self.for_.data,
            keep_firing_seconds=self.keep_firing.data,
            no_data=NoDataPolicy(self.no_data.data),
            is_enabled=self.is_enabled.data,
            receiver_ids=self.receivers.data,
        )


def values_of(rule: Rule) -> dict[str, Any]:
    """Return what the form shows for a rule that exists."""
    return {
        "name": rule.name,
        "metric": f"{rule.measurement}.{rule.field}",
        "aggregate": rule.aggregate,
        "window": rule.window_seconds,
        "group_by": rule.group_by,
        "filters": {tag: ", ".join(values) for tag, values in rule.filters.items()},
        "comparison": rule.comparison.value,
        "warning_threshold": rule.warning_threshold,
        "critical_threshold": rule.critical_threshold,
        "warning_reset": rule.warning_reset,
        "critical_reset": rule.critical_reset,
        "for_": rule.for_seconds,
        "keep_firing": rule.keep_firing_seconds,
        "no_data": rule.no_data.value,
        "receivers": rule.receiver_ids,
        "is_enabled": rule.is_enabled,
    }


def _filters(pairs: dict[str, str]) -> dict[str, list[str]]:
    return {
        tag: [value.strip() for value in values.split(",") if value.strip()]
        for tag, values in pairs.items()
    }
