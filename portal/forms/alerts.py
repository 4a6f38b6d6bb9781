"""Forms for alert rules and receivers."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from werkzeug.datastructures import MultiDict
from wtforms import (
    BooleanField,
    DateTimeLocalField,
    Field,
    HiddenField,
    SelectField,
    SelectMultipleField,
    StringField,
    TextAreaField,
)
from wtforms.fields import SelectChoice
from wtforms.utils import unset_value
from wtforms.validators import DataRequired, Optional, ValidationError

from alerting.language.checks import DEFAULT_MAX_PER_HOUR, MAX_PER_HOUR
from alerting.language.text import metric_text, parse_expression, parse_metric, rule_expression
from alerting.models import Receiver, Rule
from alerting.rule_request import EXPRESSED, FIELDS, RuleRequest
from alerting.states import (
    FORECAST,
    ActionKind,
    Comparison,
    EventTopic,
    NoDataPolicy,
    ReceiverKind,
    Region,
    Severity,
)
from core.errors import InvalidInputError
from portal.forms.form import (
    CheckboxListField,
    DurationField,
    FiltersField,
    Form,
    LinesField,
    NumberField,
    TagsField,
    YAMLField,
)
from portal.time_zone import current_zone_name
from timeseries.store import Aggregate

RENAMED = dict.fromkeys(("measurement", "field", "other_field"), "metric")
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
    SelectChoice(Comparison.AT_LEAST.value, "at least"),
    SelectChoice(Comparison.AT_MOST.value, "at most"),
    SelectChoice(Comparison.EQUAL.value, "equal to"),
    SelectChoice(Comparison.NOT_EQUAL.value, "not equal to"),
]
NO_DATA_CHOICES = [
    SelectChoice(NoDataPolicy.KEEP.value, "keep the current state"),
    SelectChoice(NoDataPolicy.RESOLVE.value, "resolve the alert"),
    SelectChoice(NoDataPolicy.ALERT.value, "fire a no-data alert"),
]
_ACTION_TITLES = {
    ActionKind.STOP_JOBS: "Stop jobs",
    ActionKind.DRAIN: "Drain appliance",
    ActionKind.LABEL: "Label appliance",
    ActionKind.WEBHOOK: "Call webhook",
}
RECEIVER_CHOICES = [
    SelectChoice(ReceiverKind.EMAIL.value, "Email"),
    SelectChoice(ReceiverKind.WEBHOOK.value, "Webhook"),
    SelectChoice(ReceiverKind.CHAT.value, "Chat service"),
    SelectChoice(ReceiverKind.PAGERDUTY.value, "PagerDuty"),
    SelectChoice(ReceiverKind.OPSGENIE.value, "Opsgenie"),
    SelectChoice(ReceiverKind.ALERTMANAGER.value, "Alertmanager"),
    SelectChoice(ReceiverKind.EVENTS.value, "Webhook of events"),
]
TOPIC_CHOICES = [
    SelectChoice(EventTopic.JOB.value, "Jobs"),
    SelectChoice(EventTopic.APPLIANCE.value, "Appliances"),
    SelectChoice(EventTopic.ALERT.value, "Alerts"),
    SelectChoice(EventTopic.IMAGE.value, "Images"),
    SelectChoice(EventTopic.BILLING.value, "Invoices and statements"),
]
REGION_CHOICES = [SelectChoice(Region.US.value, "US"), SelectChoice(Region.EU.value, "EU")]


class ReceiverForm(Form):
    """A new receiver."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    kind = SelectField("Type", choices=RECEIVER_CHOICES)
    target = StringField("Address or key", [DataRequired("Enter an address, a URL or a key.")])
    region = SelectField(
        "Region of PagerDuty or Opsgenie", choices=REGION_CHOICES, default=Region.US.value
    )
    sends_resolved = BooleanField("Notify when an alert has resolved", default=True)
    topics = SelectMultipleField("Events, for a webhook of events", choices=TOPIC_CHOICES)


