"""`/jobs/shares`: the tree of fair shares of the tenant."""

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from jobqueue.queue.order import list_shares
from portal.context import current_scope, database, now
from portal.query_string import asked_page

pages = Blueprint("shares", __name__)


@pages.get("/jobs/shares")
def index() -> ResponseReturnValue:
    """Show the shares and the decayed usage of projects and users."""
    with database() as session:
        tree = list_shares(session, current_scope(), now=now(), **asked_page())
    return render_template("jobs/shares.html", tree=tree)
