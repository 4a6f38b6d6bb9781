"""Events of changes of a cluster's nodes.

Many nodes may change at once: all changes of a report are one event of the connector, and the first
of them are events of their nodes, too.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import insert
from sqlalchemy.orm import Session

from core.ids import new_id
from protocol.clusters import ClusterNode, NodeState
from tenants.fleet.events import MAX_MESSAGE_LENGTH, EventKind, add_event, last_details
from tenants.models import Appliance, ApplianceEvent, ApplianceState

_MAX_OWN_EVENTS: Final = 200
_MAX_LISTED: Final = 4


class NodeEvent(NamedTuple):
    """An event of a node; `after` is its new state, if it is a change of state."""

    node_id: str
    kind: EventKind
    message: str
    after: ApplianceState | None = None


@dataclass(slots=True)
class NodeChanges:
    """What changed in a report, for the events of the connector and of its nodes."""

    connector: Appliance
    before: Mapping[str, ClusterNode]
    left_out: int = 0
    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    events: list[NodeEvent] = field(default_factory=list)

    def note_added(self, node: ClusterNode, ident: str, *, cluster: str) -> None:
        """Note a node that is new."""
        message = f"Added: {self.connector.name} reports it as a node of {cluster}."
        self.note("added", node.name, NodeEvent(ident, EventKind.ADDED, message))
        self.note_state(node, ident)

    def note_back(self, node: ClusterNode, ident: str) -> None:
        """Note a node that had been removed."""
        event = NodeEvent(ident, EventKind.REINSTATED, "Back in the cluster.")
        self.note("back", node.name, event)
        self.note_state(node, ident)

    def note_removed(self, name: str, ident: str) -> None:
        """Note a node that is gone."""
        message = f"Removed: {self.connector.name} doesn't report it any more."
        self.note("removed", name, NodeEvent(ident, EventKind.RETIRED, message))

    def note_state(self, node: ClusterNode, ident: str) -> None:
        """Note the state of a node, unless the cluster had reported it before."""
        former = self.before.get(node.name)
        former_state = NodeState.UP if former is None else former.state
        if node.state is former_state:
            return
        reason = f": {printable(node.reason).rstrip('.')}." if node.reason else "."
        if node.state is NodeState.DRAINED:
            event = NodeEvent(ident, EventKind.DRAINED, f"Drained on the cluster{reason}")
            self.note("drained", node.name, event)
        elif node.state is NodeState.DOWN:
            message = f"Down, as the cluster reports{reason}"
            event = NodeEvent(ident, EventKind.STATE, message, ApplianceState.UNREACHABLE)
            self.note("down", node.name, event)
        elif former_state is NodeState.DRAINED:
            message = "Takes jobs of the cluster again."
            self.note("undrained", node.name, NodeEvent(ident, EventKind.UNDRAINED, message))
        else:
            event = NodeEvent(ident, EventKind.STATE, "Up again.", ApplianceState.ONLINE)
            self.note("up again", node.name, event)

    def note(self, change: str, name: str, event: NodeEvent) -> None:
        """Note a change of a node, such as `added`."""
        self.names[change].append(printable(name))
        self.events.append(event)

    def write(self, session: Session, *, now: datetime) -> None:
        """Write the events."""
        connector = self.connector
        parts = [
            f"{len(names)} {change} ({_listed(names)})" for change, names in self.names.items()
        ]
        if self.left_out and self.left_out != self._left_out_before(session):
            parts.append(
                f"{self.left_out} not added, as they exceed the tenant's quota of appliances or "
                "GPUs"
            )
        if parts:
            counts: dict[str, Any] = {change: len(names) for change, names in self.names.items()}
            message = f"Nodes: {'; '.join(parts)}."
            if len(message) > MAX_MESSAGE_LENGTH:  # long names; the events of the nodes have them
                numbers = [f"{count} {change}" for change, count in counts.items()]
                message = f"Nodes: {'; '.join([*numbers, *parts[len(counts) :]])}."
            details = {**counts, "left_out": self.left_out}
            add_event(session, connector, EventKind.NODES, message, details=details, now=now)
        values = [
            {
                "id": new_id(),
                "tenant_id": connector.tenant_id,
                "appliance_id": event.node_id,
                "at": now,
                "kind": event.kind.value,
                "message": event.message[:MAX_MESSAGE_LENGTH],
                "details": {} if event.after is None else {"after": event.after.value},
            }
            for event in self.events[:_MAX_OWN_EVENTS]
        ]
        if values:
            session.execute(insert(ApplianceEvent), values)

    def _left_out_before(self, session: Session) -> object:
        return last_details(session, self.connector.id, EventKind.NODES).get("left_out")


def _listed(names: Sequence[str]) -> str:
    unlisted_count = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (
        f" and {unlisted_count} more" if unlisted_count > 0 else ""
    )


def printable(text: str) -> str:
    """Return a text of a cluster with spaces for what can't be shown."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
