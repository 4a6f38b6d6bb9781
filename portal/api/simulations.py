"""`/simulations`: recorded jobs, alone and replayed under other rules."""

from http import HTTPStatus
from typing import Any

import msgspec
from flask import Response
from marshmallow import Schema, fields, post_load

from jobqueue.simulation.export import DEFAULT_DAYS, recorded_jobs
from jobqueue.simulation.models import Simulation, SimulationState
from jobqueue.simulation.recording import write_recording
from jobqueue.simulation.scenarios import Changes
from jobqueue.simulation.service import (
    SIMULATION_SORTS,
    create_simulation,
    delete_simulation,
    get_simulation,
    list_simulations,
    read_comparison,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, file_response, instant, page_query, time_filter
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import current_scope, database, now
from portal.presenters.gpu_usage import checked_period
from portal.presenters.simulations import picture_file, results_file
from tenants.permissions import Permission

simulations = APIBlueprint(
    "Simulations",
    "/simulations",
    "Recorded jobs, replayed under other rules.",
    reads=Permission.MANAGE_APPLIANCES,
    changes=Permission.MANAGE_APPLIANCES,
)


class PeriodSchema(StrictSchema):
    """The period of submission."""

    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")


class RecordingQuery(PeriodSchema):
    """The period of submission, and whether appliances are named."""

    anonymous = fields.Boolean(
        load_default=False, **about("Number the appliances instead of naming them.")
    )

    @post_load
    def _period(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        since, until = values.pop("since"), values.pop("until")
        return {**values, "period": checked_period(since, until)}


class SimulationRequestSchema(PeriodSchema, request_schema(Changes)):  # type: ignore[misc] # a class made at run time
    """Whose jobs to replay, and with what changes."""


class ChangesSchema(response_schema(Changes)):  # type: ignore[misc] # a class made at run time
    """What differs from today."""


class SimulationSchema(Schema):
    """A simulation."""

    id = fields.String()
    tenant_id = fields.String()
    since = instant()
    until = instant()
    changes = fields.Nested(ChangesSchema)
    state = fields.Enum(SimulationState, by_value=True)
    progress_percent = fields.Integer()
    message = fields.String(**about("Why it has failed."))
    created_by = fields.String(allow_none=True)
    created_at = instant()
    started_at = instant()
    finished_at = instant()


class WaitsSchema(Schema):
    """How long jobs waited."""

    jobs = fields.Integer()
    started = fields.Integer()
    wait_seconds_p50 = fields.Float(allow_none=True)
    wait_seconds_p95 = fields.Float(allow_none=True)


class ProjectWaitsSchema(WaitsSchema):
    """How long the jobs of a project waited, and what it was served."""

    project = fields.String(**about("Its name; empty for jobs without one."))
    served_ratio = fields.Float()
    entitled_ratio = fields.Float()


class FiguresSchema(Schema):
    """The figures of a scenario."""

    scenario = fields.String()
    allocated_ratio = fields.Float()
    blocked_ratio = fields.Float()
    waits = fields.Nested(WaitsSchema)
    projects = fields.List(fields.Nested(ProjectWaitsSchema))
    jain_index = fields.Float()
    share_deviation = fields.Float()
    preemptions = fields.Integer()
    preempted_gpu_hours = fields.Float()
    energy_kilowatt_hours = fields.Float(allow_none=True)
    impossible = fields.Integer(**about("Jobs that fit no appliance, even if it is idle."))


class FinishedSimulationSchema(SimulationSchema):
    """A simulation with its figures, as soon as it has succeeded."""

    scenarios = fields.List(fields.Nested(FiguresSchema))


objects = Objects(
    simulations, "/<simulation_id>", read=get_simulation, answer=SimulationSchema, model=Simulation
)
objects.lists(
    "List simulations, the newest first.",
    list_simulations,
    query=page_query(SIMULATION_SORTS, default="-created_at"),
)


@simulations.operation(
    "POST", body=SimulationRequestSchema, answer=SimulationSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> object:
    """Replay the jobs of a period under today's rules and changed ones.

    One simulation of a tenant runs at once; others wait.
    """
    period = checked_period(body.pop("since"), body.pop("until"))
    with database() as session:
        return create_simulation(
            session, current_scope(), period, msgspec.convert(body, Changes), now=now()
        )


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


@simulations.operation(
    "GET", "/<simulation_id>", answer=FinishedSimulationSchema, etag=SimulationSchema()
)
def show(simulation_id: str) -> dict[str, Any]:
    """Return a simulation with its progress, and the figures of each scenario at the end."""
    with database() as session:
        simulation = get_simulation(session, current_scope(), simulation_id)
        comparison = read_comparison(session, current_scope(), simulation_id)
    shown = {name: getattr(simulation, name) for name in SimulationSchema().fields}
    return {**shown, "scenarios": comparison.rows(has_names=True) if comparison else []}


@simulations.operation(
    "GET",
    "/<simulation_id>/results",
    responses={
        HTTPStatus.OK: {
            "description": "All figures, as of `vedette simulate`.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    },
)
def results(simulation_id: str) -> Response:
    """Return all figures of a simulation, as `vedette simulate --json` prints them."""
    return results_file(simulation_id)


@simulations.operation(
    "GET",
    "/<simulation_id>/picture",
    responses=file_response("Allocated GPUs and waiting jobs over time.", "image/svg+xml"),
)
def show_picture(simulation_id: str) -> Response:
    """Return a picture of a simulation as SVG."""
    return picture_file(simulation_id)


objects.deletes("Delete a simulation; one that runs is stopped.", delete_simulation)
