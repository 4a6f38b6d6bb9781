"""`/data-connections`: credentials for the sources of datasets."""

from marshmallow import Schema, fields, validate

from datasets.connections import (
    CONNECTION_SORTS,
    MAX_SECRET_LENGTH,
    ConnectionRequest,
    create_connection,
    delete_connection,
    get_connection,
    list_connections,
    update_connection,
)
from datasets.models import MAX_NAME_LENGTH, MAX_URL_LENGTH, DataConnection
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from tenants.permissions import Permission

data_connections = APIBlueprint(
    "Data connections",
    "/data-connections",
    "Credentials for buckets and other sources of datasets.",
    changes=Permission.MANAGE_DATA,
)
_KEPT = "Empty stays as it is; it is never returned."


def _text(maximum: int, description: str) -> fields.String:
    return fields.String(
        load_default="", validate=validate.Length(max=maximum), **about(description)
    )


class ConnectionRequestSchema(StrictSchema):
    """A new data connection, or the replacement of one."""

    name = fields.String(required=True, validate=validate.Length(max=MAX_NAME_LENGTH))
    url = fields.String(
        required=True,
        validate=validate.Length(max=MAX_URL_LENGTH),
        **about(
            "The sources that it is for begin with this: `s3://bucket`, "
            "`https://host/` or `ipfs://`."
        ),
    )
    endpoint_url = _text(
        MAX_URL_LENGTH, "Of a server with S3's API, or of an IPFS gateway; empty is the default."
    )
    region = _text(100, "Of the bucket.")
    access_key_id = _text(200, "Of the bucket's credentials.")
    secret_access_key = _text(MAX_SECRET_LENGTH, _KEPT)
    session_token = _text(MAX_SECRET_LENGTH, _KEPT)
    bearer_token = _text(MAX_SECRET_LENGTH, f"For HTTPS and IPFS gateways. {_KEPT}")


class ConnectionSchema(Schema):
    """A data connection, without its secrets."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    url = fields.String()
    endpoint_url = fields.String()
    region = fields.String()
    access_key_id = fields.String()
    has_secrets = fields.Boolean(**about("Whether credentials are stored."))
    created_at = instant()


objects = Objects(
    data_connections,
    "/<connection_id>",
    read=get_connection,
    answer=ConnectionSchema,
    model=DataConnection,
    body=ConnectionRequestSchema,
    request=ConnectionRequest,
)
objects.lists(
    "List data connections.",
    list_connections,
    query=page_query(CONNECTION_SORTS, default="name"),
)
objects.creates("Add a data connection.", create_connection)
objects.shows("Return a data connection.")
objects.replaces(
    "Replace a data connection; secrets that are empty stay, unless its address changes.",
    update_connection,
)
objects.deletes("Delete a data connection that no dataset uses.", delete_connection)
