"""Private networks of gangs in the database: numbers, orders of agents, placement and settings."""

# ruff: noqa: ANN401 - builders pass any field on

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import Result, event, func, select, update
from sqlalchemy.orm import ORMExecuteState, Session

from core.errors import InvalidInputError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.executors.abilities import Need
from jobqueue.gangs.members import (
    PORT_COUNT,
    RESERVED_FOR,
    member_mtu,
    note_assigned,
    sweep_networks,
)
from jobqueue.gangs.models import GangNetworkRecord
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Attempt, Job
from jobqueue.placement.views import Reach, Snapshot
from jobqueue.states import AttemptState
from protocol.attempts import ObservedState
from protocol.gangs import Gang, NetworkAbilities, member_address, member_name
from protocol.job_spec import JobKind
from tenants.models import Appliance
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import (
    add_appliance,
    appliance,
    dispatch,
    job,
    plan,
    report,
    submit,
)

LATER = NOON + timedelta(minutes=30)
ABLE = NetworkAbilities(
    address="192.0.2.1", wireguard_public_key="key-1", mtu=9000, can_make_networks=True
)


def able(
    session: Session,
    cast: Cast,
    number: int,
    *,
    site: str = "",
    **changes: object,
) -> Appliance:
    """Add an appliance that makes networks."""
    name = f"dgx-{number:02}"
    network = {
        **msgspec.to_builtins(ABLE),
        "address": f"192.0.2.{number}",
        "public_address": f"203.0.113.{number}",
        "wireguard_public_key": f"key-{number}",
    }
    made = add_appliance(session, cast.acme, name, network=network | changes)
    made.site = site
    session.flush()
    return made


def running(
    session: Session, cast: Cast, *, sites: tuple[str, str] = ("", ""), **changes: Any
) -> list[Attempt]:
    """The attempts of a gang of two with a private network, on an appliance each."""
    for number in (1, 2):
        able(session, cast, number, site=sites[number - 1])
    leader = submit(session, cast.alice, nodes=2, gpus=8, network="gang", **changes)
    dispatch(session, now=NOON)
    return attempts_of(session, leader)


def attempts_of(session: Session, leader: Job) -> list[Attempt]:
    statement = select(Attempt).join(Job).where(Job.array_id == leader.id)
    ordered = statement.order_by(Job.array_index, Attempt.number)
    return list(session.scalars(ordered.execution_options(populate_existing=True)).unique())


def gang_at(session: Session, attempt: Attempt) -> Gang:
    """The gang as the appliance of one of its members gets it."""
    state = desired_state(session, attempt.appliance_id, box=BOX)
    gang = next(spec.gang for spec in state.attempts if spec.attempt_id == attempt.id)
    assert gang is not None
    return gang


def vnis(session: Session) -> list[int]:
    return list(session.scalars(select(GangNetworkRecord.vni)))


def test_each_member_gets_the_same_network_with_its_own_rank(session: Session, cast: Cast) -> None:
    first, second = running(session, cast)
    gangs = [gang_at(session, first), gang_at(session, second)]
    assert [gang.rank for gang in gangs] == [0, 1]
    assert gangs[0].members == gangs[1].members
    assert [(member.name, member.address) for member in gangs[0].members] == [
        ("train-0", "10.96.0.1"),
        ("train-1", "10.96.0.2"),
    ]
    network = gangs[0].network
    assert network is not None
    assert network.vni == vnis(session)[0]
    assert network.mtu == 8950
    places = {tuple(place.ranks): place for place in network.appliances}
    assert {place.address for place in places.values()} == {"192.0.2.1", "192.0.2.2"}
    assert places.keys() == {(0,), (1,)}
    assert not any(place.is_encrypted for place in places.values())


def test_another_site_is_reached_at_its_public_address_and_encrypted(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, sites=("north", "south"))
    network = gang_at(session, first).network
    assert network is not None
    places = {place.appliance_id: place for place in network.appliances}
    own, other = places[first.appliance_id], places[second.appliance_id]
    assert (own.address[:8], own.is_encrypted) == ("192.0.2.", False)
    assert (other.address[:10], other.is_encrypted) == ("203.0.113.", True)
    assert network.mtu == 8890


def test_a_tenant_can_encrypt_within_a_site_and_allow_egress(session: Session, cast: Cast) -> None:
    settings = QueueSettings(encrypts_gang_networks=True, allows_gang_egress=True)
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    first, _ = running(session, cast)
    network = gang_at(session, first).network
    assert network is not None
    assert network.allows_egress
    assert all(place.is_encrypted for place in network.appliances)


def test_all_appliances_of_a_running_gang_learn_that_it_is_encrypted(
    session: Session, cast: Cast
) -> None:
    attempts = running(session, cast)
    before = [attempt.appliance.desired_generation for attempt in attempts]
    settings = QueueSettings(encrypts_gang_networks=True)
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    for attempt, generation in zip(attempts, before, strict=True):
        session.refresh(attempt.appliance)
        assert attempt.appliance.desired_generation > generation


