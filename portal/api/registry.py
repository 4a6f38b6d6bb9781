"""Registers all resources of the API with the app and its OpenAPI document."""

import json
from functools import partial
from threading import Lock

from flask import Flask, Response, jsonify
from flask_smorest import Api

import portal.api
from core.errors import UnavailableError
from portal.api.blueprint import PREFIX, APIBlueprint
from portal.api.dashboards import dashboard_file_schema
from portal.api.job_requests import job_file_schema
from portal.api.public import install_public_api
from portal.api.schemas import ErrorSchema
from portal.api.streams import add_streams
from portal.blueprints import blueprints_of
from portal.context import current_scope
from tenants.permissions import Permission

JOB_SCHEMA_PATH = "/api/v1/job.schema.json"
DASHBOARD_SCHEMA_PATH = "/api/v1/dashboard.schema.json"
RESOURCES = blueprints_of(portal.api, APIBlueprint)

_documents: dict[bool, bytes] = {}
_making = Lock()


def install_api(app: Flask) -> None:
    """Register every resource with the app."""
    for blueprint in RESOURCES:
        app.register_blueprint(blueprint)
    install_public_api(app)
    app.add_url_rule(f"{PREFIX}/openapi.json", "openapi_document", _openapi_document)
    app.add_url_rule(
        f"{PREFIX}/operator-openapi.json", "operator_openapi_document", _operator_document
    )
    for endpoint, path, schema in (
        ("job_schema", JOB_SCHEMA_PATH, job_file_schema()),
        ("dashboard_schema", DASHBOARD_SCHEMA_PATH, dashboard_file_schema()),
    ):
        app.add_url_rule(path, endpoint, partial(jsonify, schema))


def _openapi_document() -> Response:
    return _described(is_for_operators=False)


def _operator_document() -> Response:
    """Return the document of the operations that only operators may use, for them alone."""
    current_scope().require_unlimited()
    current_scope().require(Permission.OPERATE)
    return _described(is_for_operators=True)


def _described(*, is_for_operators: bool) -> Response:
    """Return a document; while one is made, the next request is told to come again.

    To make it computes for seconds: no more than one thread does, and none waits for it.
    """
    if is_for_operators not in _documents:
        if not _making.acquire(blocking=False):
            raise UnavailableError("The OpenAPI document is being made. Retry in a few seconds.")
        try:
            if is_for_operators not in _documents:  # the last request may just have made it
                _documents[is_for_operators] = _document(is_for_operators=is_for_operators)
        finally:
            _making.release()
    return Response(_documents[is_for_operators], mimetype="application/json")


def _document(*, is_for_operators: bool) -> bytes:
    """Return the OpenAPI document: of all operations, or of those of operators.

    It is made when it is first asked for, which takes longer than all else that a server does
    before it answers; in an app of its own, as no blueprint can be added to one that answers.
    """
    api = _DescribedAPI(Flask("openapi"), spec_kwargs=_SPEC)
    components = api.spec.components
    components.security_scheme("token", {"type": "http", "scheme": "bearer"})
    components.security_scheme("password", {"type": "http", "scheme": "basic"})
    text = {"schema": {"type": "string"}}
    # flask-smorest's, which are also lazy, say neither that they are optional nor what they do.
    components.parameter("IF_MATCH", "header", {**_IF_MATCH, **text}, lazy=True)
    components.parameter("IF_NONE_MATCH", "header", {**_IF_NONE_MATCH, **text}, lazy=True)
    components.header("ETAG", {"description": "Version of the object.", **text}, lazy=True)
    if not is_for_operators:
        add_streams(api.spec)
    for blueprint in RESOURCES:
        if blueprint.is_for_operators or not is_for_operators:
            api.register_blueprint(blueprint)
    return json.dumps(api.spec.to_dict(), indent=2).encode()


class _DescribedAPI(Api):  # type: ignore[misc] # flask-smorest ships no types
    ERROR_SCHEMA = ErrorSchema


_DESCRIPTION = (
    "Send an API token as `Authorization: Bearer vdt_...`. To get one, call `POST /api/v1/tokens` "
    "with email address and password (HTTP Basic); send the code of a second factor in the header "
    "`X-Vedette-OTP`. Lists are paged. All errors have the same format."
)
_SPEC = {
    "title": "Vedette",
    "version": "v1",
    "openapi_version": "3.0.3",
    "info": {"description": _DESCRIPTION},
    "security": [{"token": []}],
}
_IF_MATCH = {
    "name": "If-Match",
    "description": "The `ETag` that you read. Returns 412 if the object has changed since.",
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "description": "The `ETag` that you have. Returns 304 if it is still current.",
}
