"""`/tenants`: the operator's customers; a tenant's user sees the own one."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from portal.api.blueprint import resource
from portal.api.quota_schemas import QuotaSchema, TenantUseSchema, shaped_use
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from portal.showing.platform import tenant_use
from tenants.accounts import (
    TENANT_SORTS,
    TenantCounts,
    create_tenant,
    get_tenant,
    list_tenants,
    set_tenant_state,
    tenant_counts,
)
from tenants.customers.quotas import Limits, read_limits, set_limits
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission

tenants = resource(
    "Tenants", "/tenants", "Customers of this portal.", changes=Permission.MANAGE_TENANTS
)


class TenantSchema(Schema):
    """A customer."""

    id = fields.String()
    slug = fields.String()
    name = fields.String()
    state = fields.Enum(TenantState, by_value=True)
    created_at = instant()
    closed_at = instant()
    users = fields.Integer()
    appliances = fields.Integer()
    jobs = fields.Integer()


class TenantRequestSchema(StrictSchema):
    """A new tenant; the slug is derived from the name when left out."""

    name = fields.String(required=True)
    slug = fields.String(load_default=None, allow_none=True)


class TenantsQuery(PageQuery):
    """Which tenants."""

    state = fields.Enum(TenantState, by_value=True, load_default=None)
    search = fields.String(
        load_default="", metadata={"description": "Text in the name or the slug."}
    )
    sort = sort_field(TENANT_SORTS, default="name")


@tenants.operation("GET", query=TenantsQuery, answer=page_of(TenantSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the tenants that you may see."""
    with database() as session:
        page = list_tenants(session, current_scope(), **query)
        counts = tenant_counts(session, [tenant.id for tenant in page.items])
    return envelope(page, [_shaped(tenant, counts) for tenant in page.items])


@tenants.operation("POST", body=TenantRequestSchema, answer=TenantSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> dict[str, Any]:
    """Add a tenant (operator)."""
    current_scope().require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = create_tenant(session, name=body["name"], slug=body["slug"] or None, now=now())
        return _shaped(tenant, {})


@tenants.operation("GET", "/<tenant_id>", answer=TenantSchema)
def show(tenant_id: str) -> dict[str, Any]:
    """Return a tenant."""
    with database() as session:
        tenant = get_tenant(session, current_scope(), tenant_id)
        return _shaped(tenant, tenant_counts(session, [tenant_id]))


@tenants.operation("POST", "/<tenant_id>/suspend", answer=TenantSchema)
def suspend(tenant_id: str) -> dict[str, Any]:
    """Keep a tenant's users and appliances out (operator)."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.SUSPENDED)


@tenants.operation("POST", "/<tenant_id>/activate", answer=TenantSchema)
def activate(tenant_id: str) -> dict[str, Any]:
    """Let a tenant's users and appliances in again (operator)."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.ACTIVE)


@tenants.operation("POST", "/<tenant_id>/close", answer=TenantSchema)
def close(tenant_id: str) -> dict[str, Any]:
    """Close a tenant for good (operator): what is left to do then is to remove it."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.CLOSED)


@tenants.operation("GET", "/<tenant_id>/usage", answer=TenantUseSchema)
def show_usage(tenant_id: str) -> dict[str, Any]:
    """Return what a tenant has against its quotas."""
    with database() as session:
        get_tenant(session, current_scope(), tenant_id)
        return shaped_use(tenant_use(session, tenant_id))


@tenants.operation("GET", "/<tenant_id>/quotas", answer=QuotaSchema, is_single=True)
def show_quotas(tenant_id: str) -> Limits:
    """Return a tenant's quotas."""
    with database() as session:
        return read_limits(session, current_scope(), tenant_id)


@tenants.operation("PUT", "/<tenant_id>/quotas", body=QuotaSchema, answer=QuotaSchema, row=Tenant)
def set_quotas(body: dict[str, Any], tenant_id: str) -> Limits:
    """Give a tenant quotas in place of those before (operator)."""
    with database() as session:
        return set_limits(session, current_scope(), tenant_id, Limits(**body))


def _set_state(session: Session, tenant_id: str, state: TenantState) -> dict[str, Any]:
    tenant = set_tenant_state(session, current_scope(), tenant_id, state, now=now())
    return _shaped(tenant, tenant_counts(session, [tenant_id]))


def _shaped(tenant: Tenant, counts: dict[str, TenantCounts]) -> dict[str, Any]:
    found = counts.get(tenant.id, TenantCounts())
    return {
        "id": tenant.id,
        "slug": tenant.slug,
        "name": tenant.name,
        "state": tenant.state,
        "created_at": tenant.created_at,
        "closed_at": tenant.closed_at,
        "users": found.users,
        "appliances": found.appliances,
        "jobs": found.jobs,
    }
