"""Heartbeats: an agent reports that its appliance is up, with inventory, health and GPU processes.

Most heartbeats change nothing and cost one SELECT and one guarded UPDATE. A heartbeat that changes
something locks the appliance's row, so that each change makes exactly one event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from core.changes import Topic, note_change
from core.db import changed_one
from core.ids import new_id
from core.quantities import format_duration
from protocol.gpu_processes import GPUProcess
from protocol.health import ApplianceHealth
from protocol.inventory import Inventory
from tenants.fleet.access_points import normalized_url
from tenants.fleet.agents import claim_instance, lock_appliance
from tenants.fleet.change_events import ChangeEvent, KnownState, change_events_of, may_report_clock
from tenants.fleet.events import EventKind, add_event, last_details
from tenants.fleet.nodes import cluster_of, nodes_differ, sync_nodes
from tenants.fleet.states import SKEW_LIMIT_SECONDS, check_transition
from tenants.models import Appliance, ApplianceState, reported_class, reported_gpus

T = TypeVar("T")


def record_heartbeat(
    session: Session,
    appliance_id: str,
    *,
    inventory: Inventory | None,
    agent_version: str,
    sent_at: datetime,
    now: datetime,
    health: ApplianceHealth | None = None,
    gpu_processes: Sequence[GPUProcess] | None = None,
    instance_id: str = "",
    can_update: bool = False,
    access_point: str = "",
) -> str | None:
    """Record a heartbeat: the appliance is online, with this inventory, health and GPU processes.

    Returns the `ApplianceUpdate` that the agent shall make now, if there is one.

    The difference of `sent_at`, the agent's clock, to `now` is stored as the clock skew.
    Without an `inventory`, the last one stays.
    `instance_id` is the agent's current run; two concurrent runs fence the appliance.
    `access_point` is the address that it uses; anything else than a plain URL counts as unknown.
    """
    seen = session.execute(select(*_COLUMNS).where(Appliance.id == appliance_id)).one_or_none()
    if seen is None or seen.revoked_at is not None or seen.retired_at is not None:
        return None
    skew_seconds = _credible_skew((sent_at - now).total_seconds(), seen.clock_skew_seconds)
    beat = _Beat(
        reported=KnownState(inventory, health, agent_version, skew_seconds),
        # As the database returns it, with lists for tuples: else each heartbeat would change it.
        inventory=None
        if inventory is None
        else msgspec.json.decode(msgspec.json.encode(inventory)),
        health=msgspec.to_builtins(health),
        gpu_processes=msgspec.to_builtins(gpu_processes),
        at=now,
        instance_id=instance_id,
        can_update=can_update,
        access_point=normalized_url(access_point) or "",
    )
    if instance_id and seen.instance_id != instance_id:
        if not claim_instance(session, appliance_id, instance_id, now=now):
            return None
    elif (
        not _changes(session, seen, beat)
        and not _changes_nodes(session, seen, beat)
        and _store(session, seen, beat)
    ):
        return cast("str | None", seen.update_id)
    locked = lock_appliance(session, appliance_id)
    if locked.revoked_at is not None or locked.retired_at is not None:
        return None
    changes = _changes(session, locked, beat)
    are_nodes_changed = _changes_nodes(session, locked, beat)
    before = cluster_of(locked.inventory)
    if _store(session, locked, beat):
        for change in changes:
            add_event(session, locked, change.kind, change.message, details=change.details, now=now)
        if are_nodes_changed:
            after = before if inventory is None else inventory.cluster
            sync_nodes(session, locked, after, before=before, now=now)
    return locked.update_id


def _credible_skew(skew_seconds: float, before: float | None) -> float:
    """Return the skew of the agent's clock to record.

    A heartbeat that was delayed looks like a clock that is behind. So the first one that does
    counts as at the limit of a correct clock, and the next one in full.
    """
    if skew_seconds < -SKEW_LIMIT_SECONDS and (before is None or before > -SKEW_LIMIT_SECONDS):
        return -SKEW_LIMIT_SECONDS
    return skew_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """A heartbeat; `inventory`, `health` and `gpu_processes` are what the database stores."""

    reported: KnownState
    inventory: dict[str, Any] | None
    health: dict[str, Any] | None
    gpu_processes: list[dict[str, Any]] | None
    at: datetime
    instance_id: str
    can_update: bool
    access_point: str


_COLUMNS = (
    Appliance.id,
    Appliance.state,
    Appliance.inventory,
    Appliance.health,
    Appliance.gpu_processes,
    Appliance.agent_version,
    Appliance.clock_skew_seconds,
    Appliance.last_seen_at,
    Appliance.revoked_at,
    Appliance.retired_at,
    Appliance.instance_id,
    Appliance.can_update,
    Appliance.access_point,
    Appliance.update_id,
)
_Seen = Row[Any] | Appliance


def _changes(session: Session, seen: _Seen, beat: _Beat) -> list[ChangeEvent]:
    reported, skew_seconds = beat.reported, seen.clock_skew_seconds
    is_reported_skewed = may_report_clock(skew_seconds, reported.clock_skew_seconds) and (
        last_details(session, seen.id, EventKind.CLOCK).get("is_off", False)
    )
    is_same = (seen.inventory == beat.inventory, seen.health == beat.health)
    before = KnownState(
        inventory=reported.inventory if is_same[0] else _decoded(seen.inventory, Inventory),
        health=reported.health if is_same[1] else _decoded(seen.health, ApplianceHealth),
        agent_version=seen.agent_version,
        clock_skew_seconds=skew_seconds,
        is_clock_reported_skewed=is_reported_skewed,
    )
    events = change_events_of(before, reported)
    if seen.state is ApplianceState.ONLINE:
        return events
    details = {"before": seen.state.value, "after": ApplianceState.ONLINE.value}
    message = "Online for the first time."
    if seen.last_seen_at is not None:
        silence = format_duration((beat.at - seen.last_seen_at).total_seconds())
        message = f"Online again after {silence} without heartbeats."
    return [ChangeEvent(EventKind.STATE, message, details), *events]


def _changes_nodes(session: Session, seen: _Seen, beat: _Beat) -> bool:
    """Return whether rows of the nodes of a cluster must follow this heartbeat of its connector."""
    inventory = beat.reported.inventory
    is_back = seen.state is not ApplianceState.ONLINE
    if is_back and (inventory.cluster if inventory else cluster_of(seen.inventory)) is not None:
        return True
    if inventory is None or seen.inventory == beat.inventory:
        return False
    return nodes_differ(session, seen.id, cluster_of(seen.inventory), inventory.cluster)


def _decoded(stored: object, kind: type[T]) -> T | None:
    """Return what an earlier version stored; None if this version can't decode it."""
    try:
        return msgspec.convert(stored, kind)
    except msgspec.ValidationError:
        return None


