"""Rules as code: the rules of a file, compared with the tenant's by name, and applied together.

A rule of a file is a name, an expression, the names of its receivers, whether it is enabled, its
annotation and its actions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.action_request import stored_action
from alerting.expression import check_metric
from alerting.models import Receiver, Rule
from alerting.rule_request import Errors, RuleEntry, RuleRequest, raise_errors
from alerting.rule_text import parse_expression, rule_expression
from alerting.service import check_rule, create_rule, delete_rule, update_rule
from core.errors import InvalidInputError
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store


class ChangeAction(StrEnum):
    """What applying a file does to a rule."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What applying a file does, or did, to a rule: the rule `before` and `after`."""

    name: str
    action: ChangeAction
    before: RuleEntry | None
    after: RuleEntry | None
    rule_id: str | None = None
    request: RuleRequest | None = field(default=None, repr=False)


def plan_rules(
    session: Session, scope: Scope, entries: Sequence[RuleEntry], *, deletes_others: bool
) -> list[RuleChange]:
    """Return the changes that make the tenant's rules those of a file, in the file's order.

    Args:
        deletes_others: delete rules that the file doesn't have.

    Raises:
        InvalidInputError: with the errors of all rules, by `rules.NUMBER.FIELD`.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    named = {
        one.name: one.id
        for one in session.scalars(select(Receiver).where(Receiver.tenant_id == tenant_id))
    }
    own = (Rule.tenant_id == tenant_id, Rule.platform_rule_id.is_(None))
    rules = session.scalars(select(Rule).where(*own).order_by(Rule.name))
    current = {rule.name: rule for rule in rules}
    repeated = {name for name, count in Counter(one.name for one in entries).items() if count > 1}
    errors: Errors = {}
    changes = []
    for number, entry in enumerate(entries):
        rule = current.get(entry.name)
        request, found = _request(entry, named)
        if entry.name in repeated:
            found["name"] = [
                f"The file has several rules named {entry.name!r}. Rename all but one."
            ]
        if request is not None:
            try:
                check_rule(session, request, tenant_id=tenant_id, rule_id=rule.id if rule else None)
            except InvalidInputError as error:
                found |= {name: list(texts) for name, texts in error.errors.items()}
        errors |= {f"rules.{number}.{name}": texts for name, texts in found.items()}
        if request is not None and not found:
            before = None if rule is None else entry_of(rule, {v: k for k, v in named.items()})
            after = replace(
                entry,
                expression=rule_expression(request),
                actions=[stored_action(one) for one in request.actions],
            )
            changes.append(
                RuleChange(
                    entry.name,
                    _action(before, after),
                    before,
                    after,
                    None if rule is None else rule.id,
                    request,
                )
            )
    raise_errors("file", errors)
    if deletes_others:
        names = {ident: name for name, ident in named.items()}
        listed = {entry.name for entry in entries}
        changes += [
            RuleChange(rule.name, ChangeAction.DELETE, entry_of(rule, names), None, rule.id)
            for rule in current.values()
            if rule.name not in listed
        ]
    return changes


def check_metrics(store: Store, scope: Scope, changes: Sequence[RuleChange]) -> None:
    """Check the metrics of new and changed rules; call it outside of any transaction.

    Raises:
        InvalidInputError: with the errors of all rules, by `rules.NUMBER.FIELD`.
    """
    errors: Errors = {}
    for number, change in enumerate(changes):
        if change.request is not None and change.action is not ChangeAction.KEEP:
            try:
                check_metric(store, scope, change.request)
            except InvalidInputError as error:
                errors[f"rules.{number}.expression"] = list(error.errors["field"])
    raise_errors("file", errors)


def apply_rules(
    session: Session,
    scope: Scope,
    changes: Sequence[RuleChange],
    *,
    now: datetime,
    public_url: str = "",
) -> None:
    """Make planned changes; on an error, the caller's transaction must undo those made before."""
    for change in changes:
        if change.action is ChangeAction.CREATE and change.request is not None:
            create_rule(session, scope, change.request, now=now)
        elif change.rule_id is None:
            continue
        elif change.action is ChangeAction.UPDATE and change.request is not None:
            update_rule(
                session, scope, change.rule_id, change.request, now=now, public_url=public_url
            )
        elif change.action is ChangeAction.DELETE:
            delete_rule(session, scope, change.rule_id, now=now, public_url=public_url)


def entry_of(rule: Rule, receivers: dict[str, str]) -> RuleEntry:
    """Return a rule as a file has it; `receivers` are names by id."""
    return RuleEntry(
        name=rule.name,
        expression=rule_expression(rule),
        receivers=sorted(receivers[one] for one in rule.receiver_ids if one in receivers),
        is_enabled=rule.is_enabled,
        annotation=rule.annotation,
        actions=rule.actions,
    )


def _request(entry: RuleEntry, receivers: dict[str, str]) -> tuple[RuleRequest | None, Errors]:
    errors: Errors = {}
    unknown = sorted(set(entry.receivers) - receivers.keys())
    if unknown:
        known = ", ".join(sorted(receivers)) or "none yet"
        errors["receivers"] = [
            f"Receiver {name!r} does not exist. Receivers: {known}." for name in unknown
        ]
    try:
        parsed = parse_expression(entry.expression)
    except InvalidInputError as error:
        return None, errors | {name: list(texts) for name, texts in error.errors.items()}
    request = replace(
        parsed,
        name=entry.name,
        receiver_ids=[receivers[name] for name in entry.receivers if name in receivers],
        is_enabled=entry.is_enabled,
        annotation=entry.annotation,
        actions=entry.actions,
    )
    return request, errors


def _action(before: RuleEntry | None, after: RuleEntry) -> ChangeAction:
    if before is None:
        return ChangeAction.CREATE
    is_same = before == replace(after, receivers=sorted(set(after.receivers)))
    return ChangeAction.KEEP if is_same else ChangeAction.UPDATE
