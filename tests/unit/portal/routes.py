"""Every route of the portal with each of its methods, and how it is called so that it listens."""

import pytest
from flask import Flask
from werkzeug.routing import Rule as Route

from portal.api.billing_budgets import BudgetRequestSchema
from portal.api.data_connections import ConnectionRequestSchema
from portal.api.data_settings import DataSettingsSchema
from portal.api.datasets import DatasetChangeSchema
from portal.api.gpu_partition_policies import PartitionPolicyRequestSchema
from portal.api.job_schedules import ScheduleRequestSchema
from portal.api.job_templates import TemplateRequestSchema
from portal.api.maintenance_windows import WindowRequestSchema
from portal.api.market_offers import OfferRequestSchema
from portal.api.notification_policy import NotificationPolicySchema
from portal.api.platform_rules import PlatformRuleRequestSchema
from portal.api.projects import QuotaListSchema
from portal.api.queue_settings import QueueSettingsSchema
from portal.api.reservations import ReservationRequestSchema
from portal.api.rule_schemas import RuleRequestSchema
from portal.api.saved_reports import SavedReportRequestSchema
from portal.api.saved_views import SavedViewRequestSchema
from portal.api.tenants import QuotaSchema
from portal.auth.guard import REGISTRY_ENDPOINTS
from portal.presenters.dashboards import DashboardRequestSchema
from tests.cast import PASSWORD

