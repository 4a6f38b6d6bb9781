"""`/jobs/ID/terminal`: a terminal in a running job; `access.jobs.exec` serves what is in it."""

import secrets

from flask import Blueprint, make_response, render_template
from flask.typing import ResponseReturnValue

from jobqueue.queue.service import get_job
from jobqueue.queue.shells import require_shells
from portal.context import current_scope, database
from portal.middleware.security import STRICT_POLICY

pages = Blueprint("job_terminal", __name__)


@pages.get("/jobs/<job_id>/terminal")
def show(job_id: str) -> ResponseReturnValue:
    """Show the terminal."""
    scope, nonce = current_scope(), secrets.token_urlsafe(16)
    with database() as session:
        job = get_job(session, scope, job_id)
        require_shells(scope, job)
    response = make_response(render_template("jobs/terminal.html", job=job, nonce=nonce))
    # xterm.js writes style elements, which get the nonce, and attributes for 24-bit colors.
    response.headers["Content-Security-Policy"] = (
        f"{STRICT_POLICY} 'nonce-{nonce}'; style-src-attr 'unsafe-inline'"
    )
    return response
