"""The validation of a rule and of its actions, without a look at the database or at samples.

A rule has at most one action of each kind, as a user writes it:

    {"kind": "label", "labels": {"needs": "repair"}, "max_per_hour": 5, "is_dry_run": False,
     "severity": "critical"}

`severity` is the least one; `labels` are those of `label`, and `receiver` is the name of the
webhook that `webhook` calls. See `alerting.rules.actions` for what happens then.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from alerting.language.annotations import annotation_errors
from alerting.language.matchers import MAX_MATCHERS, parse_matcher
from alerting.language.text import condition_of, parse_comparand
from alerting.rule_request import (
    ANY_VALUE,
    EXPRESSED,
    LEVEL_FIELDS,
    MAX_NAME_LENGTH,
    Errors,
    RuleRequest,
    group_tags,
    levels_of,
    rule_thresholds,
)
from alerting.states import FORECAST, FUNCTIONS, ActionKind, Comparison, Operator, Severity
from core.errors import InvalidInputError
from tenants.fleet.appliance_changes import label_errors
from tenants.permissions import Permission
from timeseries.store import APPLIANCE_TAG, TENANT_TAG

DEFAULT_MAX_PER_HOUR = 5
MAX_PER_HOUR = 1000
_PERMISSIONS = {
    ActionKind.STOP_JOBS: Permission.STOP_ANY_JOB,
    ActionKind.DRAIN: Permission.MANAGE_APPLIANCES,
    ActionKind.LABEL: Permission.MANAGE_APPLIANCES,
}
MAX_SECONDS = 30 * 24 * 3600.0
MIN_WINDOW_SECONDS = 1.0
MAX_GROUP_TAGS = 8
MAX_LABELS = 10
MAX_LABEL_LENGTH = 200
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_LABELS = {APPLIANCE_TAG, TENANT_TAG, "appliance_id", "rule", "severity"}
_PROMQL_FIELDS = {
    *("promql", "labels", "for_seconds", "keep_firing_seconds", "interval_seconds"),
    *(f"{severity}_threshold" for severity in Severity),
}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


def rule_errors(request: RuleRequest) -> Errors:
    """Return the validation errors by field, without a look at the database."""
    errors = _promql_errors(request) if request.promql else _query_errors(request)
    errors["name"] = _name_errors(request.name)
    errors["interval_seconds"] = _seconds_errors("every", request.interval_seconds)
    errors["for_seconds"] = _seconds_errors("for", request.for_seconds)
    errors["keep_firing_seconds"] = _seconds_errors("keep firing", request.keep_firing_seconds)
    errors["annotation"] = annotation_errors(request.annotation)
    errors["actions"] = action_errors(request.actions)
    return {name: messages for name, messages in errors.items() if messages}


def _promql_errors(request: RuleRequest) -> Errors:
    """Return the errors of a rule in PromQL, which has nothing of other queries."""
    plain = RuleRequest(name="")
    others = [
        name
        for name in EXPRESSED
        if name not in _PROMQL_FIELDS
        and _listed(getattr(request, name)) != _listed(getattr(plain, name))
    ]
    errors: Errors = {name: ["Leave it out: the rule is in PromQL."] for name in others}
    thresholds = rule_thresholds(request)
    if [level for _, level in thresholds] != [0.0]:
        text = "A rule in PromQL has one severity: set its threshold to 0, and no other."
        errors["warning_threshold"] = [text]
    errors["labels"] = _label_errors(request.labels)
    try:
        from timeseries.promql.queries import check_condition  # noqa: PLC0415 - only on servers
    except ImportError:
        return errors
    try:
        check_condition(request.promql)
    except InvalidInputError as error:
        errors["promql"] = [error.message]
    return errors


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _label_errors(labels: Mapping[str, str]) -> list[str]:
    errors = [] if len(labels) <= MAX_LABELS else [f"A rule has at most {MAX_LABELS} labels."]
    for name, text in labels.items():
        if not _LABEL.fullmatch(name) or name in _RESERVED_LABELS:
            errors.append(f"A rule can't have the label {name!r}. Use another name.")
        if len(text) > MAX_LABEL_LENGTH or not text.isprintable():
            errors.append(
                f"The label {name!r} needs a text of up to {MAX_LABEL_LENGTH} printable characters."
            )
    return errors


def _query_errors(request: RuleRequest) -> Errors:
    errors: Errors = {
        "labels": ["Only a rule in PromQL has labels."] if request.labels else [],
        "measurement": _identifier_errors("measurement", request.measurement, "gpu"),
        "field": _identifier_errors("field", request.field, "temperature_celsius"),
        "aggregate": []
        if request.aggregate in FUNCTIONS
        else [f"Unknown aggregate {request.aggregate!r}. Use one of {', '.join(FUNCTIONS)}."],
        "other_field": _arithmetic_errors(request),
        "ahead_seconds": _ahead_errors(request),
        "window_seconds": _seconds_errors(
            "window", request.window_seconds, minimum=MIN_WINDOW_SECONDS
        ),
        "group_by": _tag_errors("group_by", request.group_by),
        "filters": _filter_errors(request.filters, (APPLIANCE_TAG, *request.group_by)),
        "matchers": _matcher_errors(request.matchers),
        "compared_with": _comparand_errors(request),
        "and_condition": _condition_errors(request),
    }
    return errors | _threshold_errors(request)


def _name_errors(name: str) -> list[str]:
    if not name.strip() or len(name.strip()) > MAX_NAME_LENGTH:
        return [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    return [] if name.isprintable() else ["The name contains control characters. Remove them."]


def _identifier_errors(label: str, text: str, example: str) -> list[str]:
    if len(text) <= MAX_NAME_LENGTH and _IDENTIFIER.fullmatch(text):
        return []
    return [
        f"The {label} {text!r} is invalid. Use letters, digits and _ . : / - as in {example!r}."
    ]


def _arithmetic_errors(request: RuleRequest) -> list[str]:
    if not request.operator and not request.other_field:
        return []
    if request.operator not in set(Operator):
        operators = " ".join(Operator)
        return [f"The operator {request.operator!r} is not supported. Use one of {operators}."]
    return _identifier_errors("field", request.other_field, "total_bytes")


def _ahead_errors(request: RuleRequest) -> list[str]:
    if request.aggregate != FORECAST:
        text = f"Only a {FORECAST} looks ahead. Set 'ahead' to 0."
        return [text] if request.ahead_seconds else []
    return _seconds_errors("ahead", request.ahead_seconds, minimum=1.0)


def _seconds_errors(label: str, seconds: float, *, minimum: float = 0.0) -> list[str]:
    if math.isfinite(seconds) and minimum <= seconds <= MAX_SECONDS:
        return []
    return [f"'{label}' is {seconds:g} s. It must be {minimum:g} to {MAX_SECONDS:g} s."]


def _tag_errors(label: str, tags: Sequence[str]) -> list[str]:
    errors = [error for tag in tags for error in _identifier_errors("tag", tag, "gpu")]
    if TENANT_TAG in tags:
        errors.append("A rule applies to its own tenant only. Remove the tag 'tenant'.")
    if len(tags) > MAX_GROUP_TAGS:
        errors.append(f"{label} has {len(tags)} tags. The maximum is {MAX_GROUP_TAGS}.")
    return errors


def _filter_errors(filters: Mapping[str, Sequence[str]], group_by: Sequence[str]) -> list[str]:
    errors = _tag_errors("filters", list(filters))
    for tag, values in filters.items():
        if ANY_VALUE in values and tag not in group_by:
            errors.append(f"The filter {tag}={ANY_VALUE} needs the tag {tag!r} in 'group_by'.")
        if isinstance(values, str) or not values or not all(isinstance(v, str) for v in values):
            errors.append(f"The filter on {tag!r} needs a list of values such as ['0', '1'].")
    return errors


def _matcher_errors(texts: Sequence[str]) -> list[str]:
    if len(texts) > MAX_MATCHERS:
        return [f"The rule has {len(texts)} matchers. The maximum is {MAX_MATCHERS}."]
    errors = []
    for text in texts:
        try:
            matcher = parse_matcher(text)
        except ValueError as error:
            errors.append(str(error))
            continue
        errors += _tag_errors("matchers", [matcher.label])
        if not text.isprintable():
            errors.append(f"The matcher {text!r} contains control characters. Remove them.")
    return errors


def _comparand_errors(request: RuleRequest) -> list[str]:
    if not request.compared_with:
        return []
    try:
        comparand = parse_comparand(request.compared_with)
    except InvalidInputError as error:
        return [error.message]
    if FORECAST in {request.aggregate, comparand.request.aggregate}:
        return [f"A {FORECAST} can't be compared with another aggregate."]
    inner = replace(comparand.request, name="-", group_by=request.group_by, warning_threshold=0.0)
    return [
        *(text for texts in rule_errors(inner).values() for text in texts),
        *_seconds_errors("offset", comparand.offset_seconds),
    ]


def _condition_errors(request: RuleRequest) -> list[str]:
    try:
        condition = condition_of(request)
    except InvalidInputError as error:
        return [error.message]
    if condition is None:
        return []
    others = sorted(set(group_tags(condition)) - set(group_tags(request)))
    if others:
        return [f"The second condition is by {others[0]!r}. Add that tag to the rule's, too."]
    inner = replace(condition, name="-")
    return [text for texts in rule_errors(inner).values() for text in texts]


def _threshold_errors(request: RuleRequest) -> Errors:
    for name in LEVEL_FIELDS:
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            return {name: [f"{value} is not a finite number."]}
    thresholds = rule_thresholds(request)
    if not thresholds:
        return {"warning_threshold": ["Set a threshold: info, warning or critical."]}
    comparison = request.comparison
    if not comparison.has_side:
        return _equality_errors(request)
    side = "above" if comparison.is_upper else "below"
    errors: Errors = {
        f"{severity}_reset": _reset_errors(comparison, severity, threshold, reset)
        for severity, threshold, reset in levels_of(request)
    }
    for (less, lower), (worse, higher) in pairwise(thresholds):
        if higher == lower or not comparison.is_breached(higher, lower):
            errors[f"{worse}_threshold"] = [
                f"The {worse} threshold {higher:g} must be {side} the {less} threshold {lower:g}."
            ]
    return errors


def _equality_errors(request: RuleRequest) -> Errors:
    errors: Errors = {
        f"{severity}_threshold": [f"With {request.comparison}, set one threshold only."]
        for severity, _ in rule_thresholds(request)[1:]
    }
    for severity, _, reset in levels_of(request):
        if reset is not None:
            errors[f"{severity}_reset"] = [
                f"With {request.comparison}, there is no recovery threshold."
            ]
    return errors


def _reset_errors(
    comparison: Comparison, severity: str, threshold: float | None, reset: float | None
) -> list[str]:
    if reset is None:
        return []
    if threshold is None:
        return [f"The {severity} reset {reset:g} needs a {severity} threshold."]
    if reset == threshold or not comparison.is_breached(reset, threshold):
        return []
    side = "above" if comparison.is_upper else "below"
    text = (
        f"The {severity} reset {reset:g} must not be {side} the {severity} threshold "
        f"{threshold:g}: the alert would never resolve."
    )
    return [text]


def stored_action(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid action with all that its kind has, and nothing else."""
    kind = ActionKind(action["kind"])
    return {
        "kind": kind.value,
        "is_dry_run": bool(action.get("is_dry_run", False)),
        "max_per_hour": int(action.get("max_per_hour", DEFAULT_MAX_PER_HOUR)),
        "severity": Severity(action.get("severity", Severity.WARNING)).value,
        **({"labels": dict(action["labels"])} if kind is ActionKind.LABEL else {}),
        **({"receiver": str(action["receiver"])} if kind is ActionKind.WEBHOOK else {}),
    }