# Requests that change nothing though they are no GET.
READING = frozenset(
    {
        "Notification policy.preview",
        "GPU partition policies.preview",
        "Rules.backtest",
        "Rules.convert_prometheus_rules",
        "Rules.preview",
        "influxdb.query",
        "prometheus.labels",
        "prometheus.query",
        "prometheus.query_exemplars",
        "prometheus.query_over_range",
        "prometheus.series",
    }
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# For tests that ask all routes for what other tests ask them for, too: each third, at night all.
SAMPLED = pytest.mark.parametrize("nth", [3, pytest.param(1, marks=pytest.mark.nightly)])
# Parameters that name no object of a tenant, with a value that the route takes.
HARMLESS = {
    "filename": "vedette.css",
    "key": "gpu-hot",
    "label": "gpu",
    "measurement": "gpu",
    "path": "appliances/x",
    "tag": "gpu",
    "package_name": "dash",
    "fingerprinted_path": "x.js",
    "wheel_name": "x.whl",
    "name": "x.html",
    "token": "x",
    "number": "0",
    "published_offer_id": "x",
    "side": "customer",
    "decision": "admit",
    "standing_action": "suspend",
    "appeal_decision": "accept",
}
RULE = {"name": "x", "measurement": "custom", "field": "x_watts", "warning_threshold": 1}
PLATFORM_RULE: dict[str, object] = {"name": "x", "expression": "max(custom.x_watts) over 5m > 1"}
SCHEDULE: dict[str, object] = {
    "name": "x",
    "schedule": "0 2 * * *",
    "job": {"name": "x", "image": "x/y:1"},
}
REPORT: dict[str, object] = {
    "name": "x",
    "kind": "jobs",
    "by": "user",
    "period": "last-week",
}
WINDOW: dict[str, object] = {
    "name": "x",
    "matchers": ["rule=x"],
    "schedule": "0 2 * * *",
    "duration_seconds": 3600,
}
RESERVATION: dict[str, object] = {
    "name": "x",
    "appliance_ids": ["x"],
    "schedule": "0 2 * * *",
    "duration_seconds": 3600,
}
BUDGET: dict[str, object] = {"target": "tenant", "amount": "10"}
CORRECTION: dict[str, object] = {
    "amount": "-1.00",
    "note": "x",
    "reference": "x",
    "contract_id": "x",
}
POLICY: dict[str, object] = {"name": "x", "mode": "mps", "shares": 2}
PROJECT: dict[str, object] = {"name": "x"}
MEMBER: dict[str, object] = {"user": "bob@acme.example"}
FORWARD: dict[str, object] = {"name": "x", "kind": "loki", "url": "https://loki.example"}
ACCESS_POINT: dict[str, object] = {"name": "x", "url": "https://x.portal.example", "weight": 1}
DASHBOARD: dict[str, object] = {"name": "x", "panels": []}
VIEW: dict[str, object] = {"name": "x", "address": "/dashboards/"}
# Bodies that pass validation, so that the answer is about the object or the role.
_TERMS = {"currency": "EUR", "price": "2"}
BODIES: dict[str, dict[str, object]] = {
    "Contracts.accept": {"terms_hash": "x"},
    "Contracts.propose": {"terms": _TERMS},
    "Contracts.propose_new": {"offer_id": "x", "terms": _TERMS},
    "Contracts.take": {"offer_id": "x", "terms_hash": "x"},
    "Reputation.rate_contract": {"stars": 4},
    "Contracts.terminate": {"reason": "x"},
    "Tickets.create": {"title": "x", "text": "x"},
    "Tickets.add_ticket_message": {"text": "x"},
    "Tickets.assign": {"user": ""},
    "Tickets.rate": {"rating": 5},
    "Market appeals.accept": {"answer": "x"},
    "Market appeals.reject": {"answer": "x"},
    "Market standing.make_appeal": {"text": "x"},
    "Market standings.reinstate_provider": {"reason": "x"},
    "Market standings.suspend_provider": {"reason": "x"},
    "Standing policies.create": {"policy": {}},
    "Standing policies.preview": {"policy": {}},
    "Market account.request": {"side": "customer"},
    "Market accounts.set_admission": {"side": "customer", "state": "active"},
    "Offers.create": {"name": "x", "terms": _TERMS, "appliance_ids": ["x"]},
    "Offers.replace": {"name": "mine now", "terms": _TERMS, "appliance_ids": ["x"]},
    "Me.change_settings": {"time_zone": "Europe/Oslo"},
    "Me.change_own_password": {"current": PASSWORD, "new": "another long password"},
    "Users.change_role": {"role": "viewer"},
    "Users.add": {"email": "new@acme.example", "name": "New", "password": "a long password"},
    "Certificates.revoke": {},
    "Appliances.reenroll": {},
    "Appliances.bulk": {"appliance_ids": ["x"], "action": "drain"},
    "Appliances.change": {"name": "mine-now"},
    "Tenants.set_quotas": {},
    "Dataset copies.prefetch": {"labels": {"pool": "train"}},
    "Cleanup policies.replace": {"policies": []},
    "Container policies.replace": {"allowed": ["restricted"], "default": "restricted"},
    "Rules.replace": RULE,
    "Rules.create": RULE,
    "Rules.preview": RULE,
    "Rules.backtest": RULE,
    "Rules.convert_prometheus_rules": {"groups": []},
    "Rules.apply": {"rules": []},
    "Invitations.add": {"email": "new@acme.example", "role": "member"},
    "Jobs.hide_variables": {"names": ["x"]},
    "Jobs.change_priority": {"priority": -1},
    "Job services.autoscale": {"max_instances": 2},
    "Job services.scale": {"instances": 2},
    "Job services.update": {"image": "x/y:2"},
    "Jobs.submit": {"name": "x", "image": "x/y:1", "command": ["true"], "gpus": 1},
    "Job schedules.create": SCHEDULE,
    "Job schedules.replace": SCHEDULE,
    "Job schedules.change": {"schedule": "0 3 * * *"},
    "Job templates.create": {"name": "x", "job": {"name": "x", "image": "x/y:1"}},
    "Job templates.replace": {"name": "x", "job": {"name": "x", "image": "x/y:1"}},
    "Saved reports.create": REPORT,
    "Saved reports.replace": REPORT,
    "Platform rules.create": PLATFORM_RULE,
    "Platform rules.replace": PLATFORM_RULE,
    "Platform rules.apply": {"rules": []},
    "Dashboards.create": DASHBOARD,
    "Dashboards.replace": DASHBOARD,
    "Dashboards.apply": {"dashboards": []},
    "Saved views.create": VIEW,
    "Saved views.replace": VIEW,
    "Receivers.create": {"name": "x", "kind": "email", "target": "new@acme.example"},
    "Platform receivers.create": {"name": "x", "kind": "email", "target": "new@acme.example"},
    "Notification policy.replace": {"route": {}},
    "Notification policy.preview": {"labels": {}},
    "Alertmanager.save_silence": {
        "matchers": [{"name": "rule", "value": "x", "isRegex": False}],
        "startsAt": "2126-01-01T00:00:00Z",
        "endsAt": "2126-01-02T00:00:00Z",
    },
    "Maintenance windows.create": WINDOW,
    "Projects.create": PROJECT,
    "Projects.change": {"shares": 2},
    "Projects.save_member": MEMBER,
    "Projects.set_quotas": {"quotas": [{"resource": "gpus"}]},
    "Access points.create": ACCESS_POINT,
    "Access points.change": {"weight": 0},
    "Log forwards.create": FORWARD,
    "Log forwards.change": {"name": "x"},
    "Maintenance windows.replace": WINDOW,
    "GPU partition policies.create": POLICY,
    "GPU partition policies.preview": POLICY,
    "GPU partition policies.replace": POLICY,
    "Budgets.create": BUDGET,
    "Budgets.replace": BUDGET,
    "Reservations.create": RESERVATION,
    "Reservations.replace": RESERVATION,
    "Datasets.create": {"name": "x"},
    "Datasets.replace": {"name": "x"},
    "Dataset versions.announce_parts": {"sha256s": ["0" * 64]},
    "Data connections.create": {"name": "x", "url": "s3://bucket"},
    "Data connections.replace": {"name": "x", "url": "s3://bucket"},
    "Fleet advice.dismiss": {"key": "short:H100"},
    "Silences.create": {"matchers": ["rule=x"], "ends_at": "2126-01-01T00:00:00Z"},
    "Price lists.create": {"prices": [{"price": "2.45"}]},
    "Billing.add_correction": CORRECTION,
    "Billing.enter_credit": {"tenant_id": "x", "amount": "1.00", "reference": "x"},
    "Tenants.add": {"name": "New"},
    "Removals.add": {"tenant_id": "x", "name": "Acme"},
}
# A PUT has every field.
BODIES |= {
    endpoint: schema().dump(schema().load(BODIES.get(endpoint, {})))
    for endpoint, schema in {
        "Budgets.replace": BudgetRequestSchema,
        "Dashboards.replace": DashboardRequestSchema,
        "Data settings.replace": DataSettingsSchema,
        "Data connections.replace": ConnectionRequestSchema,
        "Datasets.replace": DatasetChangeSchema,
        "GPU partition policies.replace": PartitionPolicyRequestSchema,
        "Job schedules.replace": ScheduleRequestSchema,
        "Job templates.replace": TemplateRequestSchema,
        "Maintenance windows.replace": WindowRequestSchema,
        "Notification policy.replace": NotificationPolicySchema,
        "Offers.replace": OfferRequestSchema,
        "Platform rules.replace": PlatformRuleRequestSchema,
        "Projects.set_quotas": QuotaListSchema,
        "Queue settings.replace": QueueSettingsSchema,
        "Reservations.replace": ReservationRequestSchema,
        "Rules.replace": RuleRequestSchema,
        "Saved reports.replace": SavedReportRequestSchema,
        "Saved views.replace": SavedViewRequestSchema,
        "Tenants.set_quotas": QuotaSchema,
    }.items()
}
# The same for forms.
FORMS: dict[str, dict[str, object]] = {
    "dashboards.add": {"name": "x"},
    "dashboards.edit": {"name": "x"},
    "dashboards.import_file": {"text": "dashboards: [{name: x}]"},
    "dashboards.add_panel": {"title": "x", "metric": "gpu.x", "chart": "line", "aggregate": "avg"},
    "dashboards.edit_panel": {"title": "x", "metric": "gpu.x", "chart": "line", "aggregate": "avg"},
    "market_account.index": {"public_name": "x"},
    "tickets.add": {"title": "x", "text": "x", "subject_kind": "other", "recipient": ""},
    "tickets.rate": {"rating": "5"},
    "tickets.show": {"text": "x"},
    "market_console.account": {},
    "market_standings.change": {"reason": "x"},
    "market_standings.decide": {"answer": "x"},
    "provider_standing.index": {"text": "x"},
    "provider.add": {"name": "x", "price": "2"},
    "provider.edit": {"name": "x", "price": "2"},
    "provider.change_state": {"state": "paused"},
    "rent.propose": {"price": "2"},
    "contracts.propose": {"price": "2"},
    "contracts.rate": {"month": "2026-03", "stars": "4"},
    "users.change_role": {"role": "viewer"},
    "receivers.index": {"name": "x", "kind": "email", "target": "new@acme.example"},
    "receivers.edit": {"name": "x"},
    "platform_receivers.index": {"name": "x", "kind": "email", "target": "new@acme.example"},
    "platform_receivers.edit": {"name": "x"},
    "platform_rules.add": PLATFORM_RULE,
    "platform_rules.edit": PLATFORM_RULE,
    "silences.index": {"matchers": "rule=x", "duration": "2h"},
    "projects.index": {"name": "x", "parent": "", "shares": 1},
    "projects.show": {"name": "x", "parent": "", "shares": 1},
    "projects.save_member": {"user": "bob@acme.example", "user_shares": 1},
    "projects.save_quota": {"resource": "gpus"},
    "projects.delete_quota": {"resource": "gpus"},
    "datasets.add": {"name": "x"},
    "datasets.show": {"name": "x", "connection_id": ""},
    "datasets.connections": {"name": "x", "url": "s3://bucket"},
    "datasets.edit_connection": {"name": "x", "url": "s3://bucket"},
    "access_points.add": ACCESS_POINT | {"kind": "direct", "tenant_id": ""},
    "access_points.edit": ACCESS_POINT | {"kind": "relay", "tenant_id": ""},
    "log_forwards.index": FORWARD | {"sources": "job", "minimum_level": "info"},
    "log_forwards.edit": FORWARD | {"sources": "job", "minimum_level": "info"},
    "maintenance_windows.index": WINDOW | {"matchers": "rule=x", "duration_seconds": "1h"},
    "maintenance_windows.edit": WINDOW | {"matchers": "rule=x", "duration_seconds": "1h"},
    "budgets.index": {"for_whom": "tenant:", "amount": "10", "action": "notify"},
    "budgets.edit": {"for_whom": "tenant:", "amount": "10", "action": "notify"},
    "price_lists.index": {"prices": "H100=2"},
    "reservations.index": RESERVATION | {"appliance_ids": "x", "duration_seconds": "1h"},
    "reservations.edit": RESERVATION | {"appliance_ids": "x", "duration_seconds": "1h"},
    "gpu_partition_policies.index": POLICY,
    "gpu_partition_policies.edit": POLICY,
    "gpu_partition_policies.move": {"position": 1},
    "rules.edit": {
        "name": "x",
        "metric": "gpu.x_watts",
        "aggregate": "avg",
        "window_seconds": "5m",
        "comparison": ">",
        "warning_threshold": "1",
        "for_seconds": "0",
        "keep_firing_seconds": "0",
        "no_data": "keep",
    },
}


def visits(app: Flask) -> list[tuple[Route, str]]:
    """Return every route with each of its methods."""
    return [
        (route, method)
        for route in app.url_map.iter_rules()
        for method in METHODS
        if method in (route.methods or ())
    ]


def changes(app: Flask, *, but: frozenset[str]) -> list[tuple[Route, str]]:
    """Return the routes that change something, but those of the endpoints named."""
    return [
        (route, method)
        for route, method in visits(app)
        if method != "GET"
        and route.endpoint not in but
        and route.endpoint not in REGISTRY_ENDPOINTS  # the registry has a secret of its own
        and not str(route).startswith("/dashboards/")  # these ask for their figures by POST
    ]


def address(app: Flask, route: Route, ids: dict[str, str]) -> str:
    """Return the path of a route with these ids; one it needs besides fails the test."""
    unknown = route.arguments - ids.keys() - HARMLESS.keys()
    assert not unknown, f"{route} has path parameters that no stranger was tried with: {unknown}"
    values = {name: ids.get(name) or HARMLESS[name] for name in route.arguments}
    with app.test_request_context():
        path = app.url_map.bind("localhost").build(str(route.endpoint), values)
    # A file of a job's results is named by the query.
    is_file = path.endswith(("/artifacts/parts", "/file", "/preview", "/image"))
    return f"{path}?path=/results/x" if is_file else path
