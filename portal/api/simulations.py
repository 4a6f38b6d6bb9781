"""`/simulations`: what `vedette simulate` replays."""

from typing import Any

from flask import Response
from marshmallow import fields, post_load

from jobqueue.simulation.export import DEFAULT_DAYS, recorded_jobs
from jobqueue.simulation.recording import write_recording
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, file_response, time_filter
from portal.context import current_scope, database, now
from portal.presenters.gpu_usage import checked_period
from tenants.permissions import Permission

simulations = APIBlueprint(
    "Simulations",
    "/simulations",
    "Recorded jobs, to replay under other rules.",
    reads=Permission.MANAGE_APPLIANCES,
)


class RecordingQuery(StrictSchema):
    """The period of submission, and whether appliances are named."""

    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")
    anonymous = fields.Boolean(
        load_default=False,
        metadata={"description": "Number the appliances instead of naming them."},
    )

    @post_load
    def _period(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        since, until = values.pop("since"), values.pop("until")
        return {**values, "period": checked_period(since, until)}


@simulations.operation(
    "GET",
    "/recording",
    query=RecordingQuery,
    responses=file_response("The recording, a line of JSON each.", "application/x-ndjson"),
)
def recording(query: dict[str, Any]) -> Response:
    """Return the jobs of a period as a recording, without names of users, projects and jobs."""
    with database() as session:
        recorded = recorded_jobs(
            session,
            current_scope(),
            query["period"],
            is_anonymous=query["anonymous"],
            now=now(),
        )
    return Response(write_recording(recorded), mimetype="application/x-ndjson")
