"""Results of simulations as pages and API show them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from flask import Response
from markupsafe import Markup

from jobqueue.simulation.picture import picture
from jobqueue.simulation.results import ProjectFigures
from jobqueue.simulation.service import Comparison, finished_comparison
from portal.context import current_scope, database

# Projects with the most GPU time, of which pages show the waits.
MAX_PROJECTS = 20
_NO_PROJECT = "No project"


class ProjectRow(NamedTuple):
    """A project in a scenario."""

    name: str
    scenario: str
    figures: ProjectFigures


def project_rows(comparison: Comparison) -> Sequence[ProjectRow]:
    """Return the largest projects, each in all scenarios."""
    _, today = comparison.scenarios[0]
    largest = sorted(today.projects, key=lambda project: -project.gpu_hours)[:MAX_PROJECTS]
    return [
        ProjectRow(comparison.projects.get(shown.project, _NO_PROJECT), scenario, project)
        for shown in largest
        for scenario, outcome in comparison.scenarios
        for project in outcome.projects
        if project.project == shown.project
    ]


def drawing_of(comparison: Comparison) -> Markup:
    """Return the picture as a part of a page."""
    return Markup(picture(comparison.scenarios, is_part_of_page=True))  # noqa: S704 - it escapes


def results_file(simulation_id: str) -> Response:
    """Return all figures of a simulation as a file."""
    with database() as session:
        comparison = finished_comparison(session, current_scope(), simulation_id)
    document = {"projects": comparison.projects, "scenarios": comparison.rows()}
    response = Response(msgspec.json.encode(document), mimetype="application/json")
    response.headers.set("Content-Disposition", "attachment", filename="simulation.json")
    return response


def picture_file(simulation_id: str) -> Response:
    """Return the picture of a simulation."""
    with database() as session:
        comparison = finished_comparison(session, current_scope(), simulation_id)
    return Response(picture(comparison.scenarios), mimetype="image/svg+xml")
