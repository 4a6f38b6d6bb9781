"""Checks of a rule's names and function: against the catalog of metrics, and a tenant's samples.

A metric that neither knows is a custom one whose samples are yet to come, unless its name is nearly
that of another metric. Whatever has samples, or is declared, must have the rule's field and tags.
"""

import difflib
from collections.abc import Callable, Collection
from functools import cache, partial

from alerting.language.checks import rule_errors
from alerting.language.matchers import split_matcher
from alerting.language.text import other_parts
from alerting.models import Rule
from alerting.rule_request import Errors, RuleRequest, raise_errors
from core.errors import InvalidInputError
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.declared import DECLARED, Declared
from timeseries.metric_catalog import COUNTERS
from timeseries.sample_query import unknown_name
from timeseries.store import IDENTITY_TAGS, Aggregate, Store, StoreUnavailableError
from timeseries.validation import check_aggregate

_LEAST_SIMILARITY = 0.8
_OF_COUNTERS = {Aggregate.INCREASE, Aggregate.RATE}
_CHECKED = (
    *("measurement", "field", "other_field", "aggregate", "group_by", "filters", "matchers"),
    *("compared_with", "and_condition"),
)
_NOTHING = Declared(frozenset(), frozenset(), {})


def check_metric(
    store: Store, scope: Scope, request: RuleRequest, *, before: Rule | None = None
) -> None:
    """Check the names and the functions of a valid rule; those of the rule `before` are accepted.

    Raises:
        ForbiddenError: the user may not save rules.
        InvalidInputError: with the errors by field, and a suggestion where a name is similar.
    """
    scope.require(Permission.EDIT_ALERTS)
    # Saving the rule reports what is invalid in itself.
    if not rule_errors(request) and (before is None or _checked(before) != _checked(request)):
        raise_errors("rule", metric_errors(StoredNames(store, scope.tenants), request))


class StoredNames:
    """The names of the samples of some tenants, read once each: a file of rules repeats them."""

    def __init__(self, store: Store, tenants: tuple[str, ...] | None) -> None:
        self.measurements = cache(partial(store.measurements, tenants=tenants))
        self.fields = cache(partial(store.fields, tenants=tenants))
        self.tags = cache(partial(store.tags, tenants=tenants))


def metric_errors(names: StoredNames, request: RuleRequest) -> Errors:
    """Return the errors of the names and the functions of a rule by field."""
    return {} if request.promql else _of_all_parts(request, partial(_sampled_errors, names))


def declared_errors(request: RuleRequest) -> Errors:
    """Return what is wrong for any samples: names that are nearly declared ones, and functions."""
    return {} if request.promql else _of_all_parts(request, _declared_errors)


def _of_all_parts(request: RuleRequest, errors_of: Callable[[RuleRequest], Errors]) -> Errors:
    errors = errors_of(request)
    for name, part in other_parts(request):
        texts = [text for texts in errors_of(part).values() for text in texts]
        errors |= {name: [*errors.get(name, ()), *texts]} if texts else {}
    return errors


def _sampled_errors(names: StoredNames, request: RuleRequest) -> Errors:
    measurement = request.measurement
    declared = DECLARED.get(measurement, _NOTHING)
    try:
        kinds = names.fields(measurement)
        tags = {*names.tags(measurement), *declared.tags, *IDENTITY_TAGS}
        if not kinds and not declared.fields:
            return _unknown_measurement(request, names.measurements())
    except StoreUnavailableError:
        return _declared_errors(request)
    fields = {*kinds, *declared.fields}
    errors = {
        "field": _unknown("field", [request.field], fields),
        "other_field": _unknown("field", [request.other_field], fields),
        "group_by": _unknown("tag", request.group_by, tags),
        "filters": _unknown("tag", request.filters, tags),
        "matchers": _unknown("tag", _matched_tags(request), tags),
        "aggregate": _function_errors(request, kinds.get(request.field, "float")),
    }
    return {name: texts for name, texts in errors.items() if texts}


def _declared_errors(request: RuleRequest) -> Errors:
    # Other programs may write more fields and tags of a declared measurement.
    declared = DECLARED.get(request.measurement)
    if declared is None:
        return _unknown_measurement(request, ())
    tags = {*declared.tags, *IDENTITY_TAGS}
    errors = {
        "field": _misspelt("field", [request.field], declared.fields),
        "other_field": _misspelt("field", [request.other_field], declared.fields),
        "group_by": _misspelt("tag", request.group_by, tags),
        "filters": _misspelt("tag", request.filters, tags),
        "matchers": _misspelt("tag", _matched_tags(request), tags),
        "aggregate": _function_errors(request, "float"),
    }
    return {name: texts for name, texts in errors.items() if texts}


def _unknown_measurement(request: RuleRequest, measurements: Collection[str]) -> Errors:
    names = sorted({*DECLARED, *measurements})
    near = difflib.get_close_matches(request.measurement, names, 1, _LEAST_SIMILARITY)
    if not near:
        return {}
    text = (
        f"Unknown metric '{request.measurement}.{request.field}'. Did you mean "
        f"'{near[0]}.{request.field}'? A metric of your own is accepted once it has samples."
    )
    return {"measurement": [text]}


def _unknown(kind: str, names: Collection[str], existing: Collection[str]) -> list[str]:
    return [unknown_name(kind, name, existing) for name in names if name and name not in existing]


def _misspelt(kind: str, names: Collection[str], existing: Collection[str]) -> list[str]:
    return [text for text in _unknown(kind, names, existing) if "Did you mean" in text]


def _matched_tags(request: RuleRequest) -> list[str]:
    return [split_matcher(text).label for text in request.matchers]


def _function_errors(request: RuleRequest, kind: str) -> list[str]:
    declared = DECLARED.get(request.measurement, _NOTHING).fields
    if request.aggregate in _OF_COUNTERS:
        names = (
            f"{request.measurement}.{name}"
            for name in (request.field, request.other_field)
            if name in declared
        )
        gauges = [name for name in names if name not in COUNTERS]
        if gauges:
            text = f"{gauges[0]!r} is not a counter, of which {request.aggregate!r} is the growth."
            return [f"{text} Did you mean {Aggregate.CHANGE.value!r}?"]
    try:
        if request.aggregate in set(Aggregate):
            check_aggregate(request.field, kind, Aggregate(request.aggregate))
    except InvalidInputError as error:
        return [error.message]
    return []


def _checked(rule: Rule | RuleRequest) -> list[object]:
    values = (getattr(rule, name) for name in _CHECKED)
    return [sorted(value) if isinstance(value, (list, tuple, dict)) else value for value in values]
