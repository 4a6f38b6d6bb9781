"""`/rules`: threshold rules and their preview."""

from functools import partial
from http import HTTPStatus
from typing import Any

from sqlalchemy.orm import Session

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
from portal.api.rule_schemas import (
    EVALUATED,
    BacktestQuery,
    BacktestSchema,
    PreviewGroupSchema,
    RuleChangeSchema,
    RuleFileSchema,
    RulePackSchema,
    RuleRequestSchema,
    RuleSchema,
)
from portal.api.schemas import envelope, page_of, page_query, whole_list
from portal.context import current_scope, database, now, portal, public_url, reading
from tenants.permissions import Permission

rules = APIBlueprint("Rules", "/rules", "Alert rules.", changes=Permission.EDIT_ALERTS)
_ETAG = RuleSchema(exclude=EVALUATED)


@rules.operation("GET", query=page_query(RULE_SORTS, default="name"), answer=page_of(RuleSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List rules."""
    with database() as session:
        return envelope(list_rules(session, current_scope(), **query))


@rules.operation("POST", body=RuleRequestSchema, answer=RuleSchema, status=HTTPStatus.CREATED)
def create(body: dict[str, Any]) -> Rule:
    """Create a rule; its metric, tags and function are checked against catalog and samples."""
    request = RuleRequest(**body)
    check_metric(portal().store, current_scope(), request)
    with database() as session:
        return create_rule(session, current_scope(), request, now=now())


@rules.operation(
    "POST",
    "/preview",
    body=RuleRequestSchema,
    answer=page_of(PreviewGroupSchema),
    needs=Permission.VIEW,
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a rule now without saving it."""
    groups = preview_rule(portal().store, current_scope(), RuleRequest(**body), now=now())
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
    return backtest_rule(store, scope, RuleRequest(**body), now=now(), days=query["days"])


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


@rules.operation("GET", "/<rule_id>", answer=RuleSchema, etag=_ETAG)
def show(rule_id: str) -> Rule:
    """Return a rule."""
    with database() as session:
        return get_rule(session, current_scope(), rule_id)


@rules.operation("PUT", "/<rule_id>", body=RuleRequestSchema, answer=RuleSchema, etag=_ETAG)
def replace(rule_id: str, body: dict[str, Any]) -> Rule:
    """Replace a rule; its id stays the same."""
    request = RuleRequest(**body)
    with database() as session:
        before = get_rule(session, current_scope(), rule_id)
    check_metric(portal().store, current_scope(), request, before=before)
    with database() as session:
        _check_if_match(session, rule_id)
        return update_rule(
            session, current_scope(), rule_id, request, now=now(), public_url=public_url()
        )


@rules.operation("DELETE", "/<rule_id>", status=HTTPStatus.NO_CONTENT)
def delete(rule_id: str) -> None:
    """Delete a rule and its alerts."""
    with database() as session:
        _check_if_match(session, rule_id)
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())


@rules.operation("POST", "/<rule_id>/enable", answer=RuleSchema)
def enable(rule_id: str) -> Rule:
    """Enable a rule."""
    return _set_enabled(rule_id, is_enabled=True)


@rules.operation("POST", "/<rule_id>/disable", answer=RuleSchema)
def disable(rule_id: str) -> Rule:
    """Disable a rule: it is no longer evaluated."""
    return _set_enabled(rule_id, is_enabled=False)


def _set_enabled(rule_id: str, *, is_enabled: bool) -> Rule:
    scope, url = current_scope(), public_url()
    with database() as session:
        set_rule_enabled(session, scope, rule_id, is_enabled=is_enabled, now=now(), public_url=url)
        return get_rule(session, scope, rule_id)


def _check_if_match(session: Session, rule_id: str) -> None:
    read = partial(get_rule, session, current_scope(), rule_id)
    rules.check_if_match(session, Rule, rule_id, read, _ETAG)
