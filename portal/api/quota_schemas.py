"""What the API says of quotas and their use."""

from typing import Any

from marshmallow import Schema, fields, validate

from portal.api.schemas import StrictSchema, instant
from portal.showing.platform import TenantUse
from tenants.customers.quotas import MAX_BYTES, MAX_COUNT


def _limit(most: int) -> fields.Integer:
    return fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        validate=validate.Range(0, most),
        metadata={"description": "The most; null is without a limit."},
    )


class QuotaSchema(StrictSchema):
    """The most that a tenant may have; what is left out is without a limit."""

    max_appliances = _limit(MAX_COUNT)
    max_gpus = _limit(MAX_COUNT)
    max_active_jobs = _limit(MAX_COUNT)
    max_series = _limit(MAX_COUNT)
    max_storage_bytes = _limit(MAX_BYTES)


class UseSchema(Schema):
    """How much of one thing a tenant has."""

    name = fields.String()
    used = fields.Integer(allow_none=True, metadata={"description": "Null where it is not known."})
    most = fields.Integer(allow_none=True, metadata={"description": "Null is without a limit."})
    is_near = fields.Boolean(metadata={"description": "From 80 % of the limit on."})
    is_reached = fields.Boolean()


class TenantUseSchema(Schema):
    """What a tenant has against its quotas."""

    quotas = fields.Nested(QuotaSchema)
    uses = fields.List(fields.Nested(UseSchema))
    storage_measured_at = instant()


def shaped_use(use: TenantUse) -> dict[str, Any]:
    """Return a tenant's use as its schema has it."""
    return {
        "quotas": use.limits,
        "uses": use.uses,
        "storage_measured_at": use.measured_at,
    }
