"""Links to jobs; those of customers on rented appliances have no page for the provider."""

from typing import Any

from dash import dcc, html

from dash_app.routes import job_path
from jobqueue.rentals import ListedJob, RentedJob


def job_link(job: ListedJob, search: str, text: str = "", **properties: Any) -> Any:  # noqa: ANN401 - of a component
    """Return the name of a job, or another text, as a link to it where it has a page."""
    if isinstance(job, RentedJob):
        return html.Span(text or job.name, **properties)
    return dcc.Link(text or job.name, href=f"{job_path(job.id)}{search}", **properties)
