"""`/silences`: periods in which notifications of matching alerts are not sent."""

from typing import Any

from marshmallow import Schema, fields

from alerting.notification.silences import (
    SILENCE_SORTS,
    SilenceRequest,
    SilenceState,
    create_silence,
    expire_silence,
    get_silence,
    list_silences,
    state_of,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import PageQuery, StrictSchema, about, instant, sort_field
from portal.context import now
from tenants.permissions import Permission

silences = APIBlueprint(
    "Silences", "/silences", "Silences of alerts.", changes=Permission.EDIT_ALERTS
)


class SilenceSchema(Schema):
    """A silence."""

    id = fields.String()
    tenant_id = fields.String()
    state = fields.Function(
        lambda silence: state_of(silence, now=now()).value,
        metadata={"type": "string", "enum": [state.value for state in SilenceState]},
    )
    matchers = fields.List(fields.String())
    starts_at = instant()
    ends_at = instant()
    comment = fields.String()
    window_id = fields.String(allow_none=True, **about("The maintenance window that it is of."))
    created_by = fields.String(allow_none=True)
    creator_email = fields.Function(
        lambda silence: silence.creator.email if silence.creator else None,
        metadata={"type": ["string", "null"]},
    )
    created_at = instant()


class SilenceRequestSchema(StrictSchema):
    """A new silence."""

    matchers = fields.List(
        fields.String(),
        required=True,
        **about(
            "All must match: `LABEL=VALUE`, or with `!=`, `=~`, `!~`. Labels are "
            "`rule`, `severity`, `appliance` (the name), `appliance_id`, `label.KEY` (of the "
            "appliance) and the alert's tags."
        ),
    )
    starts_at = fields.AwareDateTime(format="iso", load_default=None, **about("Now, if left out."))
    ends_at = fields.AwareDateTime(format="iso", required=True)
    comment = fields.String(load_default="")


class SilenceQuery(PageQuery):
    """Filters of the list."""

    state = fields.Enum(SilenceState, by_value=True, load_default=None)
    sort = sort_field(SILENCE_SORTS, default="-ends_at")


def _request(**body: Any) -> SilenceRequest:  # noqa: ANN401 - the fields of the body
    return SilenceRequest(**{**body, "starts_at": body["starts_at"] or now()})


objects = Objects(
    silences,
    "/<silence_id>",
    read=get_silence,
    answer=SilenceSchema,
    body=SilenceRequestSchema,
    request=_request,
)
objects.lists("List silences.", list_silences, query=SilenceQuery)
objects.creates("Silence the alerts that match, from a start to an end.", create_silence)
objects.shows("Return a silence.", has_etag=False)
objects.acts(
    "End a silence now; notifications of alerts that still fire are sent.", expire_silence, "expire"
)
