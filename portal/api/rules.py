"""`/rules`: threshold rules and their preview."""

from functools import partial
from typing import Any

from alerting.compatibility.prometheus_rules import Metric, convert_rules
from alerting.evaluation.expression import preview_rule
from alerting.language.metric_checks import check_metric
from alerting.models import Rule
from alerting.rule_request import RuleEntry, RuleRequest
from alerting.rules.backtest import Backtest, backtest_rule
from alerting.rules.files import apply_rules, check_metrics, parse_entries, plan_rules
from alerting.rules.pack import rule_pack
from alerting.rules.service import (
    RULE_SORTS,
    create_rule,
    delete_rule,
    get_rule,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.rule_schemas import (
    EVALUATED,
    BacktestQuery,
    BacktestSchema,
    ConvertedRulesSchema,
    PreviewGroupSchema,
    PrometheusGroupsSchema,
    RuleChangeSchema,
    RuleFileSchema,
    RulePackSchema,
    RuleRequestSchema,
    RuleSchema,
)
from portal.api.schemas import page_of, page_query, whole_list
from portal.context import current_scope, database, now, portal, public_url, reading
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from timeseries.metric_catalog import list_metrics

rules = APIBlueprint("Rules", "/rules", "Alert rules.", changes=Permission.EDIT_ALERTS)


def _checked(**body: Any) -> RuleRequest:  # noqa: ANN401 - the fields of the body
    request = RuleRequest(**body)
    check_metric(portal().store, current_scope(), request)
    return request


objects = Objects(
    rules,
    "/<rule_id>",
    read=get_rule,
    answer=RuleSchema,
    model=Rule,
    etag=RuleSchema(exclude=EVALUATED),
    body=RuleRequestSchema,
    request=_checked,
)
objects.lists("List rules.", list_rules, query=page_query(RULE_SORTS, default="name"))
objects.creates(
    "Create a rule; its metric, tags and function are checked against catalog and samples.",
    create_rule,
)


@rules.operation(
    "POST",
    "/import",
    body=PrometheusGroupsSchema,
    answer=ConvertedRulesSchema,
    needs=Permission.VIEW,
)
def convert_prometheus_rules(body: dict[str, Any]) -> dict[str, Any]:
    """Return Prometheus' alerting rules as rules to apply, and what was left out of them.

    Nothing is saved.
    """
    scope = current_scope()
    metrics = [
        Metric(metric.measurement, metric.field, metric.tags)
        for metric in list_metrics(portal().store, tenants=scope.tenants)
    ]
    entries, left_out = convert_rules(body["groups"], metrics)
    return {"rules": entries, "left_out": left_out}


@rules.operation(
    "POST",
    "/preview",
    body=RuleRequestSchema,
    answer=page_of(PreviewGroupSchema),
    needs=Permission.VIEW,
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a rule now without saving it."""
    scope = current_scope()
    with database() as session:
        names = appliance_names(session, scope.tenants)
    groups = preview_rule(portal().store, scope, RuleRequest(**body), now=now(), names=names)
    return whole_list(groups)


@rules.operation(
    "POST",
    "/backtest",
    query=BacktestQuery,
    body=RuleRequestSchema,
    answer=BacktestSchema,
    needs=Permission.VIEW,
)
def backtest(query: dict[str, Any], body: dict[str, Any]) -> Backtest:
    """Return when a rule would have fired in the last days, without saving it."""
    store, scope = portal().store, current_scope()
    with database() as session:
        names = appliance_names(session, scope.tenants)
    return backtest_rule(
        store, scope, RuleRequest(**body), now=now(), days=query["days"], names=names
    )


@rules.operation("POST", "/apply", body=RuleFileSchema, answer=page_of(RuleChangeSchema))
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Create, update and, if asked, delete rules by name to match a file: all of it or nothing."""
    scope = current_scope()
    parsed = parse_entries([RuleEntry(**entry) for entry in body["rules"]])
    deletes_others = body["deletes_others"]
    with reading() as session:
        changes = plan_rules(session, scope, parsed, deletes_others=deletes_others)
    check_metrics(portal().store, scope, changes)
    if not body["is_dry_run"]:
        with database() as session:
            # Planned again: another user may have changed rules meanwhile.
            changes = plan_rules(session, scope, parsed, deletes_others=deletes_others)
            apply_rules(session, scope, changes, now=now(), public_url=public_url())
    return whole_list(changes)


@rules.operation("GET", "/pack", answer=RulePackSchema, has_etag=False)
def pack() -> dict[str, Any]:
    """Return the rule pack with its runbooks."""
    return {"rules": list(rule_pack().values())}


objects.shows("Return a rule.")


@rules.operation("PUT", "/<rule_id>", body=RuleRequestSchema, answer=RuleSchema, etag=objects.etag)
def replace(rule_id: str, body: dict[str, Any]) -> Rule:
    """Replace a rule; its id stays the same."""
    request = RuleRequest(**body)
    with database() as session:
        before = get_rule(session, current_scope(), rule_id)
    check_metric(portal().store, current_scope(), request, before=before)
    with database() as session:
        objects.check_if_match(session, rule_id)
        return update_rule(
            session, current_scope(), rule_id, request, now=now(), public_url=public_url()
        )


objects.deletes("Delete a rule and its alerts.", delete_rule)
objects.acts("Enable a rule.", partial(set_rule_enabled, is_enabled=True), "enable")
objects.acts(
    "Disable a rule: it is no longer evaluated.",
    partial(set_rule_enabled, is_enabled=False),
    "disable",
)
