"""The panels of a custom dashboard: a metric, how its series are aggregated, and a kind of chart.

A panel shows fields of one measurement, split into series by tags. How many series a kind of chart
shows is bounded, so that no dashboard takes the portal from others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from core.errors import InvalidInputError, UnavailableError
from core.quantities import unit_of
from dash_app.custom.scales import (
    PanelThreshold,
    limit_errors,
    threshold_errors,
    unit_errors,
    unit_suffix,
)
from timeseries.sample_query import unknown_name
from timeseries.store import IDENTITY_TAGS, TENANT_TAG, Aggregate, Store
from timeseries.validation import check_aggregate

MAX_PANELS = 24
MAX_FIELDS = 4
MAX_TAGS = 4
MAX_FILTER_VALUES = 50
MAX_TITLE_LENGTH = 100
_MAX_NAME_LENGTH = 200
# Filters on where appliances are, for samples that have no such tags.
PLACES = frozenset({"site", "region"})

Errors = dict[str, list[str]]


class ChartKind(StrEnum):
    """The kinds of charts that show a panel's series; see `MAX_SERIES`."""

    LINE = "line"
    BAND = "band"
    BAR = "bar"
    STAT = "stat"
    HEATMAP = "heatmap"
    TABLE = "table"


# The most series of a panel: those with the greatest values.
MAX_SERIES: Mapping[ChartKind, int] = {
    ChartKind.LINE: 16,
    ChartKind.BAND: 6,
    ChartKind.BAR: 12,
    ChartKind.STAT: 12,
    ChartKind.HEATMAP: 64,
    ChartKind.TABLE: 100,
}
# Panels without an axis. Their fields may have different units.
_UNIT_BY_FIELD = frozenset({ChartKind.STAT, ChartKind.TABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel as a user defines it.

    Attributes:
        aggregate: reduces the values of a series, in each step or over the whole range.
        group_by: tags that split the result into series.
        filters: tag to allowed values; appliances are named by name or id.
        is_wide: it takes a whole row.
        unit: that of its values instead of the field's; see `scales`.
        axis_min: where its axis or its colors begin; None for 0 or the least value.
        axis_max: where they end; None for the greatest value.
        thresholds: values above or below which it shows a severity.
    """

    title: str
    chart: ChartKind = ChartKind.LINE
    measurement: str
    fields: Sequence[str]
    aggregate: Aggregate = Aggregate.AVG
    group_by: Sequence[str] = ()
    filters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_wide: bool = False
    unit: str = ""
    axis_min: float | None = None
    axis_max: float | None = None
    thresholds: Sequence[PanelThreshold] = ()

    def unit_field(self, name: str) -> str:
        """Return a name with the unit of a field's aggregate; see `core.quantities`."""
        if self.unit:
            return unit_suffix(self.unit)
        if self.aggregate is Aggregate.COUNT:
            return ""
        return f"{name}_per_second" if self.aggregate is Aggregate.RATE else name


def load_panels(stored: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return panels of their JSON, without fields of newer versions."""
    return msgspec.convert(stored, list[Panel])


def store_panels(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return panels as JSON."""
    stored: list[dict[str, Any]] = msgspec.to_builtins(panels)
    return stored


def panels_errors(panels: Sequence[Panel]) -> Errors:
    """Return the errors of all panels, by `panels.NUMBER.FIELD`."""
    errors = {
        f"panels.{number}.{name}": texts
        for number, panel in enumerate(panels)
        for name, texts in panel_errors(panel).items()
    }
    if len(panels) > MAX_PANELS:
        errors["panels"] = [f"{len(panels)} panels are too many. Use at most {MAX_PANELS}."]
    return errors


def panel_errors(panel: Panel) -> Errors:
    """Return the errors of a panel by field, without a look at the samples."""
    errors: Errors = {
        "title": _text_errors("title", panel.title, MAX_TITLE_LENGTH),
        "measurement": _text_errors("measurement", panel.measurement, _MAX_NAME_LENGTH),
        "fields": _list_errors("field", panel.fields, max_count=MAX_FIELDS),
        "group_by": _list_errors("tag", panel.group_by, max_count=MAX_TAGS),
        "filters": _list_errors("tag", list(panel.filters), max_count=MAX_TAGS),
        "unit": unit_errors(panel.unit),
        "thresholds": threshold_errors(panel.thresholds),
        **limit_errors(panel.axis_min, panel.axis_max),
    }
    if panel.chart in _UNIT_BY_FIELD and (panel.axis_min, panel.axis_max) != (None, None):
        errors["axis_max"] = [f"A {panel.chart} has no axis. Leave the limits empty."]
    if panel.chart is ChartKind.HEATMAP and panel.thresholds:
        errors["thresholds"].append("A heat map has no thresholds. Use limits, or another chart.")
    if not panel.fields:
        errors["fields"].append("Name at least one field.")
    units = {unit_of(panel.unit_field(name)).symbol for name in panel.fields}
    if len(units) > 1 and panel.chart not in _UNIT_BY_FIELD:
        shown = ", ".join(sorted(unit or "none" for unit in units))
        errors["fields"].append(
            f"The fields of a {panel.chart} need the same unit, and these have {shown}. "
            "Make a panel for each."
        )
    if TENANT_TAG in {*panel.group_by, *panel.filters}:
        errors["group_by"].append("A dashboard shows its own tenant only. Remove 'tenant'.")
    for tag, values in panel.filters.items():
        if not values or len(values) > MAX_FILTER_VALUES:
            errors["filters"].append(
                f"The filter on {tag!r} has {len(values)} values. Use 1 to {MAX_FILTER_VALUES}."
            )
        errors["filters"] += [
            f"The filter on {tag!r} has a value with more than {_MAX_NAME_LENGTH} characters."
            for value in values
            if len(value) > _MAX_NAME_LENGTH
        ]
    return {name: texts for name, texts in errors.items() if texts}


def metric_errors(
    store: Store, panels: Sequence[Panel], *, tenants: tuple[str, ...] | None, prefix: str = ""
) -> Errors:
    """Return the errors of names that are not among the samples, as `panels_errors`.

    A measurement without samples is accepted, and any name while the store is unavailable. Call it
    outside of transactions.

    Args:
        store: the store.
        panels: panels without errors of their own.
        tenants: those whose samples are searched.
        prefix: put before the name of each field.
    """
    errors: Errors = {}
    try:
        for number, panel in enumerate(panels):
            field_errors = _metric_errors(store, panel, tenants)
            errors |= {
                f"{prefix}panels.{number}.{name}": texts
                for name, texts in field_errors.items()
                if texts
            }
    except UnavailableError:
        return {}
    return errors


def raise_errors(errors: Mapping[str, Sequence[str]]) -> None:
    """Raise `InvalidInputError` with all errors, if there are any."""
    if errors:
        details = " ".join(error for texts in errors.values() for error in texts)
        raise InvalidInputError(f"The dashboard was not saved. {details}", errors=errors)


def _metric_errors(store: Store, panel: Panel, tenants: tuple[str, ...] | None) -> Errors:
    kinds = store.fields(panel.measurement, tenants=tenants)
    if not kinds:
        return {}
    errors: Errors = {"fields": [], "aggregate": []}
    for name in panel.fields:
        if name not in kinds:
            errors["fields"].append(unknown_name("field", name, kinds))
            continue
        try:
            check_aggregate(name, kinds[name], panel.aggregate)
        except InvalidInputError as error:
            errors["aggregate"].append(error.message)
    tags = {*store.tags(panel.measurement, tenants=tenants), *IDENTITY_TAGS} - {TENANT_TAG}
    for where, names, valid_names in (
        ("group_by", panel.group_by, tags),
        ("filters", list(panel.filters), tags | PLACES),
    ):
        unknown = [name for name in names if name not in valid_names and name != TENANT_TAG]
        errors[where] = [unknown_name("tag", name, valid_names) for name in unknown]
    return errors


def _text_errors(label: str, text: str, longest: int) -> list[str]:
    if not text.strip() or len(text) > longest:
        return [f"The {label} must have 1 to {longest} characters."]
    return [] if text.isprintable() else [f"The {label} contains control characters. Remove them."]


def _list_errors(label: str, names: Sequence[str], *, max_count: int) -> list[str]:
    errors = [error for name in names for error in _text_errors(label, name, _MAX_NAME_LENGTH)]
    if len(names) > max_count:
        errors.append(f"{len(names)} {label}s are too many. Use at most {max_count}.")
    if len(set(names)) < len(names):
        errors.append(f"A {label} is named twice.")
    return errors
