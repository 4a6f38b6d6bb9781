"""`/alertmanager`: alerts and silences for amtool and other clients of Alertmanager's API v2.

Their base address is `/api/v1/alertmanager`. What Alertmanager has and Vedette has not, such as
posted alerts, is missing.
"""

from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from flask import Response, abort, jsonify, make_response
from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from alerting.compatibility.alertmanager import (
    export_alerts,
    export_silences,
    exported_silence,
    import_silence,
    receiver_names,
)
from alerting.models import Silence
from alerting.notification.silences import expire_silence, get_silence
from core.errors import InvalidInputError
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, about
from portal.context import current_scope, database, now, public_url
from tenants.permissions import Permission

alertmanager = APIBlueprint(
    "Alertmanager",
    "/alertmanager/api/v2",
    "Alerts and silences in the form of Alertmanager's API v2.",
    changes=Permission.EDIT_ALERTS,
)


class FilterQuery(StrictSchema):
    """Matchers of which all must match."""

    filter = fields.List(fields.String(), load_default=list)


class AlertFilterQuery(FilterQuery):
    """Which alerts to list."""

    active = fields.Boolean(load_default=True)
    silenced = fields.Boolean(load_default=True)
    inhibited = fields.Boolean(load_default=True)
    unprocessed = fields.Boolean(load_default=True)
    receiver = fields.String(load_default="", **about("Pattern of the name of a receiver."))


class NameSchema(Schema):
    """Something with a name."""

    name = fields.String()


class ExportedAlertSchema(Schema):
    """A firing alert."""

    labels = fields.Dict(keys=fields.String(), values=fields.String())
    annotations = fields.Dict(keys=fields.String(), values=fields.String())
    startsAt = fields.String()
    endsAt = fields.String()
    updatedAt = fields.String()
    fingerprint = fields.String()
    receivers = fields.List(fields.Nested(NameSchema))
    status = fields.Dict()
    generatorURL = fields.String()


class MatcherSchema(StrictSchema):
    """A matcher."""

    name = fields.String(required=True)
    value = fields.String(required=True)
    isRegex = fields.Boolean(required=True)
    isEqual = fields.Boolean(load_default=True)


class ImportedSilenceSchema(StrictSchema):
    """A new silence, or with an `id` the replacement of one."""

    id = fields.String(load_default=None, allow_none=True)
    matchers = fields.List(fields.Nested(MatcherSchema), required=True)
    startsAt = fields.AwareDateTime(format="iso", required=True)
    endsAt = fields.AwareDateTime(format="iso", required=True)
    comment = fields.String(load_default="")
    createdBy = fields.String(load_default="", **about("Ignored: it is the current user."))


class ExportedSilenceSchema(Schema):
    """A silence."""

    id = fields.String()
    status = fields.Dict()
    updatedAt = fields.String()
    comment = fields.String()
    createdBy = fields.String()
    startsAt = fields.String()
    endsAt = fields.String()
    matchers = fields.List(fields.Nested(MatcherSchema))


class SilenceIDSchema(Schema):
    """The ID of a new silence."""

    silenceID = fields.String()


class StatusSchema(Schema):
    """The status of the server, in Alertmanager's fields."""

    cluster = fields.Dict()
    versionInfo = fields.Dict()
    config = fields.Dict()
    uptime = fields.String()


@alertmanager.operation(
    "GET", "/alerts", query=AlertFilterQuery, answer=ExportedAlertSchema(many=True)
)
def list_alerts(query: dict[str, Any]) -> list[dict[str, Any]]:
    """List firing alerts."""
    with database() as session:
        alerts = export_alerts(
            session,
            current_scope(),
            filters=query["filter"],
            receiver=query["receiver"],
            now=now(),
            public_url=public_url(),
        )
    return [
        alert
        for alert in alerts
        if (query["active"] or alert["status"]["state"] != "active")
        and (query["silenced"] or not alert["status"]["silencedBy"])
        and (query["inhibited"] or not alert["status"]["inhibitedBy"])
    ]


@alertmanager.operation(
    "GET", "/silences", query=FilterQuery, answer=ExportedSilenceSchema(many=True)
)
def list_silences(query: dict[str, Any]) -> list[dict[str, Any]]:
    """List silences, also those that ended within five days."""
    with database() as session:
        return export_silences(session, current_scope(), filters=query["filter"], now=now())


_INVALID = {
    "description": "Invalid; of a silence a text, as Alertmanager's.",
    "content": {
        "application/json": {
            "schema": {"oneOf": [{"$ref": "#/components/schemas/Error"}, {"type": "string"}]}
        }
    },
}


@alertmanager.operation(
    "POST",
    "/silences",
    body=ImportedSilenceSchema,
    answer=SilenceIDSchema,
    responses={HTTPStatus.BAD_REQUEST: _INVALID},
)
def save_silence(body: dict[str, Any]) -> dict[str, str]:
    """Add a silence, or replace one."""
    try:
        with database() as session:
            return {"silenceID": import_silence(session, current_scope(), body, now=now()).id}
    except InvalidInputError as error:
        # Its clients expect a text.
        abort(make_response(jsonify(error.message), HTTPStatus.BAD_REQUEST))


@alertmanager.operation("GET", "/silence/<silence_id>", answer=ExportedSilenceSchema)
def show_silence(silence_id: str) -> dict[str, Any]:
    """Return a silence."""
    with database() as session:
        return _silence(session, silence_id)


@alertmanager.operation("DELETE", "/silence/<silence_id>")
def end_silence(silence_id: str) -> Response:
    """End a silence now."""
    with database() as session:
        read = partial(_silence, session, silence_id)
        alertmanager.check_if_match(session, Silence, silence_id, read, ExportedSilenceSchema)
        expire_silence(session, current_scope(), silence_id, now=now())
    return Response(status=HTTPStatus.OK)


@alertmanager.operation("GET", "/receivers", answer=NameSchema(many=True))
def list_receivers() -> list[dict[str, str]]:
    """List receivers."""
    with database() as session:
        return [{"name": name} for name in receiver_names(session, current_scope())]


@alertmanager.operation("GET", "/status", answer=StatusSchema)
def show_status() -> dict[str, Any]:
    """Return the version of the server."""
    info = dict.fromkeys(("branch", "buildDate", "buildUser", "goVersion", "revision"), "")
    return {
        "cluster": {"status": "disabled", "peers": []},
        "versionInfo": info | {"version": f"vedette {version('vedette')}"},
        "config": {"original": ""},
        "uptime": now().isoformat(),
    }


def _silence(session: Session, silence_id: str) -> dict[str, Any]:
    return exported_silence(get_silence(session, current_scope(), silence_id), now=now())