class ReceiverChangeForm(Form):
    """A change of a receiver."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    target = StringField("New address or key")
    region = SelectField("Region", choices=REGION_CHOICES)
    sends_resolved = BooleanField("Notify when an alert has resolved")
    topics = SelectMultipleField("Events", choices=TOPIC_CHOICES)


class PolicyForm(Form):
    """The tree of routes, the inhibition rules and the time intervals, as YAML."""

    route = YAMLField("Routes", default=dict)
    inhibit_rules = YAMLField("Inhibition rules", default=list)
    time_intervals = YAMLField("Time intervals", default=list)


class SilenceForm(Form):
    """A new silence."""

    matchers = LinesField("Matchers", parse=str.strip, format=str)
    starts_at = DateTimeLocalField("Start", [Optional()], format="%Y-%m-%dT%H:%M")
    duration = DurationField("Duration", default=7200.0)
    comment = StringField("Comment", default="")


class WindowForm(Form):
    """A maintenance window."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    matchers = LinesField("Matchers", parse=str.strip, format=str)
    schedule = StringField("Schedule", [DataRequired("Enter when it begins.")])
    duration_seconds = DurationField("Duration", default=7200.0)
    time_zone = StringField("Time zone", default=current_zone_name)


class ActionsField(Field):  # type: ignore[misc] # WTForms ships no types
    """The actions of a rule when an alert fires: inputs for each kind of action."""

    def process(
        self,
        formdata: MultiDict[str, str] | None,
        data: Any = unset_value,  # noqa: ANN401 - WTForms' type
        extra_filters: Any = None,  # noqa: ANN401 - as above
    ) -> None:
        """Read the inputs of each kind, named such as `drain-mode`."""
        super().process(None, data, extra_filters)
        if formdata:
            self.data = [
                self._read(kind, formdata)
                for kind in ActionKind
                if formdata.get(f"{kind.value}-mode") in {"on", "dry_run"}
            ]

    def rows(self) -> list[dict[str, Any]]:
        """Return what to show of each kind."""
        chosen = {action["kind"]: action for action in self.data or ()}
        return [
            {
                "kind": kind.value,
                "title": _ACTION_TITLES[kind],
                "mode": _mode(chosen.get(kind.value)),
                "max_per_hour": DEFAULT_MAX_PER_HOUR,
                "severity": Severity.WARNING.value,
                "labels": {},
                "receiver": "",
            }
            | chosen.get(kind.value, {})
            for kind in ActionKind
        ]

    def _read(self, kind: ActionKind, typed: MultiDict[str, str]) -> dict[str, Any]:
        action: dict[str, Any] = {
            "kind": kind.value,
            "is_dry_run": typed[f"{kind.value}-mode"] == "dry_run",
            "severity": Severity(typed.get(f"{kind.value}-severity", "warning")).value,
        }
        count = typed.get(f"{kind.value}-max_per_hour", "").strip()
        if not count.isdecimal():
            self.process_errors.append(
                f"{_ACTION_TITLES[kind]}: enter how often at most, from 1 to {MAX_PER_HOUR:,}."
            )
        action["max_per_hour"] = int(count) if count.isdecimal() else 0
        if kind is ActionKind.LABEL:
            pairs = [pair.partition("=") for pair in typed.get("label-labels", "").split(",")]
            action["labels"] = {
                key.strip(): value.strip() for key, _, value in pairs if key.strip()
            }
        if kind is ActionKind.WEBHOOK:
            action["receiver"] = typed.get("webhook-receiver", "")
        return action


def _mode(action: Mapping[str, Any] | None) -> str:
    if action is None:
        return "off"
    return "dry_run" if action["is_dry_run"] else "on"


def _stripped(text: str | None) -> str:
    return (text or "").strip()


