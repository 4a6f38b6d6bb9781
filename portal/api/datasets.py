"""`/datasets`, `/dataset-versions`: the datasets of a tenant, their versions and files."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from datasets.catalog import (
    DATASET_SORTS,
    MAX_DESCRIPTION_LENGTH,
    VERSION_SORTS,
    DatasetChange,
    DatasetRequest,
    VersionRequest,
    cancel_version,
    create_dataset,
    create_version,
    delete_dataset,
    delete_version,
    get_dataset,
    get_upload,
    get_version,
    list_datasets,
    list_versions,
    update_dataset,
)
from datasets.manifests import MAX_ANNOUNCED, announce, read_files
from datasets.models import (
    MAX_NAME_LENGTH,
    MAX_URL_LENGTH,
    Dataset,
    DatasetVersion,
    VersionState,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.context import current_scope, database, now, portal
from protocol.datasets import MAX_PATH_LENGTH, SourceKind
from tenants.permissions import Permission

datasets = APIBlueprint(
    "Datasets",
    "/datasets",
    "Files for jobs, by name: from a source, or uploaded.",
    changes=Permission.EDIT_DATASETS,
)
dataset_versions = APIBlueprint(
    "Dataset versions",
    "/dataset-versions",
    "Versions of datasets; the files of one never change.",
    changes=Permission.EDIT_DATASETS,
)
_DIGEST = validate.Regexp("^[0-9a-f]{64}$", error="Use 64 digits 0-9 and a-f.")
_NAME = validate.Length(max=MAX_NAME_LENGTH)
_DESCRIPTION = validate.Length(max=MAX_DESCRIPTION_LENGTH)
_APPLIANCE = {
    "description": "The appliance that reads the source; required for `file://` and `nfs://`."
}
_CONNECTION = {"description": "Of the credentials for the source."}


class DatasetRequestSchema(StrictSchema):
    """A new dataset."""

    name = fields.String(required=True, validate=_NAME)
    description = fields.String(load_default="", validate=_DESCRIPTION)
    source_url = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_URL_LENGTH),
        **about(
            "`s3://bucket/prefix`, `https://host/file`, `file:///path`, "
            "`nfs://host/export/path` or `ipfs://CID`; empty for files that are uploaded."
        ),
    )
    connection_id = fields.String(load_default=None, allow_none=True, metadata=_CONNECTION)
    appliance_id = fields.String(load_default=None, allow_none=True, metadata=_APPLIANCE)


class DatasetChangeSchema(StrictSchema):
    """A change of a dataset; its source stays."""

    name = fields.String(required=True, validate=_NAME)
    description = fields.String(load_default="", validate=_DESCRIPTION)
    connection_id = fields.String(load_default=None, allow_none=True, metadata=_CONNECTION)


class VersionRequestSchema(StrictSchema):
    """A new version of a dataset."""

    appliance_id = fields.String(load_default=None, allow_none=True, metadata=_APPLIANCE)
    upload_key = fields.String(
        load_default=None,
        allow_none=True,
        validate=_DIGEST,
        **about(
            "64 hexadecimal digits of your choice: an open upload with the same key is continued."
        ),
    )


class VersionSchema(Schema):
    """A version of a dataset."""

    id = fields.String()
    tenant_id = fields.String()
    dataset_id = fields.String()
    number = fields.Integer()
    label = fields.String(**about("How jobs name it, such as `images@3`."))
    state = fields.Enum(VersionState, by_value=True)
    message = fields.String(**about("Why it waits, or has failed."))
    digest = fields.String(allow_none=True, **about("SHA-256 of its manifest, once it is ready."))
    file_count = fields.Integer()
    total_bytes = fields.Integer()
    indexed_bytes = fields.Integer(**about("How much of its source was read, while it is indexed."))
    indexing_appliance_id = fields.String(allow_none=True)
    parts_stored = fields.Boolean(**about("Whether the portal stores its content."))
    created_at = instant()
    ready_at = instant()


class DatasetSchema(Schema):
    """A dataset."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    description = fields.String()
    kind = fields.Enum(SourceKind, by_value=True)
    source_url = fields.String()
    connection_id = fields.String(allow_none=True)
    user_id = fields.String(allow_none=True)
    version_count = fields.Integer(**about("Of versions in all states."))
    newest = fields.Nested(
        VersionSchema, allow_none=True, **about("The newest version that is ready.")
    )
    created_at = instant()


class FileSchema(Schema):
    """A file of a version."""

    path = fields.String()
    size_bytes = fields.Integer()
    sha256 = fields.Function(lambda file: file.sha256.hex(), metadata={"type": "string"})
    is_executable = fields.Boolean()


