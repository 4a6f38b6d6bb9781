"""The numbers of gangs' private networks.

A gang gets one in the transaction that assigns its first member. It keeps it as long as a member
has resources, and for a time after that, in which nobody else gets it: packets of a network whose
appliances have not removed it yet must not reach another gang. A number also gives the UDP ports of
the network, so gangs of a tenant, which share appliances, differ in both.
"""

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobqueue.gangs.models import GangNetworkRecord
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES
from protocol.gangs import JobNetwork, job_network

SUBNET = "10.96.0.0/16"
"""Of every gang: they don't see each other."""
VNI_COUNT = 2**24
PORT_COUNT = 4096
FIRST_VXLAN_PORT = 20480
FIRST_WIREGUARD_PORT = FIRST_VXLAN_PORT + PORT_COUNT
RESERVED_FOR = timedelta(hours=1)
USUAL_MTU, MIN_MTU = 1500, 576
VXLAN_OVERHEAD_BYTES, WIREGUARD_OVERHEAD_BYTES = 50, 60
MAX_TRIES = 10
MAX_SWEPT = 500


def vxlan_port(vni: int) -> int:
    """Return the UDP port of a network outside of tunnels."""
    return FIRST_VXLAN_PORT + vni % PORT_COUNT


def wireguard_port(vni: int) -> int:
    """Return the UDP port of a network's tunnels."""
    return FIRST_WIREGUARD_PORT + vni % PORT_COUNT


def member_mtu(mtus: Collection[int], *, is_encrypted: bool) -> int:
    """Return the largest packet of a member, which fits the paths between all appliances.

    Args:
        mtus: those of the appliances; 0 is unknown.
        is_encrypted: whether a path is.
    """
    smallest = min((mtu or USUAL_MTU for mtu in mtus), default=USUAL_MTU)
    overhead_bytes = VXLAN_OVERHEAD_BYTES + (WIREGUARD_OVERHEAD_BYTES if is_encrypted else 0)
    return max(smallest - overhead_bytes, MIN_MTU)


def note_assigned(
    session: Session, tenant_id: str, job_ids: Collection[str], *, now: datetime
) -> set[str]:
    """Give networks to the gangs of jobs that were just assigned.

    Returns:
        The appliances of all their members, whose agents have to know the new ones.
    """
    columns = (Job.array_id, Job.nodes, Job.options["network"].as_string().label("network"))
    framework = Job.options["framework"].as_string().label("framework")
    of_gangs = select(*columns, framework).where(Job.id.in_(job_ids), Job.nodes > 1).distinct()
    gangs = {row.array_id: row for row in session.execute(of_gangs)}
    if not gangs:
        return set()
    private = [
        gang_id
        for gang_id, row in gangs.items()
        if job_network(row.network or "", row.framework or "", row.nodes) is JobNetwork.GANG
    ]
    ids = GangNetworkRecord.gang_id
    # Locked: a sweep that has found the gang without members must not delete it after this.
    existing = set(session.scalars(select(ids).where(ids.in_(private)).with_for_update()))
    session.execute(
        update(GangNetworkRecord).where(ids.in_(existing)).values(released_at=None),
        execution_options={"synchronize_session": False},
    )
    for gang_id in private:
        if gang_id not in existing:
            _add(session, tenant_id, gang_id, now=now)
    members = (
        select(Attempt.appliance_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.array_id.in_(gangs), Attempt.state.in_(ALLOCATED_STATES))
    )
    return set(session.scalars(members))


def sweep_networks(session: Session, *, now: datetime) -> int:
    """Release the numbers of gangs that have ended, and delete those released long ago.

    Returns:
        How many were deleted.
    """
    has_members = exists().where(
        Job.array_id == GangNetworkRecord.gang_id,
        Attempt.job_id == Job.id,
        Attempt.state.in_(ALLOCATED_STATES),
    )
    ids, released_at = GangNetworkRecord.gang_id, GangNetworkRecord.released_at
    is_old = released_at < now - RESERVED_FOR
    candidates = select(ids).where(~has_members, or_(released_at.is_(None), is_old))
    # A gang may be assigned at the same moment: its network is locked, and looked at once more.
    locked = session.scalars(candidates.limit(MAX_SWEPT).with_for_update(skip_locked=True)).all()
    unused = select(ids, released_at).where(ids.in_(locked), ~has_members)
    rows = session.execute(unused).all()
    ended_ids = [gang_id for gang_id, released in rows if released is None]
    old_ids = [gang_id for gang_id, released in rows if released is not None]
    session.execute(
        update(GangNetworkRecord).where(ids.in_(ended_ids)).values(released_at=now),
        execution_options={"synchronize_session": False},
    )
    session.execute(
        delete(GangNetworkRecord).where(ids.in_(old_ids)),
        execution_options={"synchronize_session": False},
    )
    return len(old_ids)


def _add(session: Session, tenant_id: str, gang_id: str, *, now: datetime) -> None:
    own = select(GangNetworkRecord.vni).where(GangNetworkRecord.tenant_id == tenant_id)
    used_ports = {vni % PORT_COUNT for vni in session.scalars(own)}
    for attempt in range(MAX_TRIES):
        vni = secrets.randbelow(VNI_COUNT - 1) + 1
        free = [port for port in range(PORT_COUNT) if port not in used_ports]
        if free:
            vni = max(vni - vni % PORT_COUNT + secrets.choice(free), 1)
        record = GangNetworkRecord(gang_id=gang_id, tenant_id=tenant_id, vni=vni, created_at=now)
        try:
            with session.begin_nested():
                session.add(record)
        except IntegrityError:
            if attempt == MAX_TRIES - 1:
                raise
        else:
            return
