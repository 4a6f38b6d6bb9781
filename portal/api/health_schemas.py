"""The health of an appliance in answers of the API."""

from marshmallow import Schema, fields

from jobqueue.executors.health import HealthReason, HealthState


class HealthFindingSchema(Schema):
    """One thing that is wrong."""

    reason = fields.String(
        metadata={
            "description": "A stable word; docs/health.md explains each.",
            "enum": [reason.value for reason in HealthReason],
        }
    )
    state = fields.String(metadata={"enum": [state.value for state in HealthState]})
    detail = fields.String(metadata={"description": "A sentence with the figures."})


class GPUHealthSchema(Schema):
    """One GPU with everything that is wrong with it."""

    index = fields.Integer()
    uuid = fields.String()
    state = fields.String(metadata={"enum": [state.value for state in HealthState]})
    findings = fields.List(fields.Nested(HealthFindingSchema))
    tier = fields.String(metadata={"description": "What it is worth to a job; empty is unknown."})


class ApplianceHealthSchema(Schema):
    """What an appliance's agent judges of it."""

    state = fields.String(metadata={"enum": [state.value for state in HealthState]})
    findings = fields.List(fields.Nested(HealthFindingSchema))
    gpus = fields.List(fields.Nested(GPUHealthSchema))
    appliance_class = fields.String(metadata={"description": "Such as `8 x flagship` or `cpu`."})
