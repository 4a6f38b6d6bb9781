"""The capacity of own appliances: their GPUs while they could run jobs.

An appliance can run jobs from its enrollment on while it is connected, and neither drained,
quarantined nor fenced, by its events. Events are pruned after a while: before the first one, it was
as that one says, and without any as it is now. Its GPUs are those of its inventory now.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, or_, select
from sqlalchemy.orm import Session

from jobqueue.usage.ledger import UNKNOWN_MODEL
from jobqueue.usage.measuring import Period
from tenants.fleet.events import EventKind
from tenants.models import Appliance, ApplianceEvent, ApplianceState
from tenants.models.appliances import decode_inventory

_OFFLINE = "offline"
_CONNECTED = (ApplianceState.ONLINE, ApplianceState.STALE)
_BEGINS = {
    EventKind.DRAINED: "drained",
    EventKind.QUARANTINED: "quarantined",
    EventKind.FENCED: "fenced",
}
_ENDS = {
    EventKind.UNDRAINED: "drained",
    EventKind.RELEASED: "quarantined",
    EventKind.FENCE_LIFTED: "fenced",
}
_KINDS = [kind.value for kind in (*_BEGINS, *_ENDS, EventKind.STATE)]
# When, which obstacle, and whether it applied before and applies after.
Change = tuple[datetime, str, bool, bool]


@dataclass(slots=True)
class OwnAppliance:
    """An appliance, or a cluster with all its nodes.

    Attributes:
        gpus: the number by GPU model, now; none of retired ones.
        spans: when it could run jobs, with the GPUs by model that it has then.
    """

    id: str
    name: str
    gpus: Counter[str] = field(default_factory=Counter)
    spans: list[tuple[Period, Counter[str]]] = field(default_factory=list)

    @property
    def gpu_model(self) -> str:
        """The names of its models."""
        return ", ".join(sorted({model for _, gpus in self.spans for model in gpus} | {*self.gpus}))


def own_appliances(session: Session, tenant_id: str, period: Period) -> dict[str, OwnAppliance]:
    """Return the appliances with GPUs that could run a tenant's jobs in a period, by id.

    The nodes of a cluster are with its connector, whose jobs they run.
    """
    names = dict(
        session.execute(
            select(Appliance.id, Appliance.name).where(Appliance.tenant_id == tenant_id)
        ).all()
    )
    changes = _changes(session, tenant_id, period)
    own: dict[str, OwnAppliance] = {}
    for row in _rows(session, tenant_id, period):
        inventory = decode_inventory(row.inventory)
        gpus = Counter(gpu.model or UNKNOWN_MODEL for gpu in inventory.gpus)
        if not gpus or not (inventory.executors or row.connector_id):
            continue
        owner_id = row.connector_id or row.id
        owner = own.setdefault(owner_id, OwnAppliance(owner_id, names.get(owner_id, row.name)))
        left_at = [at for at in (row.retired_at, row.revoked_at) if at]
        owner.spans += [
            (span, gpus)
            for span in _usable(
                changes.get(row.id, ()),
                _now(row),
                Period(max(period.since, row.enrolled_at), min([period.until, *left_at])),
            )
        ]
        if not left_at:
            owner.gpus += gpus
    return own


def _rows(session: Session, tenant_id: str, period: Period) -> Iterator[Row[*tuple[Any, ...]]]:
    columns = (
        *(Appliance.id, Appliance.name, Appliance.connector_id, Appliance.inventory),
        *(Appliance.enrolled_at, Appliance.retired_at, Appliance.revoked_at, Appliance.state),
        *(Appliance.drained_at, Appliance.quarantined_at, Appliance.fenced_at),
    )
    statement = select(*columns).where(
        Appliance.tenant_id == tenant_id,
        Appliance.gpu_count > 0,
        # The nodes of a cluster have its GPUs.
        Appliance.cluster_kind == "",
        or_(Appliance.retired_at.is_(None), Appliance.retired_at > period.since),
        or_(Appliance.revoked_at.is_(None), Appliance.revoked_at > period.since),
    )
    return iter(session.execute(statement.order_by(Appliance.name)).yield_per(100))


def _now(row: Row[*tuple[Any, ...]]) -> dict[str, bool]:
    """Return what keeps jobs off an appliance now."""
    return {
        _OFFLINE: row.state not in _CONNECTED,
        "drained": row.drained_at is not None,
        "quarantined": row.quarantined_at is not None,
        "fenced": row.fenced_at is not None,
    }


def _changes(session: Session, tenant_id: str, period: Period) -> dict[str, list[Change]]:
    """Return what began or ended to keep jobs off each appliance, oldest first."""
    statement = (
        select(
            ApplianceEvent.appliance_id,
            ApplianceEvent.at,
            ApplianceEvent.kind,
            ApplianceEvent.details,
        )
        .where(
            ApplianceEvent.tenant_id == tenant_id,
            ApplianceEvent.at >= period.since,
            ApplianceEvent.kind.in_(_KINDS),
        )
        .order_by(ApplianceEvent.at, ApplianceEvent.id)
    )
    changes: dict[str, list[Change]] = defaultdict(list)
    for ident, at, kind, details in session.execute(statement).yield_per(1000):
        if kind == EventKind.STATE:
            before, after = (details.get(name) not in _CONNECTED for name in ("before", "after"))
            changes[ident].append((at, _OFFLINE, before, after))
        else:
            name = _BEGINS.get(EventKind(kind)) or _ENDS[EventKind(kind)]
            changes[ident].append((at, name, kind not in _BEGINS, kind in _BEGINS))
    return changes


def _usable(
    changes: Sequence[Change], obstacles: dict[str, bool], within: Period
) -> Iterator[Period]:
    """Yield when nothing kept jobs off an appliance.

    Args:
        changes: oldest first, up to now.
        obstacles: whether each applies now; one with changes applied as the first one says.
        within: the time.
    """
    first: dict[str, bool] = {}
    for _, name, before, _ in changes:
        first.setdefault(name, before)
    applies = obstacles | first
    since = within.since
    for at, name, _, after in [*changes, (within.until, "", False, True)]:
        ended_at = min(max(at, within.since), within.until)
        if not any(applies.values()) and since < ended_at:
            yield Period(since, ended_at)
        applies[name], since = after, max(since, ended_at)
