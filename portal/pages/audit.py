"""`/audit`: the audit log."""

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue
from sqlalchemy import select

from portal.context import current_scope, database
from portal.presenters.audit import audit_file, chain_names, differences
from portal.query_string import PAGE_SIZE, chosen, instant
from tenants.auditing.log import (
    EVERY_CHAIN,
    SCAN_LIMIT,
    AuditFormat,
    AuditQuery,
    chain_for,
    list_entries,
)
from tenants.models import PLATFORM_CHAIN, Tenant

pages = Blueprint("audit", __name__)

# Tenants in the log selector; the logs of others are linked from their pages.
_MAX_CHOICES = 500
_MAX_TEXT_LENGTH = 254
KINDS = {
    "session": "Sessions",
    "user": "Users",
    "membership": "Memberships",
    "invitation": "Invitations",
    "identity": "External identities",
    "token": "API tokens",
    "enrollment_token": "Enrollment tokens",
    "write_token": "Write tokens",
    "appliance": "Appliances",
    "price_list": "Price lists",
    "prepaid_credit": "Prepaid credit",
    "billing_document": "Invoices and statements",
    "billing": "Corrections of billing",
    "agent_rollout": "Agent updates",
    "access_point": "Access points",
    "certificate": "Certificates",
    "authority": "Certificate authority",
    "job": "Jobs",
    "job_template": "Job templates",
    "job_schedule": "Job schedules",
    "container_policies": "Container policies",
    "queue_settings": "Queue settings",
    "reservation": "Reservations",
    "budget": "Budgets",
    "rating": "Ratings",
    "gpu_partition_policy": "GPU partition policies",
    "simulation": "Simulations",
    "advice_dismissal": "Dismissed advice",
    "dataset": "Datasets",
    "dataset_version": "Dataset versions",
    "dataset_prefetch": "Dataset prefetches",
    "data_connection": "Data connections",
    "data_settings": "Data settings",
    "project": "Projects",
    "project_member": "Project members",
    "project_quota": "Project quotas",
    "cleanup_policies": "Cleanup policies",
    "image": "Images",
    "rule": "Rules",
    "platform_rule": "Platform rules",
    "notification_policy": "Notification policies",
    "receiver": "Receivers",
    "silence": "Silences",
    "maintenance_window": "Maintenance windows",
    "dashboard": "Dashboards",
    "saved_report": "Saved reports",
    "log_forward": "Log targets",
    "market_account": "Marketplace accounts",
    "standing": "Standings of providers",
    "standing_policy": "Standing policies",
    "offer": "Offers",
    "contract": "Contracts",
    "contract_version": "Versions of contracts",
    "ticket": "Tickets",
    "tenant": "Tenants",
    "quota": "Quotas",
    "support_session": "Support sessions",
    "audit": "Audit log",
}


@pages.get("/audit")
def index() -> ResponseReturnValue:
    """List entries, newest first."""
    scope = current_scope()
    query = _query()
    with database() as session:
        page = list_entries(session, scope, query, page_size=PAGE_SIZE)
        names = chain_names(session, [entry.chain for entry in page.items])
        choices = (
            []
            if scope.tenant_id
            else session.execute(
                select(Tenant.id, Tenant.name).order_by(Tenant.name).limit(_MAX_CHOICES)
            ).all()
        )
    return render_template(
        "audit/index.html",
        page=page,
        query=query,
        chain=chain_for(scope, query.chain),
        names=names,
        choices=choices,
        kinds=KINDS,
        differences=differences,
        PLATFORM=PLATFORM_CHAIN,
        EVERY=EVERY_CHAIN,
        reach=f"{SCAN_LIMIT:,}",
    )


@pages.get("/audit/export")
def export() -> ResponseReturnValue:
    """Download the matching entries."""
    return audit_file(_query(), chosen(AuditFormat, "format") or AuditFormat.CSV)


def _query() -> AuditQuery:
    names = ("chain", "actor", "action", "target", "text", "before")
    texts = {name: request.args.get(name, "").strip()[:_MAX_TEXT_LENGTH] for name in names}
    return AuditQuery(since=instant("since"), until=instant("until"), **texts)
