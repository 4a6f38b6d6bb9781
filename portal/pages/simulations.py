"""`/jobs/simulations`: a tenant's recorded jobs, replayed under other rules."""

from flask import Response, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from jobqueue.simulation.service import (
    KEPT_FOR,
    create_simulation,
    delete_simulation,
    get_simulation,
    list_simulations,
    read_comparison,
)
from portal.context import current_scope, database, now
from portal.forms.simulations import SimulationForm
from portal.pages.common import Pages
from portal.presenters.simulations import (
    drawing_of,
    picture_file,
    project_rows,
    results_file,
)
from portal.query_string import asked_page
from tenants.permissions import Permission

pages = Pages("simulations", __name__, url_prefix="/jobs/simulations")


@pages.form("")
def index() -> ResponseReturnValue:
    """List simulations; start one."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    form = SimulationForm()
    form.offer()
    if form.validate_on_submit():
        with form.showing_errors(renamed={"since": "days"}):
            with database() as session:
                simulation = create_simulation(
                    session, scope, form.period(now()), form.changes(), now=now()
                )
            flash("Simulation started", "success")
            return redirect(url_for(".show", simulation_id=simulation.id))
    with database() as session:
        page = list_simulations(session, scope, **asked_page())
    text = render_template("jobs/simulations.html", page=page, form=form, kept_for=KEPT_FOR)
    return text, form.status


@pages.get("/<simulation_id>")
def show(simulation_id: str) -> str:
    """Show the progress of a simulation, or its results."""
    scope = current_scope()
    with database() as session:
        simulation = get_simulation(session, scope, simulation_id)
        comparison = read_comparison(session, scope, simulation_id)
    return render_template(
        "jobs/simulation.html",
        simulation=simulation,
        comparison=comparison,
        projects=project_rows(comparison) if comparison else (),
        drawing=drawing_of(comparison) if comparison else "",
    )


@pages.get("/<simulation_id>/picture.svg")
def picture(simulation_id: str) -> Response:
    """Return the picture of a simulation."""
    return picture_file(simulation_id)


@pages.get("/<simulation_id>/results.json")
def results(simulation_id: str) -> Response:
    """Return all figures of a simulation."""
    return results_file(simulation_id)


pages.acts("/<simulation_id>/delete", delete_simulation, "Simulation deleted", name="remove")
