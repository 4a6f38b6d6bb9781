"""What a rule would say at this moment, tried before it is saved."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from alerting.expression import levels_of, read_groups
from alerting.machine import level_of
from alerting.rule_request import RuleRequest, refuse, rule_faults
from alerting.states import Severity
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store


@dataclass(frozen=True, slots=True)
class PreviewGroup:
    """One group, its value now and the level it is beyond; `tags` hold the appliance's id."""

    tags: Mapping[str, str]
    value: float
    severity: Severity | None


def preview_rule(
    store: Store, scope: Scope, request: RuleRequest, *, now: datetime
) -> list[PreviewGroup]:
    """Return every group that the rule sees now; the time it waits plays no part.

    Raises:
        InvalidInputError: the request has faults; a name is not needed yet.
    """
    scope.require(Permission.VIEW)
    faults = rule_faults(request)
    faults.pop("name", None)
    refuse(faults)
    levels = levels_of(request)
    return [
        PreviewGroup(tags=group.tags, value=group.value, severity=level_of(group.value, levels))
        for group in read_groups(store, request, tenants=scope.tenants, now=now)
    ]
