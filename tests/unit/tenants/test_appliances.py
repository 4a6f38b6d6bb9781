"""Appliances: heartbeats, lists, drained and revoked ones, and whose they are."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.executors.health import HealthState as ToldState
from tenants.appliances import (
    appliance_names,
    bump_generation,
    drain_appliance,
    get_appliance,
    list_appliances,
    record_heartbeat,
    rename_appliance,
    revoke_appliance,
    undrain_appliance,
)
from tenants.models import Appliance, ApplianceState, HealthState, Tenant
from tenants.scope import Scope
from tests.cast import NOON, Cast, make_appliance, scope_of


@pytest.fixture
def gpu01(session: Session, cast: Cast) -> Appliance:
    """An appliance of acme."""
    return make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")


def test_a_heartbeat_brings_any_appliance_online(session: Session, gpu01: Appliance) -> None:
    for state in ApplianceState:
        gpu01.state = state
        session.flush()
        now = NOON + timedelta(seconds=30)
        record_heartbeat(
            session, gpu01.id, inventory={"hostname": "gpu-01"}, agent_version="0.1.0",
            sent_at=now - timedelta(seconds=2), now=now,
        )  # fmt: skip
        assert (gpu01.state, gpu01.last_seen_at) == (ApplianceState.ONLINE, now)
        assert gpu01.clock_skew_seconds == -2.0
        assert gpu01.inventory == {"hostname": "gpu-01"}


def test_a_heartbeat_brings_health_and_one_without_makes_it_unknown(
    session: Session, gpu01: Appliance
) -> None:
    for health, state in (
        ({"state": "degraded", "appliance_class": "8 x flagship"}, HealthState.DEGRADED),
        ({"state": "failed"}, HealthState.FAILED),
        (None, None),
    ):
        record_heartbeat(
            session, gpu01.id, inventory={}, agent_version="0.1.0", sent_at=NOON, now=NOON,
            health=health,
        )  # fmt: skip
        session.refresh(gpu01)
        assert (gpu01.health, gpu01.health_state) == (health, state)


def test_a_list_is_narrowed_by_health(session: Session, cast: Cast, gpu01: Appliance) -> None:
    for name, state in (("gpu-02", HealthState.FAILED), ("gpu-03", HealthState.HEALTHY)):
        make_appliance(session, gpu01.tenant, name).health_state = state
    session.flush()
    scope = scope_of(cast.bob)
    assert [a.name for a in list_appliances(session, scope, health=HealthState.FAILED).items] == [
        "gpu-02"
    ]
    assert [a.name for a in list_appliances(session, scope, health="unknown").items] == ["gpu-01"]


def test_the_states_of_health_are_those_that_agents_tell() -> None:
    assert {state.value for state in HealthState} == {state.value for state in ToldState}


def test_a_heartbeat_does_not_bring_a_revoked_appliance_back(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    revoke_appliance(session, scope_of(cast.alice), gpu01.id, now=NOON)
    record_heartbeat(session, gpu01.id, inventory={}, agent_version="0.1.0", sent_at=NOON, now=NOON)
    assert gpu01.state is ApplianceState.LOST


def test_charlie_sees_no_appliance_of_acme(session: Session, cast: Cast, gpu01: Appliance) -> None:
    assert list_appliances(session, scope_of(cast.charlie)).items == []
    assert appliance_names(session, scope_of(cast.charlie).tenants) == {}
    with pytest.raises(NotFoundError):
        get_appliance(session, scope_of(cast.charlie), gpu01.id)


@pytest.mark.parametrize(
    "change",
    [
        lambda session, scope, ident: rename_appliance(session, scope, ident, name="mine"),
        lambda session, scope, ident: drain_appliance(session, scope, ident, now=NOON),
        undrain_appliance,
        lambda session, scope, ident: revoke_appliance(session, scope, ident, now=NOON),
    ],
)
def test_strangers_get_404_and_members_403_for_every_change(
    session: Session,
    cast: Cast,
    gpu01: Appliance,
    change: Callable[[Session, Scope, str], object],
) -> None:
    with pytest.raises(NotFoundError):
        change(session, scope_of(cast.charlie), gpu01.id)
    with pytest.raises(ForbiddenError):
        change(session, scope_of(cast.bob), gpu01.id)


def test_the_operator_sees_everyones_appliances(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    other = make_appliance(session, session.get_one(Tenant, cast.globex.id), "gpu-01")
    assert list_appliances(session, scope_of(cast.olivia)).total == 2
    assert appliance_names(session, None) == {gpu01.id: "gpu-01", other.id: "gpu-01"}


def test_a_search_looks_at_name_site_and_region(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    other = make_appliance(session, gpu01.tenant, "gpu_02")
    other.site = "Lyon"
    session.flush()
    scope = scope_of(cast.bob)
    found = {
        text: [a.name for a in list_appliances(session, scope, search=text).items]
        for text in ("lyo", "GPU-", "gpu_", "100%")
    }
    assert found == {"lyo": ["gpu_02"], "GPU-": ["gpu-01"], "gpu_": ["gpu_02"], "100%": []}


def test_a_list_is_narrowed_by_state(session: Session, cast: Cast, gpu01: Appliance) -> None:
    make_appliance(session, gpu01.tenant, "gpu-02", state=ApplianceState.STALE)
    page = list_appliances(session, scope_of(cast.bob), state=ApplianceState.STALE)
    assert [a.name for a in page.items] == ["gpu-02"]


def test_a_revoked_appliance_leaves_the_list_and_keeps_its_name(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    revoke_appliance(session, scope, gpu01.id, now=NOON)
    assert list_appliances(session, scope).items == []
    assert list_appliances(session, scope, is_revoked=True).items == [gpu01]
    assert appliance_names(session, scope.tenants) == {gpu01.id: "gpu-01"}


def test_draining_twice_keeps_the_first_instant(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    drain_appliance(session, scope, gpu01.id, now=NOON)
    drain_appliance(session, scope, gpu01.id, now=NOON + timedelta(hours=1))
    assert gpu01.drained_at == NOON
    assert undrain_appliance(session, scope, gpu01.id).drained_at is None


def test_a_name_that_another_appliance_has_is_a_conflict(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    make_appliance(session, gpu01.tenant, "gpu-02")
    with pytest.raises(ConflictError) as caught:
        rename_appliance(session, scope_of(cast.alice), gpu01.id, name="gpu-02")
    assert list(caught.value.errors) == ["name"]
    assert rename_appliance(session, scope_of(cast.alice), gpu01.id, name="gpu-01").name == "gpu-01"


def test_a_name_with_spaces_is_refused(session: Session, cast: Cast, gpu01: Appliance) -> None:
    with pytest.raises(InvalidInputError):
        rename_appliance(session, scope_of(cast.alice), gpu01.id, name="my host")


def test_the_generation_counts_up(session: Session, gpu01: Appliance) -> None:
    bump_generation(session, gpu01.id)
    bump_generation(session, gpu01.id)
    session.refresh(gpu01)
    assert gpu01.desired_generation == 3
    with pytest.raises(NotFoundError):
        bump_generation(session, "no-such-appliance")
