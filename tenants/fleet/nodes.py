"""Nodes of clusters: appliances without an agent, which the connector of the cluster reports.

A node's row has what rarely changes: its name, state and capacity. What jobs have allocated changes
every few seconds and is in the connector's inventory alone. Only the connector's heartbeat adds,
changes and retires rows, while it holds the lock on the connector's row, and only rows of this
connector. Admins of the cluster drain and remove nodes there; the portal follows.

Each change of many nodes at once makes one event of the connector. The first of them also get
events of their own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Row, delete, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import chunked
from core.errors import ConflictError
from core.ids import hash_secret, new_id, new_secret
from protocol.clusters import ClusterNode, ClusterReport, NodeState, node_gpu_uuid
from tenants.fleet.node_events import NodeChanges, printable
from tenants.fleet.node_names import base_name, free_names, is_named
from tenants.fleet.states import counted_gpus, in_service
from tenants.models import Appliance, ApplianceState, TenantQuota
from tenants.models.appliances import MAX_MODEL_LENGTH

MAX_RETIRED: Final = 1000
"""How many nodes that are gone stay listed for each connector: some clusters never reuse names."""
MAX_LABELLED_QUEUES: Final = 40
_NAME_TRIES: Final = 3
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_STATES: Final = {
    NodeState.UP: ApplianceState.ONLINE,
    NodeState.DRAINED: ApplianceState.ONLINE,
    NodeState.DOWN: ApplianceState.UNREACHABLE,
}
# A node's state when nothing is heard from its connector, by that of the connector.
_FOLLOWED: Final = {
    ApplianceState.STALE: (ApplianceState.ONLINE,),
    ApplianceState.UNREACHABLE: (ApplianceState.ONLINE, ApplianceState.STALE),
    ApplianceState.LOST: (
        ApplianceState.ONLINE,
        ApplianceState.STALE,
        ApplianceState.UNREACHABLE,
    ),
}
_UNSYNCED: Final = {"synchronize_session": False}


def cluster_of(inventory: Mapping[str, Any] | None) -> ClusterReport | None:
    """Return what a stored inventory tells of a cluster; None if its agent is no connector."""
    try:
        return msgspec.convert((inventory or {}).get("cluster"), ClusterReport | None)
    except msgspec.ValidationError:
        return None


def node_id_of(session: Session, connector_id: str, node_name: str) -> str | None:
    """Return the id of a cluster's node by the name that the cluster gives it.

    None if its connector has not reported it yet.
    """
    named = select(Appliance.id).where(
        Appliance.connector_id == connector_id,
        Appliance.inventory["hostname"].as_string() == node_name,
    )
    # Of rows of the same name, the one in service.
    newest = named.order_by(Appliance.retired_at.is_not(None), Appliance.id.desc())
    return session.scalars(newest.limit(1)).first()


def nodes_differ(
    session: Session,
    connector_id: str,
    before: ClusterReport | None,
    after: ClusterReport | None,
) -> bool:
    """Return whether nodes must be synchronized after a report; allocations don't count."""
    if (None if before is None else _facts(before)) != (None if after is None else _facts(after)):
        return True
    # Nodes beyond a quota are added once there is room.
    rows = select(func.count()).where(Appliance.connector_id == connector_id, in_service())
    return session.scalar(rows) != (0 if after is None else len(_by_name(after)))


def sync_nodes(
    session: Session,
    connector: Appliance,
    report: ClusterReport | None,
    *,
    before: ClusterReport | None = None,
    now: datetime,
) -> None:
    """Make the rows of a cluster's nodes what its connector reports.

    Args:
        session: the caller has locked the connector's row in it.
        connector: the appliance whose agent reports.
        report: the last one; without, it is no connector any more, and its nodes are retired.
        before: the report before that, to which events refer.
        now: the time of the report.
    """
    if report is not None and report.problem and not report.nodes:
        return  # The agent has not read the cluster since it started: the nodes may be fine.
    session.flush()
    nodes = {} if report is None else _by_name(report)
    rows = {row.inventory.get("hostname", ""): row for row in _rows(session, connector)}
    changes = NodeChanges(connector, before={} if before is None else _by_name(before))
    if report is not None:
        reported = [(rows[name], node) for name, node in nodes.items() if name in rows]
        _update_rows(session, connector, report, reported, changes, now=now)
        missing = [node for name, node in nodes.items() if name not in rows]
        _add_rows(session, connector, report, missing, changes, now=now)
    gone = [row for name, row in rows.items() if name not in nodes and row.retired_at is None]
    for row in gone:
        changes.note_removed(row.inventory["hostname"], row.id)
    retire_nodes(session, [row.id for row in gone], now=now)
    _forget(session, [row for row in rows.values() if row.retired_at is not None])
    changes.write(session, now=now)


