"""`/jobs/queue`: the waiting jobs in the order in which they are placed."""

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from jobqueue.queue.order import list_waiting
from portal.context import current_scope, database, now
from portal.query_string import asked_page

pages = Blueprint("queue", __name__)


@pages.get("/jobs/queue")
def index() -> ResponseReturnValue:
    """List the jobs that wait for an appliance."""
    with database() as session:
        page = list_waiting(session, current_scope(), now=now(), **asked_page())
    return render_template("jobs/queue.html", page=page)
