"""Custom dashboards as requests and as files: their schemas, and the changes that a file makes."""

from typing import Any

from marshmallow import RAISE, Schema, fields, validate

from alerting.states import Comparison, Severity
from dash_app.custom.dashboards import DashboardRequest
from dash_app.custom.files import (
    MAX_DASHBOARDS,
    DashboardChange,
    apply_dashboards,
    check_change_metrics,
    plan_dashboards,
)
from dash_app.custom.panels import ChartKind, Panel
from dash_app.custom.scales import NAMED_UNITS, PanelThreshold
from portal.context import current_scope, database, now, portal
from timeseries.store import Aggregate


class _StrictSchema(Schema):
    class Meta:
        """marshmallow's options."""

        unknown = RAISE


class ThresholdSchema(_StrictSchema):
    """A value above or below which a panel shows a severity."""

    value = fields.Float(required=True, metadata={"description": "In the field's own unit."})
    severity = fields.Enum(Severity, by_value=True, load_default=Severity.WARNING)
    comparison = fields.Enum(Comparison, by_value=True, load_default=Comparison.ABOVE)
    label = fields.String(load_default="")


class PanelSchema(_StrictSchema):
    """A panel of a dashboard."""

    title = fields.String(required=True)
    chart = fields.Enum(ChartKind, by_value=True, load_default=ChartKind.LINE)
    measurement = fields.String(required=True, metadata={"example": "gpu"})
    # `fields` is reserved by marshmallow.
    field_names = fields.List(
        fields.String(),
        required=True,
        data_key="fields",
        attribute="fields",
        metadata={"example": ["power_watts"], "description": "With the same unit, but in tables."},
    )
    aggregate = fields.Enum(
        Aggregate,
        by_value=True,
        load_default=Aggregate.AVG,
        metadata={"description": "Of a series in each step, or over the whole range."},
    )
    group_by = fields.List(
        fields.String(),
        load_default=list,
        metadata={"description": "Tags that split the result into series."},
    )
    filters = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.String()),
        load_default=dict,
        metadata={
            "description": "Tag to allowed values; appliances by name or ID. `$gpu` as the only "
            "value makes a variable, whose value is chosen in the toolbar. `site` and `region` are "
            "those of the appliance, if the samples have no such tags."
        },
    )
    is_wide = fields.Boolean(load_default=False, metadata={"description": "Takes a whole row."})
    unit = fields.String(
        load_default="",
        metadata={
            "description": f"Instead of the field's: {', '.join(NAMED_UNITS)}, or a text that "
            "follows the numbers.",
            "example": "tokens/s",
        },
    )
    axis_min = fields.Float(
        load_default=None,
        allow_none=True,
        metadata={"description": "Where the axis, or the colors of a heat map, begin."},
    )
    axis_max = fields.Float(
        load_default=None, allow_none=True, metadata={"description": "Where they end."}
    )
    thresholds = fields.List(fields.Nested(ThresholdSchema), load_default=list)


class DashboardRequestSchema(_StrictSchema):
    """A dashboard as its author defines it."""

    name = fields.String(required=True)
    description = fields.String(load_default="")
    is_shared = fields.Boolean(
        load_default=False, metadata={"description": "All users of the tenant see it."}
    )
    panels = fields.List(fields.Nested(PanelSchema), load_default=list)


class DashboardFileSchema(_StrictSchema):
    """The dashboards of a file."""

    dashboards = fields.List(
        fields.Nested(DashboardRequestSchema),
        required=True,
        validate=validate.Length(max=MAX_DASHBOARDS),
    )
    is_dry_run = fields.Boolean(
        load_default=False, metadata={"description": "Only return what would change."}
    )


def applied(requests: list[DashboardRequest], *, is_dry_run: bool) -> list[DashboardChange]:
    """Return the changes of a file, made unless it is a dry run."""
    scope = current_scope()
    with database() as session:
        changes = plan_dashboards(session, scope, requests)
    check_change_metrics(portal().store, scope, changes)
    if not is_dry_run:
        with database() as session:
            # Planned again: another user may have changed dashboards meanwhile.
            changes = plan_dashboards(session, scope, requests)
            apply_dashboards(session, scope, changes, now=now())
    return changes


def dashboard_request(body: dict[str, Any]) -> DashboardRequest:
    """Return the request of a loaded body."""
    return DashboardRequest(**{**body, "panels": [_panel(panel) for panel in body["panels"]]})


def _panel(body: dict[str, Any]) -> Panel:
    thresholds = [PanelThreshold(**threshold) for threshold in body["thresholds"]]
    return Panel(**{**body, "thresholds": thresholds})