def _shareable(inventory: Mapping[str, Any] | None) -> list[object]:
    """Return the facts on which it depends how GPUs are to be shared."""
    reported = inventory or {}
    names = ("uuid", "model", "is_mig_enabled", "mig_profiles")
    gpus = [tuple(map(gpu.get, names)) for gpu in reported.get("gpus", ())]
    return [*gpus, reported.get("partition_modes")]


def _connecting(inventory: Mapping[str, Any] | None) -> list[object]:
    """Return the facts on which the networks of gangs depend."""
    network = (inventory or {}).get("network") or {}
    names = ("address", "public_address", "wireguard_public_key", "mtu")
    return [network.get(name) for name in names]


def _store(session: Session, seen: _Seen, beat: _Beat) -> bool:
    """Store what changed; return False if the appliance was changed concurrently."""
    check_transition(seen.state, ApplianceState.ONLINE)
    values: dict[str, Any] = {
        "state": ApplianceState.ONLINE,
        "agent_version": beat.reported.agent_version,
        "clock_skew_seconds": beat.reported.clock_skew_seconds,
        "last_seen_at": beat.at,
    }
    inventory = beat.reported.inventory
    if inventory is not None and beat.inventory != seen.inventory:
        values |= {"inventory": beat.inventory, **reported_gpus(inventory)}
        if _shareable(seen.inventory) != _shareable(beat.inventory):
            # The orders for its GPUs follow from these, so that its agent fetches them.
            values["desired_generation"] = Appliance.desired_generation + 1
        if _connecting(seen.inventory) != _connecting(beat.inventory):
            # Other appliances of its gangs have orders with these facts, too.
            values["desired_generation"] = Appliance.desired_generation + 1
    if beat.health != seen.health:
        health = beat.reported.health
        values |= {
            "health": beat.health,
            "health_state": None if health is None else health.state,
            **reported_class(beat.health),
        }
    if values.keys() & {"inventory", "health"}:
        values["report_id"] = new_id()
    values |= {
        name: getattr(beat, name)
        for name in ("can_update", "access_point", "gpu_processes")
        if getattr(beat, name) != getattr(seen, name)
    }
    statement = update(Appliance).where(
        Appliance.id == seen.id,
        Appliance.state == seen.state,
        Appliance.revoked_at.is_(None),
        Appliance.retired_at.is_(None),
    )
    if beat.instance_id:
        statement = statement.where(Appliance.instance_id == beat.instance_id)
    if "desired_generation" in values:
        note_change(session, Topic.DESIRED, seen.id)
    return changed_one(session, statement.values(**values))
