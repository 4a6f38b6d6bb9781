"""Job templates: requests that users start from. Some ship, others are a tenant's.

A template of a tenant has no secrets. Its user and admins may change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from jobqueue.jobs.cluster_requests import cluster_errors
from jobqueue.jobs.requests import MAX_NAME_LENGTH, request_errors, request_from
from jobqueue.models import JobTemplate
from jobqueue.queue.shipped_templates import SHIPPED, ShippedTemplate
from protocol.job_spec import JobRequest
from tenants.permissions import Permission
from tenants.saved_items import SavedItems
from tenants.scope import Scope

ITEMS = SavedItems(
    model=JobTemplate,
    noun="job template",
    own=Permission.SUBMIT_JOBS,
    others=Permission.STOP_ANY_JOB,
    max_items=200,
)
MAX_DESCRIPTION_LENGTH = 500
_SHIPPED = {template.name: template for template in SHIPPED}
_STORED_FIELDS = set(JobRequest.__struct_fields__) - {"secrets", "secrets_from"}

Template = ShippedTemplate | JobTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRequest:
    """A template as a user saves it."""

    name: str
    description: str = ""
    job: JobRequest


def list_templates(session: Session, scope: Scope) -> list[Template]:
    """Return the tenant's templates by name, then those that ship."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(JobTemplate), JobTemplate)
    own = session.scalars(statement.order_by(JobTemplate.name, JobTemplate.id)).unique()
    return [*own, *SHIPPED]


def get_template(session: Session, scope: Scope, ident: str) -> Template:
    """Return a template by its id or name; a tenant's own comes before one that ships.

    Raises:
        NotFoundError: there is none, or it is another tenant's.
    """
    template = ITEMS.find(session, scope, ident, by_name=True) or _SHIPPED.get(ident)
    if template is None:
        raise NotFoundError.of(ITEMS.noun, ident)
    return template


def save_template(
    session: Session, scope: Scope, request: TemplateRequest, *, now: datetime
) -> JobTemplate:
    """Save a new template of the tenant.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or the tenant has too many.
    """
    scope.require(Permission.SUBMIT_JOBS)
    tenant_id = scope.require_tenant()
    values = _checked(session, tenant_id, request, but=None)
    ITEMS.check_room(session, scope)
    template = JobTemplate(
        tenant_id=tenant_id, user_id=scope.user_id, created_at=now, updated_at=now, **values
    )
    session.add(template)
    session.flush()
    session.refresh(template)
    return template


def replace_template(
    session: Session, scope: Scope, ident: str, request: TemplateRequest, *, now: datetime
) -> JobTemplate:
    """Replace a template of the tenant.

    Raises:
        ForbiddenError: it is another user's, and the role may not change those.
        ConflictError: it ships with the portal.
    """
    template = _changeable(session, scope, ident)
    values = _checked(session, template.tenant_id, request, but=template.id)
    for name, value in values.items():
        setattr(template, name, value)
    template.updated_at = now
    session.flush()
    return template


def delete_template(session: Session, scope: Scope, ident: str) -> str:
    """Delete a template of the tenant; return its name. Raises as `replace_template`."""
    template = _changeable(session, scope, ident)
    session.delete(template)
    session.flush()
    return template.name


def request_of(template: Template) -> JobRequest:
    """Return the job of a template."""
    if isinstance(template, ShippedTemplate):
        return template.request
    return load_request(template.request)


def store_request(job: JobRequest) -> dict[str, Any]:
    """Return a request as JSON, without its secrets."""
    return {key: value for key, value in msgspec.to_builtins(job).items() if key in _STORED_FIELDS}


def load_request(stored: Mapping[str, Any]) -> JobRequest:
    """Return the request of its JSON, without fields of newer versions."""
    values = {name: value for name, value in stored.items() if name in _STORED_FIELDS}
    return request_from(values)


def _changeable(session: Session, scope: Scope, ident: str) -> JobTemplate:
    if isinstance(get_template(session, scope, ident), ShippedTemplate):
        raise ConflictError(f"The template {ident!r} ships with the portal. Save a copy of it.")
    return ITEMS.changeable(session, scope, ident, by_name=True)


def _checked(
    session: Session, tenant_id: str, request: TemplateRequest, *, but: str | None
) -> dict[str, Any]:
    name, description = request.name.strip(), request.description.strip()
    job = replace(request.job, name=request.job.name.strip() or name)
    job_errors = cluster_errors(session, tenant_id, job)
    errors = request_errors(replace(job, secrets={}, secrets_from=None), job_errors)
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or "/" in name:
        error = f"{name!r} is not a name; use up to {MAX_NAME_LENGTH} characters without '/'."
        errors["name"] = [error]
    if len(description) > MAX_DESCRIPTION_LENGTH:
        errors["description"] = [f"Use at most {MAX_DESCRIPTION_LENGTH} characters."]
    if errors:
        details = " ".join(error for of_field in errors.values() for error in of_field)
        raise InvalidInputError(f"The template was not saved. {details}", errors=errors)
    ITEMS.check_name(session, name, tenant_id=tenant_id, user_id=None, but=but)
    return {"name": name, "description": description, "request": store_request(job)}
