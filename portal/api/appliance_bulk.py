"""`/appliances/bulk`: what is done to several appliances at once, to all of them or to none."""

from typing import Any

from marshmallow import Schema, fields, validate

from core.paging import MAX_PAGE_SIZE
from portal.api.appliances import ApplianceSchema
from portal.api.blueprint import resource
from portal.api.schemas import StrictSchema
from portal.bulk import BulkAction, BulkRequest, change_all
from portal.context import current_scope, database, now
from tenants.permissions import Permission

appliance_bulk = resource(
    "Appliances in bulk",
    "/appliances/bulk",
    "Several appliances at once.",
    changes=Permission.MANAGE_APPLIANCES,
)


class BulkRequestSchema(StrictSchema):
    """What to do to which appliances."""

    appliance_ids = fields.List(
        fields.String(validate=validate.Length(max=36)),
        required=True,
        validate=validate.Length(min=1, max=MAX_PAGE_SIZE),
    )
    action = fields.Enum(BulkAction, by_value=True, required=True)
    labels = fields.Dict(
        keys=fields.String(),
        values=fields.String(allow_none=True),
        load_default=dict,
        metadata={
            "description": "For `label`: put on in place of those of the same key; null takes "
            "the key off."
        },
    )
    site = fields.String(
        load_default=None, allow_none=True, metadata={"description": "For `move`."}
    )
    region = fields.String(
        load_default=None, allow_none=True, metadata={"description": "For `move`."}
    )


class BriefApplianceSchema(ApplianceSchema):
    """An enrolled host without what is large."""

    class Meta:
        """marshmallow's options."""

        exclude = ("inventory", "health")


class BulkResultSchema(Schema):
    """What the appliances are now, in the order in which they were named."""

    action = fields.Enum(BulkAction, by_value=True)
    items = fields.List(fields.Nested(BriefApplianceSchema))


@appliance_bulk.operation("POST", body=BulkRequestSchema, answer=BulkResultSchema)
def change(body: dict[str, Any]) -> dict[str, Any]:
    """Drain, undrain, label, move, retire or reinstate several appliances: all of them or none.

    Where one can't be changed none is, and `errors` says why by the appliance's id.
    """
    request = BulkRequest(**body)
    with database() as session:
        changed = change_all(session, current_scope(), request, now=now())
        return {"action": request.action, "items": changed}
