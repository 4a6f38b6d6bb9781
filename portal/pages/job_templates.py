"""`/jobs/templates`: the templates of jobs."""

from flask import render_template
from flask.typing import ResponseReturnValue

from jobqueue.queue.shipped_templates import ShippedTemplate
from jobqueue.queue.templates import ITEMS, delete_template, list_templates, request_of
from portal.context import current_scope, database
from portal.pages.common import Pages

pages = Pages("job_templates", __name__)


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


pages.acts("/jobs/templates/<template_id>/delete", delete_template, "Template {} deleted")
