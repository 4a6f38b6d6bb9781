"""`/jobs/ID/artifacts`: the files in a job's output folders."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Response, redirect, request
from flask.typing import ResponseReturnValue
from marshmallow import Schema, fields, validate

from datasets.buckets import bucket_of
from jobqueue.results.artifacts import (
    ARTIFACT_SORTS,
    all_contents,
    content_of,
    list_artifacts,
    read_range,
)
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    file_response,
    instant,
    page_of,
    sort_field,
    whole_list,
)
from portal.context import current_scope, database, portal
from portal.presenters.artifacts import (
    archive,
    bucket_url,
    content_type,
    disposition,
    one_of_few,
    part_reader,
)
from protocol.datasets import MAX_PATH_LENGTH

job_artifacts = APIBlueprint(
    "Job results", "/jobs", "The files in the output folders of jobs, as they were last uploaded."
)
_HEAD_BYTES = 16
_PATH_LENGTH = validate.Length(max=MAX_PATH_LENGTH)


class ArtifactQuery(PageQuery):
    """Filter and page of the files."""

    prefix = fields.String(
        load_default="", validate=_PATH_LENGTH, **about("Only files whose paths begin with this.")
    )
    sort = sort_field(ARTIFACT_SORTS, default="path")


class ArtifactSchema(Schema):
    """A file in an output folder of a job."""

    path = fields.String(**about("In the job's container."))
    size_bytes = fields.Integer()
    sha256 = fields.String()
    attempt_number = fields.Integer(
        attribute="attempt.number",
        dump_default=None,
        allow_none=True,
        **about("The attempt that wrote it."),
    )
    modified_at = instant()
    uploaded_at = instant()


class ArtifactPartSchema(Schema):
    """A part of a file."""

    sha256 = fields.String()
    size_bytes = fields.Integer()
    url = fields.String(
        allow_none=True,
        **about(
            "Where it is in the tenant's bucket, for an hour; null in the portal's "
            "store, from which the file is downloaded with `Range`."
        ),
    )


class FileQuery(StrictSchema):
    """The file to download."""

    path = fields.String(
        required=True,
        validate=validate.Length(min=1, max=MAX_PATH_LENGTH),
        **about("As in the list.", example="/out/model.pt"),
    )


class ArchiveQuery(StrictSchema):
    """The files to download."""

    prefix = fields.String(
        load_default="", validate=_PATH_LENGTH, **about("Only files whose paths begin with this.")
    )


@job_artifacts.operation(
    "GET", "/<job_id>/artifacts", query=ArtifactQuery, answer=page_of(ArtifactSchema)
)
def list_all(job_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List the files in a job's output folders."""
    with database() as session:
        return envelope(list_artifacts(session, current_scope(), job_id, **query))


@job_artifacts.operation(
    "GET",
    "/<job_id>/artifacts/file",
    query=FileQuery,
    responses={
        **file_response("The content.", "application/octet-stream"),
        HTTPStatus.FOUND: {"description": "It is in the tenant's bucket, at this address."},
        HTTPStatus.PARTIAL_CONTENT: {"description": "The bytes of the header `Range`."},
    },
)
def download(job_id: str, query: dict[str, Any]) -> ResponseReturnValue:
    """Download a file; the header `Range` may ask for a part of it."""
    with database() as session:
        content = content_of(session, current_scope(), job_id, query["path"])
    if url := bucket_url(content):
        return redirect(url, HTTPStatus.FOUND)
    read, size = part_reader(), content.size_bytes
    wanted = request.range.range_for_length(size) if request.range is not None else None
    start, end = wanted or (0, size)
    headers: Mapping[str, str] = {
        "Content-Disposition": disposition(content.path),
        "Accept-Ranges": "bytes",
        "Content-Length": str(end - start),
        "ETag": f'"{content.sha256}"',
    }
    if request.range is not None and wanted is None and size:
        unsatisfied = {"Content-Range": f"bytes */{size}"}
        return Response(status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=unsatisfied)
    if wanted:
        headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    head = b"".join(read_range(content, read, 0, min(_HEAD_BYTES, size)))
    return Response(
        one_of_few(content.tenant_id, read_range(content, read, start, end)),
        status=HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK,
        mimetype=content_type(content.path, head),
        headers=headers,
    )


@job_artifacts.operation(
    "GET", "/<job_id>/artifacts/parts", query=FileQuery, answer=page_of(ArtifactPartSchema)
)
def list_parts(job_id: str, query: dict[str, Any]) -> dict[str, Any]:
    """List the parts of a file, for clients that fetch those in a bucket by themselves."""
    with database() as session:
        content = content_of(session, current_scope(), job_id, query["path"])
        idents = {part.connection_id for part in content.parts}
        buckets = {ident: bucket_of(session, ident, portal().secrets) for ident in idents}
    return whole_list(
        [
            {
                "sha256": part.sha256,
                "size_bytes": part.size_bytes,
                "url": bucket.get_url(part.sha256)
                if (bucket := buckets[part.connection_id])
                else None,
            }
            for part in content.parts
        ]
    )


@job_artifacts.operation(
    "GET",
    "/<job_id>/artifacts/archive",
    query=ArchiveQuery,
    responses=file_response("The archive.", "application/zip"),
)
def download_all(job_id: str, query: dict[str, Any]) -> Response:
    """Download the files of a job, or those below a path, as a ZIP archive."""
    with database() as session:
        contents = all_contents(session, current_scope(), job_id, prefix=query["prefix"])
    return Response(
        one_of_few(current_scope().tenant_id or "", archive(contents, part_reader())),
        mimetype="application/zip",
        headers={"Content-Disposition": disposition(f"results-{job_id}.zip")},
    )
