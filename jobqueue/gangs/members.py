"""The gangs of attempts as their appliances get them, with their private networks.

A member's rank, name and address in the private network are the same for as long as the gang
exists, so they stay when one moves to another appliance.

A network has a number. A gang gets one in the transaction that assigns its first member. It keeps
it as long as a member has resources, and for a time after that, in which nobody else gets it:
packets of a network whose appliances have not removed it yet must not reach another gang. A number
also gives the UDP ports of the network, so gangs of a tenant, which share appliances, differ in
both.
"""

import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import and_, delete, exists, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobqueue.gangs.models import GangNetworkRecord
from jobqueue.jobs.settings import QueueSettings, settings_of
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES, AttemptState
from protocol.gangs import (
    Framework,
    Gang,
    GangAppliance,
    GangMember,
    GangNetwork,
    JobNetwork,
    NetworkAbilities,
    job_network,
    member_address,
    member_name,
)
from tenants.fleet.appliances import ReportCache
from tenants.models import Appliance

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


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The members of a gang: where each is that has an appliance, and whether all may start."""

    places: dict[int, str] = field(default_factory=dict)
    are_prepared: bool = True


@dataclass(frozen=True, slots=True)
class _Place:
    """An appliance of a gang."""

    site: str
    abilities: NetworkAbilities


class _Report(msgspec.Struct):
    network: NetworkAbilities = NetworkAbilities()


def network_of(job: Job) -> JobNetwork:
    """Return the network of a job: the one that it names, or the usual one."""
    return job_network(job.network, job.framework, job.nodes)


def gangs_of(session: Session, attempts: Sequence[Attempt]) -> dict[str, Gang]:
    """Return the gangs of attempts that are members of one, by the attempt's id."""
    own = {
        attempt.id: attempt
        for attempt in attempts
        if attempt.job.nodes > 1 and attempt.job.array_id is not None
    }
    if not own:
        return {}
    gang_ids = {attempt.job.array_id or "" for attempt in own.values()}
    ranks = _ranks(session, gang_ids)
    appliances = _appliances(
        session, {ident for of_gang in ranks.values() for ident in of_gang.places.values()}
    )
    vnis = _vnis(session, gang_ids)
    settings = settings_of(session, next(iter(own.values())).tenant_id)
    return {
        attempt.id: _gang(
            attempt,
            ranks[attempt.job.array_id or ""],
            appliances,
            vni=vnis.get(attempt.job.array_id or ""),
            settings=settings,
        )
        for attempt in own.values()
    }


def appliances_of_gang(session: Session, member: Job) -> set[str]:
    """Return the appliances of a gang."""
    ranks = _ranks(session, {member.array_id or ""})
    return set(ranks[member.array_id or ""].places.values())


def may_start(session: Session, member: Job) -> bool:
    """Return whether the members of a gang need not wait for each other."""
    return _ranks(session, {member.array_id or ""})[member.array_id or ""].are_prepared


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


def _gang(
    attempt: Attempt,
    ranks: _Ranks,
    appliances: Mapping[str, _Place],
    *,
    vni: int | None,
    settings: QueueSettings,
) -> Gang:
    job, network = attempt.job, network_of(attempt.job)
    is_private = network is JobNetwork.GANG
    members = []
    for rank in range(job.nodes):
        place = appliances.get(ranks.places.get(rank, ""))
        inner = str(member_address(SUBNET, rank).ip)
        members.append(
            GangMember(
                rank=rank,
                name=member_name(job.name, rank),
                address=inner if is_private else place.abilities.address if place else "",
                appliance_id=ranks.places.get(rank, ""),
            )
        )
    return Gang(
        gang_id=job.array_id or "",
        rank=job.array_index or 0,
        members=members,
        framework=Framework(job.framework or Framework.NONE),
        network=_network(attempt.appliance_id, ranks.places, appliances, vni, settings)
        if is_private and vni is not None
        else None,
        may_start=ranks.are_prepared,
    )


