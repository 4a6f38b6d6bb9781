"""The rule pack: rules that every tenant has from the start, each with a source and a runbook.

They are rules like any other: a tenant changes, disables or deletes them. A rule of the pack is
added once to each tenant, so that a deleted one does not come back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib import resources
from string import Template

import yaml
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.models import OfferedRule, Rule
from alerting.rule_request import RuleRequest
from alerting.rule_text import parse_expression
from alerting.service import rule_values
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
        kind.value: "|".join(f'"{code}"' for code, one in XIDS.items() if one.kind is kind)
        for kind in XIDKind
    }
    rules = [
        PackRule(
            **one
            | {
                "expression": Template(one["expression"]).substitute(xids),
                "steps": tuple(one["steps"]),
            }
        )
        for one in yaml.safe_load(text)
    ]
    return {rule.key: rule for rule in rules}


def is_offered(session: Session, tenant_id: str) -> bool:
    """Whether a tenant has got the rules of the pack, which happens soon after it was created."""
    offered = select(OfferedRule.key).where(OfferedRule.tenant_id == tenant_id)
    return session.scalar(offered.limit(1)) is not None


def offer_rules(session: Session, *, now: datetime) -> int:
    """Add the rules of the pack to the tenants that never had them; return how many were added."""
    rows = session.execute(select(OfferedRule.tenant_id, OfferedRule.key))
    offered = {(tenant_id, key) for tenant_id, key in rows}
    tenants = session.scalars(select(Tenant.id).where(Tenant.state == TenantState.ACTIVE)).all()
    added = 0
    for tenant_id in tenants:
        missing = [one for key, one in rule_pack().items() if (tenant_id, key) not in offered]
        if not missing:
            continue
        names = set(session.scalars(select(Rule.name).where(Rule.tenant_id == tenant_id)))
        for one in missing:
            session.add(OfferedRule(tenant_id=tenant_id, key=one.key))
            if one.name not in names:
                added += 1
                session.add(
                    Rule(
                        tenant_id=tenant_id,
                        pack_key=one.key,
                        created_at=now,
                        **rule_values(one.request),
                    )
                )
    session.flush()
    return added
