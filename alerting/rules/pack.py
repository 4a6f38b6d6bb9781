"""The rule pack: rules that every tenant has from the start, each with a source and a runbook.

They are rules like any other: a tenant changes, disables or deletes them. A rule of the pack is
added once to each tenant, so that a deleted one does not come back. When the pack changes, so do
the rules whose expression, or annotation, is still the one that was offered.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib import resources
from string import Template

import yaml
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.rule_series import request_of
from alerting.language.text import parse_expression, rule_expression
from alerting.models import OfferedRule, Rule
from alerting.rule_request import EXPRESSED, RuleRequest
from alerting.rules.service import change_rule, rule_values
from protocol.xids import XIDS, XIDKind
from tenants.models import Tenant, TenantState


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRule:
    """A rule of the pack.

    Attributes:
        key: names its runbook, for good.
        source: where the rule, or the knowledge behind it, comes from.
        meaning: what the alert means.
        steps: what to do, in order; commands are in backquotes.
    """

    key: str
    name: str
    expression: str
    source: str
    annotation: str
    meaning: str
    steps: tuple[str, ...]

    @property
    def request(self) -> RuleRequest:
        """The rule."""
        rule = parse_expression(self.expression)
        return replace(rule, name=self.name, annotation=self.annotation)


@cache
def rule_pack() -> Mapping[str, PackRule]:
    """Return the rules of the pack by key."""
    text = resources.files("alerting").joinpath("rule_pack.yaml").read_text(encoding="utf-8")
    xids = {
        kind.value: "|".join(f'"{code}"' for code, xid in XIDS.items() if xid.kind is kind)
        for kind in XIDKind
    }
    rules = [
        PackRule(
            **entry
            | {
                "expression": Template(entry["expression"]).substitute(xids),
                "steps": tuple(entry["steps"]),
            }
        )
        for entry in yaml.safe_load(text)
    ]
    return {rule.key: rule for rule in rules}


def is_offered(session: Session, tenant_id: str) -> bool:
    """Return whether a tenant has got the rules of the pack, soon after it was created."""
    offered = select(OfferedRule.key).where(OfferedRule.tenant_id == tenant_id)
    return session.scalar(offered.limit(1)) is not None


def offer_rules(session: Session, *, now: datetime, public_url: str = "") -> int:
    """Add the rules of the pack to the tenants that never had them; return how many were added.

    Rules that tenants have as they were offered follow the changes of the pack.
    """
    offers: dict[str, dict[str, OfferedRule]] = defaultdict(dict)
    for offer in session.scalars(select(OfferedRule)):
        offers[offer.tenant_id][offer.key] = offer
    texts = {key: _texts(pack_rule) for key, pack_rule in rule_pack().items()}
    tenants = session.scalars(select(Tenant.id).where(Tenant.state == TenantState.ACTIVE)).all()
    added = 0
    for tenant_id in tenants:
        own = offers[tenant_id]
        missing = [pack_rule for key, pack_rule in rule_pack().items() if key not in own]
        if missing:
            added += _add_rules(session, tenant_id, missing, now=now)
        for key in own.keys() & texts.keys():
            if (own[key].expression, own[key].annotation) != texts[key]:
                _update_rule(session, own[key], now=now, public_url=public_url)
    session.flush()
    return added


def _add_rules(
    session: Session, tenant_id: str, missing: Sequence[PackRule], *, now: datetime
) -> int:
    names = set(session.scalars(select(Rule.name).where(Rule.tenant_id == tenant_id)))
    added = 0
    for pack_rule in missing:
        expression, annotation = _texts(pack_rule)
        offer = {"key": pack_rule.key, "expression": expression, "annotation": annotation}
        session.add(OfferedRule(tenant_id=tenant_id, **offer))
        if pack_rule.name not in names:
            added += 1
            values = rule_values(pack_rule.request)
            session.add(Rule(tenant_id=tenant_id, pack_key=pack_rule.key, created_at=now, **values))
    return added


def _update_rule(session: Session, offer: OfferedRule, *, now: datetime, public_url: str) -> None:
    """Give the rule of a tenant what the pack has now, where it is as it was offered."""
    pack_rule = rule_pack()[offer.key]
    expression, annotation = _texts(pack_rule)
    own = (Rule.tenant_id == offer.tenant_id, Rule.pack_key == offer.key)
    for rule in session.scalars(select(Rule).where(*own)).all():
        wanted = before = request_of(rule)
        if rule_expression(rule) == offer.expression:
            parsed = pack_rule.request
            wanted = replace(wanted, **{name: getattr(parsed, name) for name in EXPRESSED})
        if rule.annotation == offer.annotation:
            wanted = replace(wanted, annotation=annotation)
        if wanted != before:
            change_rule(session, rule, wanted, now=now, public_url=public_url)
    offer.expression, offer.annotation = expression, annotation


def _texts(pack_rule: PackRule) -> tuple[str, str]:
    return rule_expression(pack_rule.request), pack_rule.annotation
