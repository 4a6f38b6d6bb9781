"""`/job-templates`: requests for jobs to start from, those that ship and those of the tenant."""

from typing import Any

from marshmallow import Schema, fields

from jobqueue.models import JobTemplate
from jobqueue.queue.templates import (
    TemplateRequest,
    delete_template,
    get_template,
    list_templates,
    replace_template,
    request_of,
    save_template,
)
from portal.api.blueprint import APIBlueprint
from portal.api.job_requests import JobRequestSchema, job_request
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about
from tenants.permissions import Permission

job_templates = APIBlueprint(
    "Job templates",
    "/job-templates",
    "Requests for jobs to start from.",
    changes=Permission.SUBMIT_JOBS,
)


class TemplateSchema(Schema):
    """A template; `job` is the request, without secrets."""

    id = fields.String()
    name = fields.String()
    description = fields.String()
    is_shipped = fields.Boolean(**about("Ships with the portal; read-only."))
    user_email = fields.Function(lambda template: template.user.email if template.user else None)
    job = fields.Function(
        lambda template: JobRequestSchema(exclude=("secrets", "secrets_from")).dump(
            request_of(template)
        ),
        metadata={"type": "object"},
    )


class TemplateRequestSchema(StrictSchema):
    """A template of the tenant; secrets in its job are left out."""

    name = fields.String(required=True)
    description = fields.String(load_default="")
    job = fields.Nested(JobRequestSchema, required=True)


def _request(*, job: dict[str, Any], **values: str) -> TemplateRequest:
    return TemplateRequest(**values, job=job_request(job))


objects = Objects(
    job_templates,
    "/<template_id>",
    read=get_template,
    answer=TemplateSchema,
    model=JobTemplate,
    body=TemplateRequestSchema,
    request=_request,
)
objects.lists("List the tenant's templates, then those that ship.", list_templates)
objects.creates("Save a template that all users of the tenant may use.", save_template)
objects.shows("Return a template by its ID or name.")
objects.replaces("Replace a template of the tenant.", replace_template)
objects.deletes("Delete a template of the tenant.", delete_template)