def _network(
    own_id: str,
    ranks: Mapping[int, str],
    appliances: Mapping[str, _Place],
    vni: int,
    settings: QueueSettings,
) -> GangNetwork:
    ranks_at: dict[str, list[int]] = defaultdict(list)
    for rank, appliance_id in sorted(ranks.items()):
        if appliance_id in appliances:
            ranks_at[appliance_id].append(rank)
    places = {appliance_id: appliances[appliance_id] for appliance_id in ranks_at}
    own = appliances.get(own_id)
    encrypts = settings.encrypts_gang_networks
    is_tunneled = encrypts or len({place.site for place in places.values()}) > 1
    return GangNetwork(
        vni=vni,
        subnet=SUBNET,
        vxlan_port=vxlan_port(vni),
        wireguard_port=wireguard_port(vni),
        mtu=member_mtu(
            [place.abilities.mtu for place in places.values()], is_encrypted=is_tunneled
        ),
        allows_egress=settings.allows_gang_egress,
        appliances=[
            _appliance(appliance_id, place, own, ranks_at[appliance_id], encrypts=encrypts)
            for appliance_id, place in sorted(places.items())
        ],
    )


def _appliance(
    appliance_id: str, place: _Place, own: _Place | None, ranks: list[int], *, encrypts: bool
) -> GangAppliance:
    """Return an appliance as another one of the gang reaches it."""
    is_elsewhere = own is not None and own.site != place.site
    abilities = place.abilities
    return GangAppliance(
        appliance_id=appliance_id,
        address=(is_elsewhere and abilities.public_address) or abilities.address,
        wireguard_public_key=abilities.wireguard_public_key,
        is_encrypted=encrypts or is_elsewhere,
        ranks=ranks,
    )


def _ranks(session: Session, gang_ids: Collection[str]) -> dict[str, _Ranks]:
    """Return the members by gang. One that ended for good keeps nobody from starting."""
    allocated = and_(Attempt.job_id == Job.id, Attempt.state.in_(ALLOCATED_STATES))
    statement = (
        select(
            Job.array_id,
            Job.array_index,
            Job.state,
            Attempt.appliance_id,
            Attempt.state,
            Attempt.is_prepared,
        )
        .outerjoin(Attempt, allocated)
        .where(Job.array_id.in_(gang_ids))
    )
    gangs: dict[str, _Ranks] = defaultdict(_Ranks)
    for gang_id, rank, job_state, appliance_id, state, is_prepared in session.execute(statement):
        ranks = gangs[gang_id or ""]
        if appliance_id is not None:
            ranks.places[rank or 0] = appliance_id
        if not (is_prepared or state is AttemptState.RUNNING or job_state.is_final):
            gangs[gang_id or ""] = replace(ranks, are_prepared=False)
    return gangs


def _appliances(session: Session, appliance_ids: Collection[str]) -> dict[str, _Place]:
    statement = select(Appliance.id, Appliance.report_id, Appliance.site)
    rows = session.execute(statement.where(Appliance.id.in_(appliance_ids))).all()
    reports = _REPORTS.read(session, {row.id: row.report_id for row in rows})
    return {row.id: _Place(row.site, reports[row.id]) for row in rows if row.id in reports}


def _vnis(session: Session, gang_ids: Collection[str]) -> dict[str, int]:
    statement = select(GangNetworkRecord.gang_id, GangNetworkRecord.vni)
    rows = session.execute(statement.where(GangNetworkRecord.gang_id.in_(gang_ids)))
    return {row.gang_id: row.vni for row in rows}


def _parse(inventory: str, _health: str | None) -> NetworkAbilities:
    try:
        return msgspec.json.decode(inventory, type=_Report).network
    except msgspec.ValidationError:
        return NetworkAbilities()


_REPORTS = ReportCache(_parse)


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
