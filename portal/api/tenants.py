"""`/tenants`: customers, their quotas and usage; users see their own tenant."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate
from sqlalchemy.orm import Session

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import PageQuery, StrictSchema, about, instant, sort_field, values_of
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
    search = fields.String(load_default="", **about("Text in name or slug."))
    sort = sort_field(TENANT_SORTS, default="name")


def _limit(maximum: int) -> fields.Integer:
    return fields.Integer(
        strict=True,
        load_default=None,
        allow_none=True,
        validate=validate.Range(0, maximum),
        **about("Null means no limit."),
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
    max_data_bytes = _limit(MAX_BYTES)


class UseSchema(Schema):
    """Usage of one quota."""

    name = fields.String()
    used = fields.Integer(allow_none=True, **about("Null if unknown."))
    most = fields.Integer(attribute="limit", allow_none=True, **about("Null means no limit."))
    is_near = fields.Boolean(**about("At 80 % of the limit or more."))
    is_reached = fields.Boolean()


class TenantUseSchema(Schema):
    """Usage of a tenant against its quotas."""

    quotas = fields.Nested(QuotaSchema)
    uses = fields.List(fields.Nested(UseSchema))
    storage_measured_at = instant()


def _shown(session: Session, rows: Sequence[Tenant]) -> list[dict[str, Any]]:
    counts = tenant_counts(session, [tenant.id for tenant in rows])
    return [_with_counts(tenant, counts.get(tenant.id, TenantCounts())) for tenant in rows]


objects = Objects(tenants, "/<tenant_id>", read=get_tenant, answer=TenantSchema, shown=_shown)
objects.lists("List the tenants that you have access to.", list_tenants, query=TenantsQuery)


@tenants.operation("POST", body=TenantRequestSchema, answer=TenantSchema, status=HTTPStatus.CREATED)
def add(body: dict[str, Any]) -> dict[str, Any]:
    """Create a tenant (operator)."""
    current_scope().require(Permission.MANAGE_TENANTS)
    with database() as session:
        tenant = create_tenant(session, name=body["name"], slug=body["slug"] or None, now=now())
        return _with_counts(tenant, TenantCounts())


objects.shows("Return a tenant.")
objects.acts(
    "Suspend a tenant: its users and appliances are rejected (operator).",
    partial(set_tenant_state, state=TenantState.SUSPENDED),
    "suspend",
)
objects.acts(
    "Activate a suspended tenant (operator).",
    partial(set_tenant_state, state=TenantState.ACTIVE),
    "activate",
)
objects.acts(
    "Permanently close a tenant (operator); a closed tenant can be removed.",
    partial(set_tenant_state, state=TenantState.CLOSED),
    "close",
)


@tenants.operation("GET", "/<tenant_id>/usage", answer=TenantUseSchema)
def show_usage(tenant_id: str) -> dict[str, Any]:
    """Return the usage of a tenant against its quotas."""
    with database() as session:
        get_tenant(session, current_scope(), tenant_id)
        use = tenant_use(session, tenant_id)
    return {"quotas": use.limits, "uses": use.uses, "storage_measured_at": use.measured_at}


quotas = Objects(
    tenants,
    "/<tenant_id>/quotas",
    read=read_limits,
    answer=QuotaSchema,
    model=Tenant,
    body=QuotaSchema,
    request=Limits,
)
quotas.shows("Return a tenant's quotas.", name="show_quotas")
quotas.replaces("Replace the quotas of a tenant (operator).", set_limits, name="set_quotas")


def _with_counts(tenant: Tenant, counts: TenantCounts) -> dict[str, Any]:
    return values_of(
        TenantSchema, tenant, users=counts.users, appliances=counts.appliances, jobs=counts.jobs
    )
