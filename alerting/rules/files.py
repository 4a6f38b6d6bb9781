"""Rules as code: the rules of a file, compared with the tenant's by name, and applied together.

A rule of a file is a name, an expression, the names of its receivers, whether it is enabled, its
annotation and its actions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.language.checks import rule_errors, stored_action
from alerting.language.metric_checks import StoredNames, metric_errors
from alerting.language.text import parse_expression, rule_expression
from alerting.models import Receiver, Rule
from alerting.rule_request import Errors, RuleEntry, RuleRequest, raise_errors, settings_of
from alerting.rules.service import (
    change_rule,
    end_rule,
    merged,
    new_rule,
    read_surroundings,
    require_actions,
    reserve_rules,
    surroundings_errors,
)
from core.errors import InvalidInputError
from core.turns import give_way
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store


class ChangeAction(StrEnum):
    """The effect of applying a file on a rule."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RuleChange:
    """The change of a rule by applying a file: the rule `before` and `after`."""

    name: str
    action: ChangeAction
    before: RuleEntry | None
    after: RuleEntry | None
    rule_id: str | None = None
    request: RuleRequest | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ParsedEntry:
    """A rule of a file: its request without receivers, if its expression is valid; its errors."""

    entry: RuleEntry
    request: RuleRequest | None
    errors: Errors


_CHANGING = frozenset({ChangeAction.UPDATE, ChangeAction.DELETE})


def parse_entries(entries: Sequence[RuleEntry]) -> list[ParsedEntry]:
    """Return the rules of a file, and what is wrong with each by itself: that takes the longest."""
    repeated = {
        name for name, count in Counter(entry.name for entry in entries).items() if count > 1
    }
    parsed_entries = []
    for entry in entries:
        give_way()
        request, errors = _request(entry)
        if entry.name in repeated:
            errors["name"] = [
                f"The file has several rules named {entry.name!r}. Rename all but one."
            ]
        parsed_entries.append(ParsedEntry(entry, request, errors))
    return parsed_entries


def plan_rules(
    session: Session, scope: Scope, parsed: Sequence[ParsedEntry], *, deletes_others: bool
) -> list[RuleChange]:
    """Return the changes that make the tenant's rules those of a file, in the file's order.

    Args:
        session: the session; it is only read.
        scope: of the user.
        parsed: the rules of the file, by `parse_entries`.
        deletes_others: delete rules that the file doesn't have.

    Raises:
        InvalidInputError: with the errors of all rules, by `rules.NUMBER.FIELD`.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    receivers: Any = select(Receiver.name, Receiver.id).where(Receiver.tenant_id == tenant_id)
    names: dict[str, str] = {ident: name for name, ident in session.execute(receivers)}
    named = {name: ident for ident, name in names.items()}
    surroundings = read_surroundings(session, tenant_id)
    own = (Rule.tenant_id == tenant_id, Rule.platform_rule_id.is_(None))
    rules = session.scalars(select(Rule).where(*own).order_by(Rule.name))
    current = {rule.name: rule for rule in rules}
    errors: Errors = {}
    changes = []
    for number, parsed_entry in enumerate(parsed):
        give_way()
        rule = current.get(parsed_entry.entry.name)
        entry_errors = parsed_entry.errors | _receiver_errors(parsed_entry.entry, named)
        if parsed_entry.request is not None:
            ids = [named[name] for name in parsed_entry.entry.receivers if name in named]
            request = replace(parsed_entry.request, receiver_ids=ids)
            rule_id = rule.id if rule else None
            entry_errors = merged(
                entry_errors, surroundings_errors(request, surroundings, rule_id=rule_id)
            )
            if not entry_errors:
                before = None if rule is None else entry_of(rule, names)
                changes.append(_change(parsed_entry.entry, request, before, rule_id))
        errors |= {f"rules.{number}.{name}": texts for name, texts in entry_errors.items()}
    raise_errors("file", errors)
    if deletes_others:
        listed = {parsed_entry.entry.name for parsed_entry in parsed}
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
    names = StoredNames(store, scope.tenants)
    for number, change in enumerate(changes):
        if change.request is not None and change.action is not ChangeAction.KEEP:
            wrong = metric_errors(names, change.request)
            texts = list(dict.fromkeys(text for texts in wrong.values() for text in texts))
            errors |= {f"rules.{number}.expression": texts} if texts else {}
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
    created: list[Rule] = []
    ids = [change.rule_id for change in changes if change.action in _CHANGING]
    own = scope.select(select(Rule).where(Rule.id.in_(ids)), Rule)
    rules = {rule.id: rule for rule in session.scalars(own)}
    for change in changes:
        if change.action is ChangeAction.CREATE and change.request is not None:
            require_actions(scope, change.request.actions)
            created.append(new_rule(scope, change.request, now=now))
        elif (rule := rules.get(change.rule_id or "")) is not None:
            if change.request is None:
                end_rule(session, rule, now=now, public_url=public_url)
            else:
                require_actions(scope, [*rule.actions, *change.request.actions])
                change_rule(session, rule, change.request, now=now, public_url=public_url)
    if created:
        reserve_rules(session, scope.require_tenant(), len(created))
    session.add_all(created)
    session.flush()


def entry_of(rule: Rule, receivers: dict[str, str]) -> RuleEntry:
    """Return a rule as a file has it; `receivers` are names by id."""
    return RuleEntry(
        expression=rule_expression(rule),
        receivers=sorted(
            receivers[receiver_id] for receiver_id in rule.receiver_ids if receiver_id in receivers
        ),
        actions=rule.actions,
        **settings_of(rule),
    )


def _request(entry: RuleEntry) -> tuple[RuleRequest | None, Errors]:
    """Return the rule of an entry without its receivers, and the errors by field."""
    try:
        parsed = parse_expression(entry.expression)
    except InvalidInputError as error:
        return None, {name: list(texts) for name, texts in error.errors.items()}
    request = replace(parsed, actions=entry.actions, **settings_of(entry))
    return request, rule_errors(request)


def _receiver_errors(entry: RuleEntry, receivers: Mapping[str, str]) -> Errors:
    unknown = sorted(set(entry.receivers) - receivers.keys())
    if not unknown:
        return {}
    listed = ", ".join(sorted(receivers)) or "none yet"
    return {
        "receivers": [f"Receiver {name!r} does not exist. Receivers: {listed}." for name in unknown]
    }


def _change(
    entry: RuleEntry, request: RuleRequest, before: RuleEntry | None, rule_id: str | None
) -> RuleChange:
    after = replace(
        entry,
        expression=rule_expression(request),
        actions=[stored_action(action) for action in request.actions],
    )
    return RuleChange(entry.name, _action(before, after), before, after, rule_id, request)


def _action(before: RuleEntry | None, after: RuleEntry) -> ChangeAction:
    if before is None:
        return ChangeAction.CREATE
    is_same = before == replace(after, receivers=sorted(set(after.receivers)))
    return ChangeAction.KEEP if is_same else ChangeAction.UPDATE
