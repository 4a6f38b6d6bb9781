"""Contents of datasets, which `access` receives and sends; this describes the operations."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from datasets.archives import MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES
from tenants.permissions import Permission

_VERSION = "/api/v1/dataset-versions/{version_id}"
DATA_PATHS = (
    f"{_VERSION}/parts/{{sha256}}",
    f"{_VERSION}/pages/{{sha256}}",
    f"{_VERSION}/head",
    f"{_VERSION}/archive",
)
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_TAR = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
_JSON = {
    "application/json": {
        "schema": {"type": "object"},
        "example": {"file_count": 0, "total_bytes": 0, "pages": []},
    }
}
_VERSION_JSON = {"application/json": {"schema": {"type": "object"}}}
_READS = f"Requires permission to {Permission.VIEW.value} (token scopes: all but `audit`)."
_CHANGES = f"Requires permission to {Permission.EDIT_DATASETS.value} (token scopes: `datasets`)."
_READ_ERRORS = (401, 403, 404, 409, 422, 429, 503)
_CHANGE_ERRORS = (*_READ_ERRORS, 400, 413, 415)


def data_operations() -> dict[str, dict[str, Any]]:
    """Return the descriptions of the operations, by path and method."""
    parts, pages, head, archive = (path.replace("{", "<").replace("}", ">") for path in DATA_PATHS)
    return {
        parts: {
            "get": _reading("downloadPart", "Download a part of a version's content."),
            "put": _storing("uploadPart", "Upload a part of up to 64 MiB of a version's content."),
        },
        pages: {
            "get": _reading("downloadPage", "Download a page of a version's list of files."),
            "put": _storing("uploadPage", "Upload a page of a version's list of files."),
        },
        head: {
            "get": _reading("downloadHead", "Return the head of a version's manifest.", _JSON),
            "put": _storing(
                "finishUpload", "Finish an upload: its files are checked, and it is ready.", _JSON
            ),
        },
        archive: {
            "put": _storing(
                "uploadArchive",
                f"Upload up to {MAX_ARCHIVE_FILES:,} files at once, as an archive of up to "
                f"{MAX_ARCHIVE_BYTES // 1024**2} MiB.",
                _TAR,
            )
        },
    }


def _reading(ident: str, summary: str, content: Mapping[str, Any] = _BINARY) -> dict[str, Any]:
    return {
        "tags": ["Dataset versions"],
        "operationId": ident,
        "summary": summary,
        "description": _READS,
        "responses": {
            "200": {"description": "The content.", "content": content},
            **_errors(_READ_ERRORS),
        },
    }


def _storing(ident: str, summary: str, content: Mapping[str, Any] = _BINARY) -> dict[str, Any]:
    success = {"200": {"description": "The version.", "content": _VERSION_JSON}}
    if content is _BINARY:
        success = {"204": {"description": "Stored."}}
    return {
        "tags": ["Dataset versions"],
        "operationId": ident,
        "summary": summary,
        "description": _CHANGES,
        "requestBody": {"description": "The content.", "required": True, "content": content},
        "responses": {**success, **_errors(_CHANGE_ERRORS)},
    }


def _errors(statuses: tuple[int, ...]) -> dict[str, Any]:
    """Return references to the responses that flask-smorest has added."""
    return {str(status): HTTPStatus(status).name for status in sorted(statuses)}
