"""Forms for alert rules and receivers."""

from collections.abc import Iterable
from typing import Any

import yaml
from werkzeug.datastructures import MultiDict
from wtforms import (
    BooleanField,
    DateTimeLocalField,
    HiddenField,
    SelectField,
    StringField,
    TextAreaField,
)
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, Optional, ValidationError

from alerting.models import Receiver, Rule
from alerting.rule_request import RuleRequest
from alerting.rule_text import metric_text, parse_expression, parse_metric, rule_expression
from alerting.states import FORECAST, Comparison, NoDataPolicy, ReceiverKind
from core.errors import InvalidInputError
from portal.forms.form import (
    CheckboxListField,
    DurationField,
    Form,
    LinesField,
    NumberField,
    PairsField,
    TagsField,
)
from timeseries.store import Aggregate

RENAMED = {
    "measurement": "metric",
    "field": "metric",
    "other_field": "metric",
    "ahead_seconds": "ahead",
    "interval_seconds": "interval",
    "window_seconds": "window",
    "for_seconds": "for_",
    "keep_firing_seconds": "keep_firing",
    "receiver_ids": "receivers",
}
AGGREGATE_CHOICES = [
    SelectChoice(Aggregate.AVG.value, "average"),
    SelectChoice(Aggregate.MAX.value, "maximum"),
    SelectChoice(Aggregate.MIN.value, "minimum"),
    SelectChoice(Aggregate.LAST.value, "last"),
    SelectChoice(Aggregate.SUM.value, "sum"),
    SelectChoice(Aggregate.COUNT.value, "count"),
    SelectChoice(Aggregate.P50.value, "median"),
    SelectChoice(Aggregate.P95.value, "95th percentile"),
    SelectChoice(Aggregate.P99.value, "99th percentile"),
    SelectChoice(Aggregate.STDDEV.value, "standard deviation"),
    SelectChoice(Aggregate.CHANGE.value, "change"),
    SelectChoice(Aggregate.INCREASE.value, "increase of a counter"),
    SelectChoice(Aggregate.RATE.value, "rate of a counter per second"),
    SelectChoice(FORECAST, "forecast (linear trend)"),
]
COMPARISON_CHOICES = [
    SelectChoice(Comparison.ABOVE.value, "above"),
    SelectChoice(Comparison.BELOW.value, "below"),
]
NO_DATA_CHOICES = [
    SelectChoice(NoDataPolicy.KEEP.value, "keep the current state"),
    SelectChoice(NoDataPolicy.RESOLVE.value, "resolve the alert"),
    SelectChoice(NoDataPolicy.ALERT.value, "fire a no-data alert"),
]
RECEIVER_CHOICES = [
    SelectChoice(ReceiverKind.EMAIL.value, "Email"),
    SelectChoice(ReceiverKind.WEBHOOK.value, "Webhook"),
    SelectChoice(ReceiverKind.CHAT.value, "Chat or paging service"),
    SelectChoice(ReceiverKind.ALERTMANAGER.value, "Alertmanager"),
]


class ReceiverForm(Form):
    """A new receiver."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    kind = SelectField("Type", choices=RECEIVER_CHOICES)
    target = StringField("Address", [DataRequired("Enter an email address or a URL.")])


class ReceiverChangeForm(Form):
    """A change of a receiver."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    target = StringField("New address")


class PolicyForm(Form):
    """The tree of routes as YAML."""

    route = TextAreaField("Routes")

    def validate_route(self, _field: TextAreaField) -> None:
        """Show where the YAML is invalid."""
        try:
            self.tree()
        except yaml.YAMLError as error:
            raise ValidationError(f"The YAML is invalid: {error}") from error

    def tree(self) -> Any:  # noqa: ANN401 - any YAML
        """Return the tree."""
        return yaml.safe_load(self.route.data) or {}


class SilenceForm(Form):
    """A new silence."""

    matchers = LinesField("Matchers", parse=str.strip, format=str)
    starts_at = DateTimeLocalField("Start", [Optional()], format="%Y-%m-%dT%H:%M")
    duration = DurationField("Duration", default=7200.0)
    comment = StringField("Comment", default="")


