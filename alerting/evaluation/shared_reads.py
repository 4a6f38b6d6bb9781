"""One query for the same rule of many tenants.

Every tenant has the rules of the rule pack, and planning a query for each of them takes longer than
reading its samples. Each tenant gets only the groups of its own samples, told apart by the tenant
tag, which the portal sets.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from alerting.evaluation.expression import Group, read_groups
from alerting.evaluation.rule_series import request_of
from alerting.models import Rule
from alerting.rule_request import EXPRESSED
from core.db import chunked
from timeseries.store import TENANT_TAG, Store

logger = logging.getLogger(__name__)

MAX_TENANTS = 100
MAX_APPLIANCES = 1_000


@dataclass(frozen=True, slots=True)
class SharedGroups:
    """The groups of one tenant's rule that breach a threshold or have alerts.

    `query_seconds` is its share of the query's time; `is_recorded` says that the rule's evaluation
    has been recorded, since nothing changed.
    """

    groups: Sequence[Group]
    query_seconds: float
    is_recorded: bool = False


def read_shared(
    store: Store,
    rules: Iterable[Rule],
    alerted: Mapping[str, Collection[str]],
    *,
    now: datetime,
    seconds: Callable[[], float],
) -> dict[str, SharedGroups]:
    """Return the groups of rules by their ids; without those that no other tenant has.

    Args:
        store: the samples.
        rules: of many tenants; groups that breach nothing are left out of each.
        alerted: the appliances that have alerts of a rule: none of their groups are left out.
        now: the end of the windows.
        seconds: a clock that only counts.
    """
    shared: dict[str, SharedGroups] = {}
    for alike in _alike(rules):
        started = seconds()
        appliances = {appliance for rule in alike for appliance in alerted.get(rule.id, ())}
        if len(appliances) > MAX_APPLIANCES:
            continue
        rule = replace(request_of(alike[0]), group_by=(TENANT_TAG, *alike[0].group_by))
        try:
            groups = read_groups(
                store,
                rule,
                tenants=tuple(tenant_rule.tenant_id for tenant_rule in alike),
                now=now,
                only_breaches=True,
                whole_appliances=appliances,
            )
        except Exception as error:  # noqa: BLE001 - each is read alone, and shows its own error
            logger.info(
                "rule %r of %d tenants can't be read at once: %s", rule.name, len(alike), error
            )
            continue
        by_tenant: dict[str, list[Group]] = defaultdict(list)
        for group in groups:
            tags = {tag: value for tag, value in group.tags.items() if tag != TENANT_TAG}
            by_tenant[group.tags.get(TENANT_TAG, "")].append(replace(group, tags=tags))
        share = (seconds() - started) / len(alike)
        for tenant_rule in alike:
            shared[tenant_rule.id] = SharedGroups(by_tenant[tenant_rule.tenant_id], share)
    return shared


def _alike(rules: Iterable[Rule]) -> Iterator[Sequence[Rule]]:
    """Yield groups of rules that are the same but for their tenant, up to `MAX_TENANTS` each."""
    by_text: dict[tuple[str, ...], dict[str, Rule]] = defaultdict(dict)
    for rule in rules:
        if not rule.promql and TENANT_TAG not in rule.group_by and TENANT_TAG not in rule.filters:
            text = tuple(repr(getattr(rule, name)) for name in EXPRESSED)
            # A second rule of a tenant that is the same is read alone.
            by_text[text].setdefault(rule.tenant_id, rule)
    for alike in by_text.values():
        yield from (part for part in chunked(alike.values(), MAX_TENANTS) if len(part) > 1)
