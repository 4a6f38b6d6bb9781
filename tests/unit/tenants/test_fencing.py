"""Fencing: two agents that use one identity at once are told apart from one that restarts."""

import pytest
from sqlalchemy.orm import Session

from core.errors import ForbiddenError, UnauthenticatedError
from protocol.inventory import Inventory
from tenants.fleet.agents import authenticate_agent, lift_fence
from tenants.fleet.heartbeats import record_heartbeat
from tenants.models import Appliance
from tests.cast import NOON, Cast, make_appliance, scope_of

SECRET = "vda_acme_dgx-01"


@pytest.fixture
def dgx(session: Session, cast: Cast) -> Appliance:
    return make_appliance(session, cast.acme, "dgx-01")


def beat(session: Session, appliance: Appliance, *instances: str) -> None:
    for instance_id in instances:
        record_heartbeat(
            session,
            appliance.id,
            inventory=Inventory(hostname="gpu-01"),
            agent_version="1",
            sent_at=NOON,
            now=NOON,
            instance_id=instance_id,
        )
    session.refresh(appliance)


def test_an_agent_may_restart_as_often_as_it_likes(session: Session, dgx: Appliance) -> None:
    beat(session, dgx, "a", "a", "b", "b", "c", "d", "d")
    assert dgx.fenced_at is None
    assert dgx.instance_id == "d"


@pytest.mark.parametrize("instances", ["aba", "aabba", "abca"])
def test_agents_that_take_turns_are_fenced(
    session: Session, dgx: Appliance, instances: str
) -> None:
    beat(session, dgx, *instances)
    assert dgx.fenced_at == NOON
    with pytest.raises(UnauthenticatedError, match=r"is fenced: two agents.*lift the fence"):
        authenticate_agent(session, SECRET)


def test_an_agent_that_reports_no_instance_is_not_judged(session: Session, dgx: Appliance) -> None:
    beat(session, dgx, "a", "", "a", "")
    assert dgx.fenced_at is None


def test_a_lifted_fence_admits_the_remaining_agent(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    beat(session, dgx, *"aba")
    lift_fence(session, scope_of(cast.alice), dgx.id, now=NOON)
    beat(session, dgx, *"aaa")
    assert authenticate_agent(session, SECRET).id == dgx.id


def test_a_lifted_fence_comes_back_while_both_still_run(
    session: Session, cast: Cast, dgx: Appliance
) -> None:
    beat(session, dgx, *"aba")
    lift_fence(session, scope_of(cast.alice), dgx.id, now=NOON)
    beat(session, dgx, *"aba")
    assert dgx.fenced_at is not None


def test_a_member_lifts_no_fence(session: Session, cast: Cast, dgx: Appliance) -> None:
    with pytest.raises(ForbiddenError):
        lift_fence(session, scope_of(cast.bob), dgx.id, now=NOON)