def test_a_member_that_moves_keeps_its_address_and_the_others_learn_its_place(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, on_member_loss="continue", max_retries=1)
    spare = able(session, cast, 3)
    for attempt in (first, second):
        report(session, attempt, ObservedState.RUNNING)
    before = session.get_one(Appliance, first.appliance_id).desired_generation
    report(session, second, ObservedState.FAILED, reason="exit_code", exit_code=1)
    session.get_one(Appliance, second.appliance_id).drained_at = NOON
    session.flush()
    dispatch(session, now=LATER)
    moved = attempts_of(session, session.get_one(Job, first.job.array_id or ""))[-1]
    assert moved.appliance_id == spare.id
    gang = gang_at(session, first)
    assert (gang.members[1].address, gang.members[1].appliance_id) == ("10.96.0.2", spare.id)
    session.expire_all()
    assert session.get_one(Appliance, first.appliance_id).desired_generation > before
    assert len(vnis(session)) == 1


def test_a_member_without_a_place_is_still_listed(session: Session, cast: Cast) -> None:
    first, second = running(session, cast, on_member_loss="continue")
    for attempt in (first, second):
        report(session, attempt, ObservedState.RUNNING)
    report(session, second, ObservedState.FAILED, reason="exit_code", exit_code=1)
    gang = gang_at(session, first)
    assert [member.appliance_id for member in gang.members] == [first.appliance_id, ""]
    assert gang.network is not None
    assert [place.ranks for place in gang.network.appliances] == [[0]]


def test_a_number_is_not_used_again_at_once(session: Session, cast: Cast) -> None:
    attempts = running(session, cast)
    assert sweep_networks(session, now=NOON) == 0
    for attempt in attempts:
        report(session, attempt, ObservedState.RUNNING)
        report(session, attempt, ObservedState.SUCCEEDED)
    assert sweep_networks(session, now=LATER) == 0
    assert len(vnis(session)) == 1
    assert sweep_networks(session, now=LATER + RESERVED_FOR + timedelta(seconds=1)) == 1
    assert vnis(session) == []


def test_a_gang_that_is_assigned_during_a_sweep_keeps_its_network(
    session: Session, cast: Cast
) -> None:
    attempts = running(session, cast)
    states = {attempt.id: attempt.state for attempt in attempts}
    ended = update(Attempt).values(state=AttemptState.SUCCEEDED)
    session.execute(ended)
    assert sweep_networks(session, now=NOON) == 0
    session.execute(ended)

    for now in (LATER + RESERVED_FOR, LATER + 2 * RESERVED_FOR):
        looked: list[bool] = []

        def assign_again(state: ORMExecuteState, looked: list[bool] = looked) -> Result[Any] | None:
            if not state.is_select or looked:
                return None
            looked.append(True)
            seen_before = state.invoke_statement().freeze()
            for ident, value in states.items():
                session.execute(update(Attempt).where(Attempt.id == ident).values(state=value))
            return seen_before()

        event.listen(session, "do_orm_execute", assign_again)
        assert sweep_networks(session, now=now) == 0
        event.remove(session, "do_orm_execute", assign_again)
        assert looked
        assert len(vnis(session)) == 1
        session.execute(ended)


def test_networks_of_a_tenant_differ_in_number_and_ports(session: Session, cast: Cast) -> None:
    leaders = [submit(session, cast.alice, nodes=2, network="gang", cpus=1) for _ in range(20)]
    for leader in leaders:
        note_assigned(session, cast.acme.id, [leader.id], now=NOON)
        note_assigned(session, cast.acme.id, [leader.id], now=NOON)
    count = select(func.count()).select_from(GangNetworkRecord)
    assert session.scalar(count) == len({vni % PORT_COUNT for vni in vnis(session)}) == 20


def test_a_gang_on_the_bridge_gets_no_network(session: Session, cast: Cast) -> None:
    for number in (1, 2):
        able(session, cast, number)
    leader = submit(session, cast.alice, nodes=2, gpus=8)
    dispatch(session, now=NOON)
    gang = gang_at(session, attempts_of(session, leader)[0])
    assert gang.network is None
    assert {member.address for member in gang.members} == {"192.0.2.1", "192.0.2.2"}
    assert vnis(session) == []


def test_placement_leaves_out_appliances_that_make_no_networks(
    session: Session, cast: Cast
) -> None:
    able(session, cast, 1)
    able(session, cast, 2, can_make_networks=False, problem="The agent lacks CAP_NET_ADMIN.")
    leader = submit(session, cast.alice, nodes=2, gpus=8, network="gang")
    dispatch(session, now=NOON)
    session.refresh(leader)
    assert "hold 1 of the gang's 2 members" in leader.message
    assert "dgx-02: makes no private networks for gangs: The agent lacks CAP_NET" in leader.message


