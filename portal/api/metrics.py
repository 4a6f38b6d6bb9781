"""`/metrics`: the catalogue of what is measured, for pickers and programs."""

from typing import Any

from marshmallow import Schema, fields

from core.errors import NotFoundError
from core.units import unit_of
from portal.api.blueprint import resource
from portal.api.schemas import page_of, whole_list
from portal.context import current_scope, portal

metrics = resource("Metrics", "/metrics", "What is measured.")


class MeasurementSchema(Schema):
    """Something that is measured."""

    name = fields.String()


class FieldSchema(Schema):
    """A field with the unit that its name declares."""

    name = fields.String()
    type = fields.String()
    unit = fields.String()


class MeasurementDetailSchema(MeasurementSchema):
    """Something that is measured, with its fields and tags."""

    # marshmallow keeps `fields` for itself
    field_list = fields.List(fields.Nested(FieldSchema), data_key="fields", attribute="fields")
    tags = fields.List(fields.String())


@metrics.operation("GET", answer=page_of(MeasurementSchema))
def list_measurements() -> dict[str, Any]:
    """List measurements that have samples of your tenant."""
    names = portal().store.measurements(tenants=current_scope().tenants)
    return whole_list([{"name": name} for name in names])


@metrics.operation("GET", "/<measurement>", answer=MeasurementDetailSchema)
def show_measurement(measurement: str) -> dict[str, Any]:
    """Return the fields with their units, and the tags, of your tenant's samples."""
    store, tenants = portal().store, current_scope().tenants
    found = [
        {"name": name, "type": kind, "unit": unit_of(name).symbol}
        for name, kind in store.fields(measurement, tenants=tenants).items()
    ]
    if not found:
        raise NotFoundError.of("measurement", measurement)
    return {
        "name": measurement,
        "fields": found,
        "tags": store.tags(measurement, tenants=tenants),
    }