class FilePageSchema(Schema):
    """Files of a version in the order of their paths."""

    items = fields.List(fields.Nested(FileSchema))
    total = fields.Integer(**about("Of all files of the version."))
    next = fields.String(allow_none=True, **about("Send it as `after`."))


class FilesQuery(StrictSchema):
    """Which files."""

    after = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_PATH_LENGTH),
        **about("Files behind this path: the `next` of the previous page."),
    )
    prefix = fields.String(
        load_default="",
        validate=validate.Length(max=MAX_PATH_LENGTH),
        **about("Files whose path begins with this."),
    )
    page_size = fields.Integer(
        load_default=DEFAULT_PAGE_SIZE, validate=validate.Range(min=1, max=MAX_PAGE_SIZE)
    )


class AnnouncementSchema(StrictSchema):
    """Parts of an upload."""

    sha256s = fields.List(
        fields.String(validate=_DIGEST),
        required=True,
        validate=validate.Length(min=1, max=MAX_ANNOUNCED),
    )


class MissingSchema(Schema):
    """What of an announcement is to be uploaded."""

    missing = fields.List(fields.String())


class DatasetQuery(page_query(DATASET_SORTS, default="name")):  # type: ignore[misc] # a class made at run time
    """Filters of the list."""

    search = fields.String(
        load_default="",
        validate=validate.Length(max=200),
        **about("A part of the name, description or source."),
    )


_VOLATILE = ("newest", "version_count")
dataset_objects = Objects(
    datasets,
    "/<dataset_id>",
    read=get_dataset,
    answer=DatasetSchema,
    model=Dataset,
    etag=DatasetSchema(exclude=_VOLATILE),
    body=DatasetRequestSchema,
    request=DatasetRequest,
)
dataset_objects.lists("List datasets.", list_datasets, query=DatasetQuery)
dataset_objects.creates(
    "Add a dataset.\n\nAn appliance reads its source at once, for version 1; without a source, "
    "begin an upload with a new version.",
    create_dataset,
)
dataset_objects.shows("Return a dataset.")
changed_objects = Objects(
    datasets,
    "/<dataset_id>",
    read=get_dataset,
    answer=DatasetSchema,
    model=Dataset,
    etag=dataset_objects.etag,
    body=DatasetChangeSchema,
    request=DatasetChange,
)
changed_objects.replaces("Rename or describe a dataset.", update_dataset)
dataset_objects.deletes(
    "Delete a dataset with its versions, if no job that has not ended uses it.", delete_dataset
)
version_objects = Objects(
    dataset_versions,
    "/<version_id>",
    read=get_version,
    answer=VersionSchema,
    model=DatasetVersion,
    etag=VersionSchema(exclude=("indexed_bytes", "message", "indexing_appliance_id")),
)
dataset_objects.lists(
    "List the versions of a dataset, newest first.",
    list_versions,
    path="/<dataset_id>/versions",
    query=page_query(VERSION_SORTS, default="-number"),
    answer=VersionSchema,
    name="list_versions",
)


@datasets.operation(
    "POST",
    "/<dataset_id>/versions",
    body=VersionRequestSchema,
    answer=VersionSchema,
    status=HTTPStatus.CREATED,
)
def add_version(dataset_id: str, body: dict[str, Any]) -> DatasetVersion:
    """Begin a version: an appliance reads the source again, or files are uploaded.

    An upload announces its parts, sends those that are missing, then the pages and the head of its
    manifest; `vedette dataset upload` does that.
    """
    with database() as session:
        request = VersionRequest(**body)
        return create_version(session, current_scope(), dataset_id, request, now=now())


version_objects.shows("Return a version.")
version_objects.deletes(
    "Delete a version that no job uses; its number is not given again.", delete_version
)
version_objects.acts("Cancel a version that is being read or uploaded.", cancel_version, "cancel")


@dataset_versions.operation("GET", "/<version_id>/files", query=FilesQuery, answer=FilePageSchema)
def files(version_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List the files of a version in the order of their paths."""
    with database() as session:
        version = get_version(session, current_scope(), version_id)
    page = read_files(
        portal().sessions,
        portal().parts(),
        version,
        after=query["after"],
        prefix=query["prefix"],
        limit=query["page_size"],
    )
    return {"items": page.files, "total": version.file_count, "next": page.next_path}


@dataset_versions.operation(
    "POST", "/<version_id>/missing-parts", body=AnnouncementSchema, answer=MissingSchema
)
def announce_parts(version_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Announce parts of an upload, and return which of them are missing."""
    with database() as session:
        version = get_upload(session, current_scope(), version_id)
        return {"missing": sorted(announce(session, version, set(body["sha256s"]), now()))}
