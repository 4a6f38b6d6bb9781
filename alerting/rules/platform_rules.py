"""Rules of the platform: written by an operator once, evaluated for all tenants or for chosen ones.

Each tenant has its own copy, so that samples and alerts stay the tenant's. Its users see the copy
but can't change it. Notifications go to receivers of the platform, or by email to all operators; a
tenant's receivers, silences and policy don't apply to them.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.language.checks import rule_errors
from alerting.language.metric_checks import declared_errors
from alerting.language.text import parse_expression, rule_expression
from alerting.models import PlatformRule, Rule
from alerting.notification.policies import receivers_by_name
from alerting.rule_request import Errors, RuleRequest, RuleSettings, raise_errors
from alerting.rules.files import ChangeAction
from alerting.rules.service import change_rule, end_rule, rule_values
from core.errors import InvalidInputError
from core.paging import Columns, Page, Paging, list_page
from core.spec import About
from tenants.models import Tenant, TenantState
from tenants.permissions import Permission
from tenants.scope import Scope

PLATFORM_RULE_SORTS: Columns = {"name": PlatformRule.name, "created_at": PlatformRule.created_at}
_SUFFIX = " (platform)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformRuleRequest(RuleSettings):
    """A rule of the platform; without tenants it is for all.

    `receivers` are names of the platform's; without any, all operators get emails.
    """

    expression: str
    tenant_ids: Annotated[Sequence[str], About("Empty for all tenants.")] = ()
    receivers: Annotated[
        Sequence[str],
        About("Names of the platform's receivers; empty for emails to all operators."),
    ] = ()


@dataclass(frozen=True, slots=True)
class PlatformRuleChange:
    """The change of a platform rule by applying a file: the rule `before` and `after`."""

    name: str
    before: PlatformRuleRequest | None
    after: PlatformRuleRequest | None

    @property
    def action(self) -> ChangeAction:
        """Return the action that was done."""
        if self.after is None:
            return ChangeAction.DELETE
        if self.before is None:
            return ChangeAction.CREATE
        return ChangeAction.KEEP if self.before == self.after else ChangeAction.UPDATE


def list_platform_rules(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[PlatformRule]:
    """Return the rules of the platform, by name."""
    scope.require(Permission.OPERATE)
    statement = select(PlatformRule).order_by(PlatformRule.name)
    return list_page(session, statement, PLATFORM_RULE_SORTS, last=PlatformRule.id, **paging)


def get_platform_rule(session: Session, scope: Scope, rule_id: str) -> PlatformRule:
    """Return a rule of the platform."""
    scope.require(Permission.OPERATE)
    return scope.get(session, PlatformRule, rule_id, kind="platform rule")


def save_platform_rule(
    session: Session,
    scope: Scope,
    request: PlatformRuleRequest,
    *,
    rule_id: str | None = None,
    now: datetime,
    public_url: str = "",
) -> PlatformRule:
    """Add a rule of the platform, or replace the one with an ID, and the copies of tenants.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.OPERATE)
    wanted = _checked(session, request, rule_id=rule_id)
    if rule_id is None:
        rule = PlatformRule(created_by=scope.user_id, created_at=now)
        session.add(rule)
    else:
        rule = get_platform_rule(session, scope, rule_id)
    values = dataclasses.asdict(request) | {
        "name": request.name.strip(),
        "expression": rule_expression(wanted),
        "tenant_ids": list(dict.fromkeys(request.tenant_ids)),
        "receivers": list(dict.fromkeys(request.receivers)),
    }
    for name, value in values.items():
        setattr(rule, name, value)
    session.flush()
    copy_platform_rules(session, now=now, public_url=public_url)
    return rule


def delete_platform_rule(
    session: Session, scope: Scope, rule_id: str, *, now: datetime, public_url: str = ""
) -> None:
    """Delete a rule of the platform with its copies and their alerts."""
    rule = get_platform_rule(session, scope, rule_id)
    for copy in session.scalars(select(Rule).where(Rule.platform_rule_id == rule.id)).all():
        end_rule(session, copy, now=now, public_url=public_url)
    session.delete(rule)
    session.flush()


def apply_platform_rules(
    session: Session,
    scope: Scope,
    entries: Sequence[PlatformRuleRequest],
    *,
    deletes_others: bool,
    now: datetime,
    public_url: str = "",
) -> list[PlatformRuleChange]:
    """Make the rules of the platform those of a file, by name; return what was done.

    On an error the caller's transaction must undo what was done before, as after a dry run.

    Raises:
        InvalidInputError: with the errors of all rules, by `rules.NUMBER.FIELD`.
    """
    scope.require(Permission.OPERATE)
    current = {rule.name: rule for rule in session.scalars(select(PlatformRule))}
    errors: Errors = {}
    changes = []
    for number, entry in enumerate(entries):
        rule = current.pop(entry.name, None)
        before = None if rule is None else platform_entry(rule)
        try:
            saved = save_platform_rule(
                session,
                scope,
                entry,
                rule_id=None if rule is None else rule.id,
                now=now,
                public_url=public_url,
            )
        except InvalidInputError as error:
            errors |= {f"rules.{number}.{name}": [*texts] for name, texts in error.errors.items()}
            continue
        changes.append(PlatformRuleChange(entry.name, before, platform_entry(saved)))
    raise_errors("file", errors)
    for rule in current.values() if deletes_others else ():
        changes.append(PlatformRuleChange(rule.name, platform_entry(rule), None))
        delete_platform_rule(session, scope, rule.id, now=now, public_url=public_url)
    return changes