def follow_connectors(
    session: Session, connector_ids: Iterable[str], state: ApplianceState
) -> None:
    """Let the nodes of connectors that were not heard from be at most as well as these are."""
    for chunk in chunked(connector_ids):
        followed = update(Appliance).where(
            Appliance.connector_id.in_(chunk), Appliance.state.in_(_FOLLOWED[state]), in_service()
        )
        session.execute(followed.values(state=state), execution_options=_UNSYNCED)


def retire_nodes(session: Session, node_ids: Iterable[str], *, now: datetime) -> None:
    """Take nodes out of service; they come back with a report that has them."""
    for chunk in chunked(node_ids):
        retired = update(Appliance).where(Appliance.id.in_(chunk), in_service())
        session.execute(retired.values(retired_at=now), execution_options=_UNSYNCED)


def retire_nodes_of(session: Session, connector: Appliance, *, now: datetime) -> None:
    """Take the nodes of a connector out of service with it."""
    own = select(Appliance.id).where(Appliance.connector_id == connector.id, in_service())
    retire_nodes(session, session.scalars(own).all(), now=now)


def refuse_nodes(appliances: Iterable[Appliance]) -> None:
    """Raise `ConflictError` if some of the appliances are nodes of clusters."""
    nodes = [appliance for appliance in appliances if appliance.connector_id is not None]
    if nodes:
        errors = {
            node.id: f"{node.name!r} is a node of a cluster. Ask its admin to change it there; the "
            "portal follows within seconds."
            for node in nodes
        }
        raise ConflictError(
            errors[nodes[0].id],
            code="node_of_cluster",
            errors={ident: [text] for ident, text in errors.items()},
        )


def node_labels(node: ClusterNode, report: ClusterReport) -> dict[str, str]:
    """Return the labels of a node: its cluster, and `queue/NAME` for each of its queues."""
    queues = [f"queue/{name}" for name in node.queues[:MAX_LABELLED_QUEUES]]
    labels = {key: "yes" for key in queues if _LABEL_KEY.fullmatch(key)}
    cluster = printable(report.name or report.kind.value)
    return {"cluster": cluster, **labels}


def _facts(report: ClusterReport) -> object:
    """Return what the rows of nodes follow from."""
    nodes = [
        (
            node.name,
            node.state,
            node.queues,
            node.cpus,
            node.memory_bytes,
            node.gpus,
            node.gpu_model,
            node.gpu_memory_bytes,
        )
        for node in report.nodes
    ]
    return report.kind, report.name, nodes


def _by_name(report: ClusterReport) -> dict[str, ClusterNode]:
    """Return the nodes by name; of two with one name the first counts."""
    nodes: dict[str, ClusterNode] = {}
    for node in report.nodes:
        if node.name:
            nodes.setdefault(node.name, node)
    return nodes


def _rows(session: Session, connector: Appliance) -> Sequence[Row[Any]]:
    columns = (
        Appliance.id,
        Appliance.name,
        Appliance.state,
        Appliance.site,
        Appliance.region,
        Appliance.labels,
        Appliance.inventory,
        Appliance.drained_at,
        Appliance.retired_at,
    )
    own = Appliance.connector_id == connector.id, Appliance.tenant_id == connector.tenant_id
    return session.execute(select(*columns).where(*own, Appliance.revoked_at.is_(None))).all()


def _update_rows(
    session: Session,
    connector: Appliance,
    report: ClusterReport,
    reported: Iterable[tuple[Row[Any], ClusterNode]],
    changes: NodeChanges,
    *,
    now: datetime,
) -> None:
    moved: dict[NodeState, list[str]] = defaultdict(list)
    changed: list[dict[str, Any]] = []
    renamed: dict[str, str] = {}
    for row, node in reported:
        is_drained = node.state is NodeState.DRAINED
        is_same = row.state is _STATES[node.state] and (row.drained_at is not None) is is_drained
        if row.retired_at is not None:
            moved[node.state].append(row.id)
            changes.note_back(node, row.id)
        elif not is_same:
            moved[node.state].append(row.id)
            changes.note_state(node, row.id)
        described = _described(row.id, node, connector, report)
        if any(getattr(row, key) != described[key] for key in _DESCRIBED):
            changed.append({"id": row.id, **described})
        if not is_named(row.name, base := base_name(node, connector)):
            renamed[row.id] = base
    for state, ids in moved.items():
        _move(session, ids, state, now=now)
    for part in chunked(changed):
        session.execute(update(Appliance), part)
    if renamed:
        _rename(session, connector.tenant_id, renamed)


def _move(session: Session, ids: Sequence[str], state: NodeState, *, now: datetime) -> None:
    """Give nodes a state, and put those that were retired back into service."""
    drained_at = func.coalesce(
        Appliance.drained_at, literal(now, Appliance.drained_at.expression.type)
    )
    values = {
        "state": _STATES[state],
        "drained_at": drained_at if state is NodeState.DRAINED else None,
        "retired_at": None,
        "last_seen_at": now,
    }
    for chunk in chunked(ids):
        statement = update(Appliance).where(Appliance.id.in_(chunk)).values(values)
        session.execute(statement, execution_options=_UNSYNCED)