def action_errors(actions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the actions of a rule, without a look at the database."""
    kinds = [action["kind"] for action in actions]
    errors = [
        f"There are several actions {kind.value!r}. Merge them into one."
        for kind in ActionKind
        if kinds.count(kind.value) > 1
    ]
    for action in actions:
        kind, count = action["kind"], action.get("max_per_hour", DEFAULT_MAX_PER_HOUR)
        labels, receiver = action.get("labels") or {}, action.get("receiver") or ""
        if not 1 <= count <= MAX_PER_HOUR:
            errors.append(
                f"{kind}: max_per_hour is {count}. It must be from 1 to {MAX_PER_HOUR:,}."
            )
        if kind == ActionKind.LABEL:
            errors += [f"label: {text}" for text in label_errors(labels)]
            errors += [] if labels else ["label: Give the labels to set, such as needs=repair."]
        elif labels:
            errors.append(f"{kind}: Only 'label' has labels.")
        if kind == ActionKind.WEBHOOK and not receiver:
            errors.append("webhook: Give the name of the receiver to call.")
        elif receiver and kind != ActionKind.WEBHOOK:
            errors.append(f"{kind}: Only 'webhook' has a receiver.")
    return errors


def required_permissions(actions: Sequence[Mapping[str, Any]]) -> set[Permission]:
    """Return what a user needs who does by hand what actions do."""
    kinds = {ActionKind(action["kind"]) for action in actions}
    return {permission for kind, permission in _PERMISSIONS.items() if kind in kinds}


def is_severe_enough(action: Mapping[str, Any], severity: Severity) -> bool:
    """Return whether an alert of a severity has an action."""
    return severity.rank >= Severity(action["severity"]).rank