def platform_entry(rule: PlatformRule) -> PlatformRuleRequest:
    """Return a rule of the platform as a file has it."""
    names = (field.name for field in dataclasses.fields(PlatformRuleRequest))
    return PlatformRuleRequest(**{name: getattr(rule, name) for name in names})


def copy_platform_rules(session: Session, *, now: datetime, public_url: str = "") -> int:
    """Bring the copies of tenants up to date; return how many were added."""
    rules = session.scalars(select(PlatformRule)).all()
    copies = {
        (copy.tenant_id, copy.platform_rule_id): copy
        for copy in session.scalars(select(Rule).where(Rule.platform_rule_id.is_not(None)))
    }
    tenants = session.scalars(select(Tenant.id).where(Tenant.state == TenantState.ACTIVE)).all()
    added = 0
    for rule in rules:
        for tenant_id in rule.tenant_ids or tenants:
            copy = copies.pop((tenant_id, rule.id), None)
            if copy is None and tenant_id in tenants:
                added += 1
                request = _request_of(session, rule, tenant_id)
                copy = Rule(tenant_id=tenant_id, platform_rule_id=rule.id, created_at=now)
                for name, value in rule_values(request).items():
                    setattr(copy, name, value)
                session.add(copy)
            elif copy is not None:
                request = _request_of(session, rule, tenant_id)
                if any(getattr(copy, key) != value for key, value in rule_values(request).items()):
                    change_rule(session, copy, request, now=now, public_url=public_url)
    for (tenant_id, _), copy in copies.items():
        if tenant_id in tenants:  # those of a suspended tenant wait
            end_rule(session, copy, now=now, public_url=public_url)
    session.flush()
    return added


def forget_tenant(session: Session, tenant_id: str) -> None:
    """Remove a tenant from the rules that are for some tenants; one for it alone is deleted."""
    for rule in session.scalars(select(PlatformRule)).all():
        if tenant_id in rule.tenant_ids:
            rule.tenant_ids = [other for other in rule.tenant_ids if other != tenant_id]
            if not rule.tenant_ids:  # which would mean all tenants
                session.delete(rule)


def _request_of(session: Session, rule: PlatformRule, tenant_id: str) -> RuleRequest:
    """Return the copy for a tenant; its name gives way to that of the tenant's own rule."""
    same = select(Rule.id).where(
        Rule.tenant_id == tenant_id,
        Rule.name == rule.name,
        Rule.platform_rule_id.is_distinct_from(rule.id),
    )
    is_taken = session.scalar(same) is not None
    return dataclasses.replace(
        parse_expression(rule.expression),
        name=f"{rule.name[: 100 - len(_SUFFIX)]}{_SUFFIX}" if is_taken else rule.name,
        annotation=rule.annotation,
        is_enabled=rule.is_enabled,
    )


def _checked(session: Session, request: PlatformRuleRequest, *, rule_id: str | None) -> RuleRequest:
    errors: Errors = {}
    try:
        wanted = dataclasses.replace(
            parse_expression(request.expression),
            name=request.name.strip(),
            annotation=request.annotation,
        )
        errors |= rule_errors(wanted)
        texts = [text for texts in declared_errors(wanted).values() for text in texts]
        errors |= {"expression": texts} if texts else {}
    except InvalidInputError as error:
        errors |= {name: list(texts) for name, texts in error.errors.items()}
    same = session.scalar(select(PlatformRule.id).where(PlatformRule.name == request.name.strip()))
    if same not in {None, rule_id}:
        errors.setdefault("name", []).append(
            f"A rule named {request.name.strip()!r} already exists. Choose another name."
        )
    tenant_ids = set(session.scalars(select(Tenant.id)))
    missing = [tenant_id for tenant_id in request.tenant_ids if tenant_id not in tenant_ids]
    if missing:
        errors["tenant_ids"] = [f"Tenant {tenant_id!r} does not exist." for tenant_id in missing]
    own = receivers_by_name(session, None)
    listed = ", ".join(sorted(own)) or "none yet"
    missing = [name for name in request.receivers if name not in own]
    if missing:
        errors["receivers"] = [
            f"The platform has no receiver {name!r}. Receivers: {listed}." for name in missing
        ]
    raise_errors("rule", errors)
    return wanted