def _rename(session: Session, tenant_id: str, bases: Mapping[str, str]) -> None:
    for _attempt in range(_NAME_TRIES):
        names = free_names(session, tenant_id, bases)
        try:
            with session.begin_nested():
                for part in chunked([{"id": ident, "name": name} for ident, name in names.items()]):
                    session.execute(update(Appliance), part)
        except IntegrityError:  # an appliance took a name concurrently
            continue
        return


_DESCRIBED: Final = ("site", "region", "labels", "inventory")


def _described(
    ident: str, node: ClusterNode, connector: Appliance, report: ClusterReport
) -> dict[str, Any]:
    """Return the columns of a node's row that its capacity and its cluster decide."""
    model = printable(node.gpu_model) or ("GPU" if node.gpus else "")
    gpus = [
        {
            "index": index,
            "uuid": node_gpu_uuid(ident, index),
            "model": model,
            "memory_bytes": node.gpu_memory_bytes,
        }
        for index in range(node.gpus)
    ]
    # Without defaults: a cluster has thousands of nodes.
    inventory = {
        "hostname": node.name,
        "cpu_count": int(node.cpus),
        "memory_bytes": node.memory_bytes,
        "gpus": gpus,
    }
    return {
        "site": connector.site,
        "region": connector.region,
        "labels": node_labels(node, report),
        "inventory": inventory,
        "gpu_count": node.gpus,
        "gpu_model": model[:MAX_MODEL_LENGTH],
        "report_id": new_id(),
    }


def _add_rows(
    session: Session,
    connector: Appliance,
    report: ClusterReport,
    nodes: Sequence[ClusterNode],
    changes: NodeChanges,
    *,
    now: datetime,
) -> None:
    admitted = nodes[: _room(session, connector.tenant_id, nodes)] if nodes else []
    changes.left_out = len(nodes) - len(admitted)
    added = {new_id(): node for node in admitted}
    bases = {ident: base_name(node, connector) for ident, node in added.items()}
    for _attempt in range(_NAME_TRIES):
        names = free_names(session, connector.tenant_id, bases)
        try:
            with session.begin_nested():
                for ids in chunked(names):
                    values = [
                        _new_row(ident, names[ident], added[ident], connector, report, now=now)
                        for ident in ids
                    ]
                    session.execute(insert(Appliance), values)
        except IntegrityError:  # an appliance took a name concurrently
            continue
        cluster = printable(report.name) or f"a {report.kind.capitalize()} cluster"
        for ident, node in added.items():
            changes.note_added(node, ident, cluster=cluster)
        return


def _new_row(
    ident: str,
    name: str,
    node: ClusterNode,
    connector: Appliance,
    report: ClusterReport,
    *,
    now: datetime,
) -> dict[str, Any]:
    return {
        "id": ident,
        "tenant_id": connector.tenant_id,
        "connector_id": connector.id,
        "name": name,
        "state": _STATES[node.state],
        "drained_at": now if node.state is NodeState.DRAINED else None,
        # Nobody has the secret: a node has no agent.
        "secret_hash": hash_secret(new_secret("node")),
        "enrolled_at": now,
        "last_seen_at": now,
        **_described(ident, node, connector, report),
    }


def _room(session: Session, tenant_id: str, nodes: Sequence[ClusterNode]) -> int:
    """Return how many of the nodes the tenant's quotas of appliances and GPUs admit."""
    quotas = select(TenantQuota.max_appliances, TenantQuota.max_gpus)
    limits = session.execute(
        quotas.where(TenantQuota.tenant_id == tenant_id).with_for_update()
    ).one_or_none()
    if limits is None or (limits.max_appliances is None and limits.max_gpus is None):
        return len(nodes)
    used = select(func.count(), func.coalesce(func.sum(counted_gpus()), 0))
    count, gpus = session.execute(used.where(Appliance.tenant_id == tenant_id, in_service())).one()
    room = 0
    for node in nodes:
        count, gpus = count + 1, gpus + node.gpus
        is_full = limits.max_appliances is not None and count > limits.max_appliances
        if is_full or (limits.max_gpus is not None and node.gpus and gpus > limits.max_gpus):
            break
        room += 1
    return room


def _forget(session: Session, retired: Sequence[Row[Any]]) -> None:
    """Delete the rows of nodes that are gone for longest, if there are many."""
    oldest_first = sorted(retired, key=lambda row: row.retired_at)
    for chunk in chunked([row.id for row in oldest_first[:-MAX_RETIRED]]):
        # Unless a report just brought them back.
        gone = delete(Appliance).where(Appliance.id.in_(chunk), Appliance.retired_at.is_not(None))
        session.execute(gone, execution_options=_UNSYNCED)
