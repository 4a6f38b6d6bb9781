"""`/job-templates`: requests for jobs to start from, those that ship and those of the tenant."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from jobqueue.models import JobTemplate
from jobqueue.queue.templates import (
    Template,
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
from portal.api.schemas import StrictSchema, page_of, whole_list
from portal.context import current_scope, database, now
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
    is_shipped = fields.Boolean(metadata={"description": "Ships with the portal; read-only."})
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


@job_templates.operation("GET", answer=page_of(TemplateSchema))
def list_all() -> dict[str, Any]:
    """List the tenant's templates, then those that ship."""
    with database() as session:
        return whole_list(list_templates(session, current_scope()))


@job_templates.operation(
    "POST", body=TemplateRequestSchema, answer=TemplateSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> Template:
    """Save a template that all users of the tenant may use."""
    with database() as session:
        return save_template(session, current_scope(), _request(body), now=now())


@job_templates.operation("GET", "/<template_id>", answer=TemplateSchema)
def show(template_id: str) -> Template:
    """Return a template by its ID or name."""
    with database() as session:
        return get_template(session, current_scope(), template_id)


@job_templates.operation("PUT", "/<template_id>", body=TemplateRequestSchema, answer=TemplateSchema)
def replace(template_id: str, body: dict[str, Any]) -> Template:
    """Replace a template of the tenant."""
    with database() as session:
        scope = current_scope()
        _check_if_match(session, template_id)
        return replace_template(session, scope, template_id, _request(body), now=now())


@job_templates.operation("DELETE", "/<template_id>", status=HTTPStatus.NO_CONTENT)
def delete(template_id: str) -> None:
    """Delete a template of the tenant."""
    with database() as session:
        _check_if_match(session, template_id)
        delete_template(session, current_scope(), template_id)


def _check_if_match(session: Session, template_id: str) -> None:
    read = partial(get_template, session, current_scope(), template_id)
    job_templates.check_if_match(session, JobTemplate, template_id, read, TemplateSchema)


def _request(body: dict[str, Any]) -> TemplateRequest:
    return TemplateRequest(**{**body, "job": job_request(body["job"])})
