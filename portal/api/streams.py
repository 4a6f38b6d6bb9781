"""Operations on running jobs that stream: `access` serves them, and this describes them."""

from http import HTTPStatus
from typing import Any

from apispec import APISpec
from werkzeug.routing import Map, Rule

from portal.api.data_streams import DATA_PATHS, data_operations
from tenants.permissions import Permission

_JOB_PATHS = ("/api/v1/jobs/{job_id}/follow", "/api/v1/jobs/{job_id}/files")
PATHS = (*_JOB_PATHS, *DATA_PATHS)
_TAR = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}


def add_streams(spec: APISpec) -> None:
    """Add the operations to the document."""
    follow, files = (path.replace("{", "<").replace("}", ">") for path in _JOB_PATHS)
    operations: dict[str, dict[str, Any]] = {
        follow: {"get": _FOLLOW},
        files: {"get": _FILES_OUT, "put": _FILES_IN},
        **data_operations(),
    }
    for rule in Map([Rule(path, defaults={}) for path in operations]).iter_rules():
        spec.path(rule=rule, operations=operations[rule.rule], parameters=[])


def _query(name: str, description: str, schema: dict[str, Any], **settings: bool) -> dict[str, Any]:
    return {"in": "query", "name": name, "description": description, "schema": schema, **settings}


def _errors(*statuses: int) -> dict[str, Any]:
    """Return references to the responses that flask-smorest has added."""
    return {str(status): HTTPStatus(status).name for status in statuses}


_PATH = _query(
    "path",
    "In the container; a relative one begins in the job's working directory.",
    {"type": "string", "minLength": 1, "maxLength": 4096},
    required=True,
)
_NEEDS_SHELLS = (
    f"Requires permission to {Permission.OPEN_SHELLS.value} (token scopes: `shells`); for the jobs "
    "of other users also to stop them."
)
_FOLLOW = {
    "tags": ["Job output"],
    "operationId": "followJob",
    "summary": "Follow a job's state and log as server-sent events.",
    "description": "The events are `state`, `log`, `end` and `problem`; the id of each is a "
    "position, after which a client that connects again continues. "
    f"Requires permission to {Permission.VIEW.value} (token scopes: all but `audit`).",
    "parameters": [
        _query(
            "after",
            "Continue after this position, as with the header `Last-Event-ID`.",
            {"type": "string", "pattern": r"^\d+:\d*$", "example": "1:4096"},
        ),
        _query(
            "tail_bytes",
            "Begin this long before the end of the latest attempt's log.",
            {"type": "integer", "minimum": 0},
        ),
    ],
    "responses": {
        "200": {
            "description": "Events until the job ends.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **_errors(401, 403, 404, 422, 429),
    },
}
_FILES_OUT = {
    "tags": ["Job output"],
    "operationId": "copyFilesFromJob",
    "summary": "Copy a file or folder out of a running job.",
    "description": f"The response is cut off if the copy fails. {_NEEDS_SHELLS}",
    "parameters": [_PATH],
    "responses": {
        "200": {"description": "A tar archive.", "content": _TAR},
        **_errors(401, 403, 404, 409, 422, 429),
    },
}
_FILES_IN = {
    "tags": ["Job output"],
    "operationId": "copyFilesIntoJob",
    "summary": "Copy files into a folder of a running job.",
    "description": "Nothing changes in the folder before all of the archive has arrived; folders "
    f"that exist are merged. {_NEEDS_SHELLS}",
    "parameters": [_PATH],
    "requestBody": {"description": "A tar archive.", "required": True, "content": _TAR},
    "responses": {
        "204": {"description": "Copied."},
        **_errors(400, 401, 403, 404, 409, 413, 422, 429),
    },
}