@pytest.mark.parametrize(
    ("reaches", "sites", "is_placed"),
    [
        ((Reach.SITE, Reach.SITE), ("", ""), True),
        ((Reach.SITE, Reach.SITE), ("a", "b"), False),
        ((Reach.ANYWHERE, Reach.ANYWHERE), ("a", "b"), True),
        ((Reach.ALONE, Reach.SITE), ("a", "a"), False),
    ],
)
def test_a_gang_is_placed_as_far_as_its_network_reaches(
    reaches: tuple[Reach, Reach], sites: tuple[str, str], *, is_placed: bool
) -> None:
    fleet = [
        appliance(name, site=site, reach=reach)
        for name, site, reach in zip("ab", sites, reaches, strict=True)
    ]
    needs = frozenset({Need.GANG_NETWORK})
    members = ["g", "g/1"]
    connected = job("g", gpus=8, nodes=2, members=members, array_id="g", needs=needs)
    decisions = plan(Snapshot(now=NOON, appliances=fleet, jobs=[connected]))
    assert {decision.appliance_id for decision in decisions if decision.appliance_id} == (
        {"a", "b"} if is_placed else set()
    )
    if not is_placed:
        assert "does not reach beyond" in decisions[0].reason


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"network": "gang"}, "network"),
        ({"network": "gang", "kind": JobKind.SERVICE}, "network"),
        ({"network": "overlay"}, "network"),
        ({"network": "host"}, "network"),
        ({"uses_rdma": True}, "uses_rdma"),
        ({"network": "bridge", "nodes": 2, "framework": "torch"}, "network"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_at_submission(
    session: Session, cast: Cast, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submit(session, cast.alice, **changes)
    assert set(caught.value.errors) == {field}


def test_host_network_and_rdma_are_allowed_by_the_tenant(session: Session, cast: Cast) -> None:
    settings = replace(QueueSettings(), allows_host_network=True)
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    able(session, cast, 1, can_use_host=True, rdma_devices=["mlx5_0"])
    submitted = submit(session, cast.alice, network="host", uses_rdma=True)
    dispatch(session, now=NOON)
    session.refresh(submitted)
    assert submitted.attempt is not None
    [spec] = desired_state(session, submitted.attempt.appliance_id, box=BOX).attempts
    assert (spec.network, spec.uses_rdma, spec.gang) == ("host", True, None)


def test_an_appliance_with_an_old_agent_gets_no_job_for_the_hosts_network(
    session: Session, cast: Cast
) -> None:
    settings = QueueSettings(allows_host_network=True)
    set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    add_appliance(session, cast.acme, "dgx-01")
    submitted = submit(session, cast.alice, network="host")
    dispatch(session, now=NOON)
    session.refresh(submitted)
    assert "dgx-01: its agent gives no job the host's network" in submitted.message


@pytest.mark.parametrize(
    ("mtus", "is_encrypted", "expected"),
    [
        ([1500, 9000], False, 1450),
        ([0], True, 1390),
        ([9000, 9000], False, 8950),
        ([], False, 1450),
    ],
)
def test_the_largest_packet_fits_all_paths(
    mtus: list[int], expected: int, *, is_encrypted: bool
) -> None:
    assert member_mtu(mtus, is_encrypted=is_encrypted) == expected


def test_names_and_addresses_of_members_are_valid() -> None:
    assert member_name("My Training_Run!", 3) == "my-training-run-3"
    assert member_name("!!!", 0) == "job-0"
    assert len(member_name("x" * 100, 12)) == 63
    assert str(member_address("10.96.0.0/16", 299)) == "10.96.1.44/16"


def test_members_start_once_all_are_prepared(session: Session, cast: Cast) -> None:
    first, second = running(session, cast)
    assert not gang_at(session, first).may_start
    report(session, first, ObservedState.STARTING, is_prepared=True)
    assert not gang_at(session, first).may_start
    generation = desired_state(session, first.appliance_id, box=BOX).generation
    report(session, second, ObservedState.STARTING, is_prepared=True)
    assert gang_at(session, first).may_start
    assert gang_at(session, second).may_start
    assert desired_state(session, first.appliance_id, box=BOX).generation > generation


def test_a_member_whose_agent_does_not_wait_keeps_nobody_from_starting(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast)
    report(session, first, ObservedState.STARTING, is_prepared=True)
    generation = desired_state(session, first.appliance_id, box=BOX).generation
    report(session, second, ObservedState.RUNNING)
    assert gang_at(session, first).may_start
    assert desired_state(session, first.appliance_id, box=BOX).generation > generation


def test_a_member_that_ended_keeps_nobody_from_starting(session: Session, cast: Cast) -> None:
    first, second = running(session, cast, on_member_loss="continue")
    report(session, second, ObservedState.FAILED, reason="data_unavailable")
    report(session, first, ObservedState.STARTING, is_prepared=True)
    assert gang_at(session, first).may_start


def test_a_member_that_ends_while_another_waits_for_it_lets_that_start(
    session: Session, cast: Cast
) -> None:
    first, second = running(session, cast, on_member_loss="continue")
    report(session, first, ObservedState.STARTING, is_prepared=True)
    report(session, second, ObservedState.FAILED, reason="data_unavailable")
    generation = desired_state(session, first.appliance_id, box=BOX).generation
    report(session, first, ObservedState.STARTING, is_prepared=True)
    assert gang_at(session, first).may_start
    assert desired_state(session, first.appliance_id, box=BOX).generation > generation
