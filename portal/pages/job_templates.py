"""`/jobs/templates`: the templates of jobs."""

from flask import Blueprint, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from jobqueue.queue.shipped_templates import ShippedTemplate
from jobqueue.queue.templates import ITEMS, delete_template, list_templates, request_of
from portal.context import current_scope, database
from portal.pages.common import changing

pages = Blueprint("job_templates", __name__)


@pages.get("/jobs/templates")
def index() -> ResponseReturnValue:
    """List the job templates."""
    scope = current_scope()
    with database() as session:
        templates = list_templates(session, scope)
    rows = [
        (
            template,
            request_of(template),
            not isinstance(template, ShippedTemplate) and ITEMS.may_change(scope, template),
        )
        for template in templates
    ]
    return render_template("jobs/templates.html", rows=rows)


@pages.post("/jobs/templates/<template_id>/delete")
@changing(back=lambda: url_for("job_templates.index"))
def delete(session: Session, template_id: str) -> str:
    """Delete a template."""
    return f"Template {delete_template(session, current_scope(), template_id)} deleted"