class RuleForm(Form):
    """An alert rule: as fields, and as an expression, of which the one that was changed applies."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    expression = StringField("Expression")
    shown_expression = HiddenField()
    metric = StringField("Metric", [DataRequired("Select a metric.")])
    aggregate = SelectField("Function", choices=AGGREGATE_CHOICES)
    window_seconds = DurationField("Window")
    ahead_seconds = DurationField("Look ahead")
    group_by = TagsField("Group by")
    filters = FiltersField("Filters", default=dict)
    matchers = LinesField("Matchers", parse=str.strip, format=str)
    compared_with = StringField("Compare with", filters=[_stripped])
    comparison = SelectField("Alert when", choices=COMPARISON_CHOICES, coerce=Comparison)
    info_threshold = NumberField("Info threshold")
    warning_threshold = NumberField("Warning threshold")
    critical_threshold = NumberField("Critical threshold")
    info_reset = NumberField("Info recovery")
    warning_reset = NumberField("Warning recovery")
    critical_reset = NumberField("Critical recovery")
    and_condition = StringField("And", filters=[_stripped])
    for_seconds = DurationField("For")
    keep_firing_seconds = DurationField("Keep firing for")
    no_data = SelectField("No data", choices=NO_DATA_CHOICES, coerce=NoDataPolicy)
    interval_seconds = DurationField("Evaluate every")
    annotation = TextAreaField("Annotation", filters=[_stripped])
    receiver_ids = CheckboxListField("Receivers", default=list)
    actions = ActionsField("Actions", default=list)
    is_enabled = BooleanField("Enabled")

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - WTForms'
        super().__init__(*arguments, **options)
        self.is_promql = (self.expression.data or "").lstrip().startswith("promql")
        if self.is_promql:
            # The expression has all of them, and there are no inputs for what it has.
            for name in {"metric", *EXPRESSED} & self._fields.keys():
                del self[name]

    def offer(self, receivers: Iterable[Receiver]) -> None:
        """Set the receivers to choose from."""
        offered = list(receivers)
        self.receiver_ids.choices = [(r.id, f"{r.name} ({r.kind.value})") for r in offered]
        self.webhooks = [r.name for r in offered if r.kind is ReceiverKind.WEBHOOK]

    def validate_expression(self, field: StringField) -> None:
        """Show where a changed expression is invalid."""
        if is_changed(field.data, self.shown_expression.data):
            try:
                rule = parse_expression(field.data)
            except InvalidInputError as error:
                raise ValidationError(error.message) from error
            if rule.promql:
                return
            if self.filters.data != rule.filters or self.matchers.data != list(rule.matchers):
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

    def request(self) -> RuleRequest:
        """Return the rule request."""
        values = {name: self.data[name] for name in FIELDS if name in self.data}
        if self.is_promql:
            return replace(parse_expression(self.expression.data), **values)
        return RuleRequest(**values, **parse_metric(self.metric.data))


def with_expression(typed: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the input of a rule form; a changed and valid expression replaces the fields."""
    text = typed.get("expression", "")
    if not is_changed(text, typed.get("shown_expression")):
        return typed
    try:
        values = expressed_values(parse_expression(text))
    except InvalidInputError:
        return typed
    if values["promql"]:
        return typed
    filled = RuleForm(formdata=None, data=values)
    replaced = typed.copy()
    for name in values.keys() & filled.data.keys():
        field = filled[name]
        replaced[name] = field.data if isinstance(field, SelectField) else field._value()  # noqa: SLF001 - WTForms' way to get the text of a field
    return replaced


def is_changed(text: str | None, shown: str | None) -> bool:
    """Return whether an expression was typed, or changed since it was shown."""
    return bool((text or "").strip()) and (text or "").strip() != (shown or "").strip()


def values_of(rule: Rule | RuleRequest) -> dict[str, Any]:
    """Return the form data of an existing rule."""
    text = rule_expression(rule)
    others = {name: getattr(rule, name) for name in FIELDS}
    return others | expressed_values(rule) | {"expression": text, "shown_expression": text}


def expressed_values(rule: Rule | RuleRequest) -> dict[str, Any]:
    """Return the form data of what an expression has."""
    return {name: getattr(rule, name) for name in EXPRESSED} | {"metric": metric_text(rule)}
