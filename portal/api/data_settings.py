"""`/tenants/ID/data-settings`: where a tenant's results go, and who serves its datasets."""

from marshmallow import fields

from datasets.settings import DataSettings, read_settings, set_settings
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about
from tenants.models import Tenant
from tenants.permissions import Permission

data_settings = APIBlueprint(
    "Data settings",
    "/tenants",
    "Where the results of a tenant's jobs go, and from where its appliances fetch datasets.",
    changes=Permission.MANAGE_DATA,
)


class DataSettingsSchema(StrictSchema):
    """The settings."""

    results_connection_id = fields.String(
        load_default=None,
        allow_none=True,
        **about("The data connection of the bucket for results; null is the portal's store."),
    )
    results_retention_days = fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        **about("Results are deleted after so many days; null is as long as their jobs."),
    )
    allows_peers = fields.Boolean(
        load_default=False,
        **about("Whether appliances of one site fetch datasets from each other first."),
    )


objects = Objects(
    data_settings,
    "/<tenant_id>/data-settings",
    read=read_settings,
    answer=DataSettingsSchema,
    model=Tenant,
    body=DataSettingsSchema,
    request=DataSettings,
)
objects.shows("Return where a tenant's results go, and who serves its datasets.")
objects.replaces("Set where a tenant's results go, and who serves its datasets.", set_settings)
