"""`/tenants`: customers, their quotas and usage; users see their own tenant."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    envelope,
    instant,
    page_of,
    sort_field,
    values_of,
)
from portal.context import current_scope, database, now
from portal.presenters.platform import tenant_use
from tenants.lifecycle.removal import set_tenant_state
from tenants.lifecycle.usage import TenantCounts, tenant_counts
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission
from tenants.quotas import MAX_BYTES, MAX_COUNT, Limits, read_limits, set_limits
from tenants.tenants import TENANT_SORTS, create_tenant, get_tenant, list_tenants

tenants = APIBlueprint(
    "Tenants", "/tenants", "Customers and their quotas.", changes=Permission.MANAGE_TENANTS
)


class TenantSchema(Schema):
    """A tenant."""

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
    """A new tenant; by default the slug is derived from the name."""

    name = fields.String(required=True)
    slug = fields.String(load_default=None, allow_none=True)


class TenantsQuery(PageQuery):
    """Filters of the list."""

    state = fields.Enum(TenantState, by_value=True, load_default=None)
    search = fields.String(load_default="", metadata={"description": "Text in name or slug."})
    sort = sort_field(TENANT_SORTS, default="name")


def _limit(maximum: int) -> fields.Integer:
    return fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        validate=validate.Range(0, maximum),
        metadata={"description": "Null means no limit."},
    )


class QuotaSchema(StrictSchema):
    """Quotas of a tenant; omitted ones have no limit, or the portal's default."""

    max_appliances = _limit(MAX_COUNT)
    max_gpus = _limit(MAX_COUNT)
    max_active_jobs = _limit(MAX_COUNT)
    max_series = _limit(MAX_COUNT)
    max_measurements = _limit(MAX_COUNT)
    max_fields = _limit(MAX_COUNT)
    max_storage_bytes = _limit(MAX_BYTES)
    max_waiting_jobs = _limit(MAX_COUNT)
    max_rules = _limit(MAX_COUNT)
    max_receivers = _limit(MAX_COUNT)
    max_schedules = _limit(MAX_COUNT)
    max_dashboards = _limit(MAX_COUNT)


class UseSchema(Schema):
    """Usage of one quota."""

    name = fields.String()
    used = fields.Integer(allow_none=True, metadata={"description": "Null if unknown."})
    most = fields.Integer(
        attribute="limit", allow_none=True, metadata={"description": "Null means no limit."}
    )
    is_near = fields.Boolean(metadata={"description": "At 80 % of the limit or more."})
    is_reached = fields.Boolean()


class TenantUseSchema(Schema):
    """Usage of a tenant against its quotas."""

    quotas = fields.Nested(QuotaSchema)
    uses = fields.List(fields.Nested(UseSchema))
    storage_measured_at = instant()


@tenants.operation("GET", query=TenantsQuery, answer=page_of(TenantSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List the tenants that you have access to."""
    with database() as session:
        page = list_tenants(session, current_scope(), **query)
        counts = tenant_counts(session, [tenant.id for tenant in page.items])
    return envelope(page, [_shaped(tenant, counts) for tenant in page.items])


@tenants.operation("POST", body=TenantRequestSchema, answer=TenantSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> dict[str, Any]:
    """Create a tenant (operator)."""
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
    """Suspend a tenant: its users and appliances are rejected (operator)."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.SUSPENDED)


@tenants.operation("POST", "/<tenant_id>/activate", answer=TenantSchema)
def activate(tenant_id: str) -> dict[str, Any]:
    """Activate a suspended tenant (operator)."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.ACTIVE)


@tenants.operation("POST", "/<tenant_id>/close", answer=TenantSchema)
def close(tenant_id: str) -> dict[str, Any]:
    """Permanently close a tenant (operator); a closed tenant can be removed."""
    with database() as session:
        return _set_state(session, tenant_id, TenantState.CLOSED)


@tenants.operation("GET", "/<tenant_id>/usage", answer=TenantUseSchema)
def show_usage(tenant_id: str) -> dict[str, Any]:
    """Return the usage of a tenant against its quotas."""
    with database() as session:
        get_tenant(session, current_scope(), tenant_id)
        use = tenant_use(session, tenant_id)
    return {"quotas": use.limits, "uses": use.uses, "storage_measured_at": use.measured_at}


@tenants.operation("GET", "/<tenant_id>/quotas", answer=QuotaSchema, has_etag=True)
def show_quotas(tenant_id: str) -> Limits:
    """Return a tenant's quotas."""
    with database() as session:
        return read_limits(session, current_scope(), tenant_id)


@tenants.operation(
    "PUT", "/<tenant_id>/quotas", body=QuotaSchema, answer=QuotaSchema, has_etag=True
)
def set_quotas(body: dict[str, Any], tenant_id: str) -> Limits:
    """Replace the quotas of a tenant (operator)."""
    with database() as session:
        read = partial(read_limits, session, current_scope(), tenant_id)
        tenants.check_if_match(session, Tenant, tenant_id, read, QuotaSchema)
        return set_limits(session, current_scope(), tenant_id, Limits(**body))


def _set_state(session: Session, tenant_id: str, state: TenantState) -> dict[str, Any]:
    tenant = set_tenant_state(session, current_scope(), tenant_id, state, now=now())
    return _shaped(tenant, tenant_counts(session, [tenant_id]))


def _shaped(tenant: Tenant, counts: dict[str, TenantCounts]) -> dict[str, Any]:
    own = counts.get(tenant.id, TenantCounts())
    return values_of(
        TenantSchema, tenant, users=own.users, appliances=own.appliances, jobs=own.jobs
    )