class RuleForm(Form):
    """An alert rule: as fields, and as an expression, of which the one that was changed applies."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    expression = StringField("Expression")
    shown_expression = HiddenField()
    metric = StringField("Metric", [DataRequired("Select a metric.")])
    aggregate = SelectField("Function", choices=AGGREGATE_CHOICES, default=Aggregate.AVG.value)
    window = DurationField("Window", default=300.0)
    ahead = DurationField("Look ahead", default=0.0)
    group_by = TagsField("Group by", default=lambda: ["appliance"])
    filters = PairsField("Filters", default=dict)
    comparison = SelectField("Alert when", choices=COMPARISON_CHOICES)
    warning_threshold = NumberField("Warning threshold")
    critical_threshold = NumberField("Critical threshold")
    warning_reset = NumberField("Warning recovery")
    critical_reset = NumberField("Critical recovery")
    for_ = DurationField("For", default=0.0)
    keep_firing = DurationField("Keep firing for", default=0.0)
    no_data = SelectField("No data", choices=NO_DATA_CHOICES)
    interval = DurationField("Evaluate every", default=0.0)
    annotation = TextAreaField("Annotation", default="")
    receivers = CheckboxListField("Receivers", default=list)
    is_enabled = BooleanField("Enabled", default=True)

    def offer(self, receivers: Iterable[Receiver]) -> None:
        """Set the receivers to choose from."""
        self.receivers.choices = [(r.id, f"{r.name} ({r.kind.value})") for r in receivers]

    def validate_expression(self, field: StringField) -> None:
        """Show where a changed expression is invalid."""
        if is_changed(field.data, self.shown_expression.data):
            try:
                rule = parse_expression(field.data)
            except InvalidInputError as error:
                raise ValidationError(error.message) from error
            if self.filter_values() != rule.filters:
                raise ValidationError(
                    "This form can't have filter values with commas, line breaks or outer spaces. "
                    "Use `vedette rules apply`."
                )

    def show_expression(self, rule: RuleRequest | Rule) -> None:
        """Show a rule as its expression."""
        self.expression.data = self.shown_expression.data = rule_expression(rule)

    def validate_metric(self, field: StringField) -> None:
        """Require `measurement.field`, or the arithmetic of two."""
        try:
            parse_metric(field.data)
        except InvalidInputError as error:
            raise ValidationError(error.message) from error

    def filter_values(self) -> dict[str, list[str]]:
        """Return the values of each filter."""
        return {
            tag: [value.strip() for value in values.split(",") if value.strip()]
            for tag, values in self.filters.data.items()
        }

    def request(self) -> RuleRequest:
        """Return the rule request."""
        return RuleRequest(
            name=self.name.data.strip(),
            **parse_metric(self.metric.data),
            aggregate=self.aggregate.data,
            window_seconds=self.window.data,
            ahead_seconds=self.ahead.data,
            group_by=self.group_by.data,
            filters=self.filter_values(),
            comparison=Comparison(self.comparison.data),
            warning_threshold=self.warning_threshold.data,
            critical_threshold=self.critical_threshold.data,
            warning_reset=self.warning_reset.data,
            critical_reset=self.critical_reset.data,
            for_seconds=self.for_.data,
            keep_firing_seconds=self.keep_firing.data,
            no_data=NoDataPolicy(self.no_data.data),
            interval_seconds=self.interval.data,
            is_enabled=self.is_enabled.data,
            receiver_ids=self.receivers.data,
            annotation=self.annotation.data.strip(),
        )


def with_expression(typed: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the input of a rule form; a changed and valid expression replaces the fields."""
    text = typed.get("expression", "")
    if not is_changed(text, typed.get("shown_expression")):
        return typed
    try:
        values = expressed_values(parse_expression(text))
    except InvalidInputError:
        return typed
    filled = RuleForm(formdata=None, data=values)
    replaced = typed.copy()
    for name in values:
        field = filled[name]
        replaced[name] = field.data if isinstance(field, SelectField) else field._value()  # noqa: SLF001 - WTForms' way to get the text of a field
    return replaced


def is_changed(text: str | None, shown: str | None) -> bool:
    """Whether an expression was typed, or changed since it was shown."""
    return bool((text or "").strip()) and (text or "").strip() != (shown or "").strip()


def values_of(rule: Rule) -> dict[str, Any]:
    """Return the form data of an existing rule."""
    text = rule_expression(rule)
    return expressed_values(rule) | {
        "name": rule.name,
        "expression": text,
        "shown_expression": text,
        "receivers": rule.receiver_ids,
        "annotation": rule.annotation,
        "is_enabled": rule.is_enabled,
    }


def expressed_values(rule: Rule | RuleRequest) -> dict[str, Any]:
    """Return the form data of what an expression has."""
    return {
        "metric": metric_text(rule),
        "aggregate": rule.aggregate,
        "window": rule.window_seconds,
        "ahead": rule.ahead_seconds,
        "group_by": list(rule.group_by),
        "filters": {tag: ", ".join(values) for tag, values in rule.filters.items()},
        "comparison": rule.comparison.value,
        "warning_threshold": rule.warning_threshold,
        "critical_threshold": rule.critical_threshold,
        "warning_reset": rule.warning_reset,
        "critical_reset": rule.critical_reset,
        "for_": rule.for_seconds,
        "keep_firing": rule.keep_firing_seconds,
        "no_data": rule.no_data.value,
        "interval": rule.interval_seconds,
    }
