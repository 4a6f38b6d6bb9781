"""Appliances: lists, what people do to them, and whose they are."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from protocol.health import ApplianceHealth, HealthState
from protocol.inventory import Inventory
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import set_actor
from tenants.fleet.appliance_changes import ApplianceChanges, change_appliance, label_appliances
from tenants.fleet.appliance_service import (
    drain_appliance,
    drain_appliances,
    reinstate_appliance,
    retire_appliance,
    revoke_appliance,
    undrain_appliance,
)
from tenants.fleet.appliances import (
    SORTS,
    ApplianceFilter,
    appliance_names,
    bump_generation,
    filter_choices,
    get_appliance,
    list_appliances,
)
from tenants.fleet.events import list_events
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, ApplianceState, Tenant
from tenants.scope import Scope
from tests.cast import NOON, Cast, make_appliance, scope_of


def rename(session: Session, scope: Scope, ident: str, name: str) -> Appliance:
    return change_appliance(session, scope, ident, ApplianceChanges(name=name), now=NOON)


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
            session,
            gpu01.id,
            inventory=Inventory(hostname="gpu-01"),
            agent_version="0.1.0",
            sent_at=now - timedelta(seconds=2),
            now=now,
        )
        assert (gpu01.state, gpu01.last_seen_at) == (ApplianceState.ONLINE, now)
        assert gpu01.clock_skew_seconds == -2.0
        assert gpu01.inventory == msgspec.to_builtins(Inventory(hostname="gpu-01"))


def test_a_heartbeat_brings_health_and_one_without_makes_it_unknown(
    session: Session, gpu01: Appliance
) -> None:
    for health, state in (
        (
            ApplianceHealth(state=HealthState.DEGRADED, appliance_class="8 x flagship"),
            HealthState.DEGRADED,
        ),
        (ApplianceHealth(state=HealthState.FAILED), HealthState.FAILED),
        (None, None),
    ):
        record_heartbeat(
            session,
            gpu01.id,
            inventory=Inventory(hostname="gpu-01"),
            agent_version="0.1.0",
            sent_at=NOON,
            now=NOON,
            health=health,
        )
        session.refresh(gpu01)
        assert (gpu01.health, gpu01.health_state) == (msgspec.to_builtins(health), state)


def test_a_list_is_narrowed_by_health(session: Session, cast: Cast, gpu01: Appliance) -> None:
    for name, state in (("gpu-02", HealthState.FAILED), ("gpu-03", HealthState.HEALTHY)):
        make_appliance(session, gpu01.tenant, name).health_state = state
    session.flush()
    scope = scope_of(cast.bob)
    failed, unknown = ApplianceFilter(health=HealthState.FAILED), ApplianceFilter(health="unknown")
    assert [a.name for a in list_appliances(session, scope, failed).items] == ["gpu-02"]
    assert [a.name for a in list_appliances(session, scope, unknown).items] == ["gpu-01"]


def test_a_heartbeat_does_not_bring_a_revoked_appliance_back(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    revoke_appliance(session, scope_of(cast.alice), gpu01.id, now=NOON)
    record_heartbeat(
        session,
        gpu01.id,
        inventory=Inventory(hostname="gpu-01"),
        agent_version="0.1.0",
        sent_at=NOON,
        now=NOON,
    )
    assert gpu01.state is ApplianceState.LOST


def test_charlie_sees_no_appliance_of_acme(session: Session, cast: Cast, gpu01: Appliance) -> None:
    assert list_appliances(session, scope_of(cast.charlie)).items == []
    assert appliance_names(session, scope_of(cast.charlie).tenants) == {}
    with pytest.raises(NotFoundError):
        get_appliance(session, scope_of(cast.charlie), gpu01.id)


@pytest.mark.parametrize(
    "change",
    [
        lambda session, scope, ident: rename(session, scope, ident, "mine"),
        lambda session, scope, ident: drain_appliance(session, scope, ident, now=NOON),
        lambda session, scope, ident: undrain_appliance(session, scope, ident, now=NOON),
        lambda session, scope, ident: label_appliances(
            session, scope, [ident], added={"a": "b"}, now=NOON
        ),
        lambda session, scope, ident: retire_appliance(
            session, scope, ident, running_jobs=[], now=NOON
        ),
        lambda session, scope, ident: reinstate_appliance(session, scope, ident, now=NOON),
        lambda session, scope, ident: revoke_appliance(session, scope, ident, now=NOON),
    ],
)
def test_other_tenants_get_404_and_members_403_for_every_change(
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


def test_a_search_matches_name_site_and_region(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    other = make_appliance(session, gpu01.tenant, "gpu_02")
    other.site = "Lyon"
    session.flush()
    scope = scope_of(cast.bob)
    names = {
        text: [a.name for a in list_appliances(session, scope, ApplianceFilter(search=text)).items]
        for text in ("lyo", "GPU-", "gpu_", "100%")
    }
    assert names == {"lyo": ["gpu_02"], "GPU-": ["gpu-01"], "gpu_": ["gpu_02"], "100%": []}


def test_a_list_is_narrowed_by_state(session: Session, cast: Cast, gpu01: Appliance) -> None:
    make_appliance(session, gpu01.tenant, "gpu-02", state=ApplianceState.STALE)
    page = list_appliances(session, scope_of(cast.bob), ApplianceFilter(state=ApplianceState.STALE))
    assert [a.name for a in page.items] == ["gpu-02"]


def test_a_revoked_appliance_leaves_the_list_and_keeps_its_name(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    revoke_appliance(session, scope, gpu01.id, now=NOON)
    assert list_appliances(session, scope).items == []
    assert list_appliances(
        session, scope, ApplianceFilter(status=EffectiveStatus.REVOKED)
    ).items == [gpu01]
    assert appliance_names(session, scope.tenants) == {gpu01.id: "gpu-01"}


def test_draining_twice_keeps_the_first_instant(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    drain_appliance(session, scope, gpu01.id, now=NOON)
    drain_appliance(session, scope, gpu01.id, now=NOON + timedelta(hours=1))
    assert gpu01.drained_at == NOON
    assert undrain_appliance(session, scope, gpu01.id, now=NOON).drained_at is None


def test_a_name_that_another_appliance_has_is_a_conflict(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    make_appliance(session, gpu01.tenant, "gpu-02")
    with pytest.raises(ConflictError) as caught:
        rename(session, scope_of(cast.alice), gpu01.id, "gpu-02")
    assert list(caught.value.errors) == ["name"]
    assert rename(session, scope_of(cast.alice), gpu01.id, "gpu-01").name == "gpu-01"


def test_a_name_with_spaces_is_refused(session: Session, cast: Cast, gpu01: Appliance) -> None:
    with pytest.raises(InvalidInputError):
        rename(session, scope_of(cast.alice), gpu01.id, "my host")


def test_the_generation_counts_up(session: Session, gpu01: Appliance) -> None:
    bump_generation(session, gpu01.id)
    bump_generation(session, gpu01.id)
    session.refresh(gpu01)
    assert gpu01.desired_generation == 3
    with pytest.raises(NotFoundError):
        bump_generation(session, "no-such-appliance")


def test_lists_are_narrowed_by_what_appliances_have(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    other = make_appliance(
        session,
        gpu01.tenant,
        "gpu-02",
        inventory={
            "hostname": "gpu-02",
            "gpus": [{"index": 0, "uuid": "x", "model": "A100", "memory_bytes": 1}],
        },
    )
    other.site, other.region, other.labels = "Lyon", "eu-west", {"rack": "b12", "a/b.c": "1"}
    other.health = {"state": "healthy", "appliance_class": "1 x performance"}
    session.flush()
    scope = scope_of(cast.bob)
    for wanted in (
        ApplianceFilter(site="Lyon"),
        ApplianceFilter(region="eu-west"),
        ApplianceFilter(gpu_model="A100"),
        ApplianceFilter(appliance_class="1 x performance"),
        ApplianceFilter(label="rack"),
        ApplianceFilter(label="rack=b12"),
        ApplianceFilter(label="a/b.c = 1"),
        ApplianceFilter(search="a10"),
    ):
        assert list_appliances(session, scope, wanted).items == [other], wanted
    nothing = [ApplianceFilter(label=text) for text in ("rack=b1", "b12", 'r"x\\', "$.rack")]
    for wanted in (ApplianceFilter(site="Ly"), *nothing):
        assert list_appliances(session, scope, wanted).items == [], wanted
    choices = filter_choices(session, scope)
    assert (choices.sites, choices.regions) == (["Lyon"], ["eu-west"])
    assert (choices.classes, choices.gpu_models) == (["1 x performance"], ["A100"])
    assert filter_choices(session, scope_of(cast.charlie)).sites == []


@pytest.mark.parametrize("name", list(SORTS))
def test_a_list_is_sorted_both_ways(
    session: Session, cast: Cast, gpu01: Appliance, name: str
) -> None:
    for number, state in enumerate(ApplianceState):
        appliance = make_appliance(session, gpu01.tenant, f"a-{number}", state=state)
        appliance.health_state = list(HealthState)[number] if number < 3 else None
        appliance.gpu_count, appliance.gpu_model, appliance.appliance_class = (
            number,
            f"m{number}",
            f"c{number}",
        )
        appliance.site, appliance.region, appliance.agent_version = (
            f"s{number}",
            f"r{number}",
            f"{number}",
        )
        appliance.last_seen_at = NOON + timedelta(seconds=number)
    session.flush()
    scope = scope_of(cast.bob)
    up = [a.name for a in list_appliances(session, scope, sort=name).items]
    down = [a.name for a in list_appliances(session, scope, sort=f"-{name}").items]
    assert sorted(up) == sorted(down)
    assert (up[0], up[-1]) != (down[0], down[-1])


def test_a_list_is_sorted_by_several_names(session: Session, cast: Cast, gpu01: Appliance) -> None:
    for name, site, gpus in (("a", "Lyon", 8), ("b", "Lyon", 4), ("c", "Brest", 4)):
        appliance = make_appliance(session, gpu01.tenant, name)
        appliance.site, appliance.gpu_count = site, gpus
    session.flush()
    scope = scope_of(cast.bob)

    def named(sort: str) -> list[str]:
        return [a.name for a in list_appliances(session, scope, sort=sort).items][:3]

    assert named("-gpus,-site,name") == ["a", "b", "c"]
    assert named("-site,-name") == ["b", "a", "c"]
    with pytest.raises(InvalidInputError, match="Unknown sort field"):
        named("-site,color")


def test_a_brief_list_leaves_inventory_and_health_in_the_database(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    session.expunge(gpu01)
    (appliance,) = list_appliances(session, scope_of(cast.bob)).items
    assert "inventory" not in appliance.__dict__
    assert "health" not in appliance.__dict__


def test_a_change_of_all_is_one_event_that_names_who_did_it(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    set_actor(session, Actor(name="alice", via="browser"), clock=lambda: NOON)
    changes = ApplianceChanges(name="node-7", site="Lyon", region="eu", labels={"rack": "b12"})
    change_appliance(session, scope_of(cast.alice), gpu01.id, changes, now=NOON)
    change_appliance(session, scope_of(cast.alice), gpu01.id, changes, now=NOON)
    (event,) = list_events(session, scope_of(cast.bob), gpu01.id).items
    assert event.message == (
        "Name: node-7; was gpu-01. Site: Lyon; was none. Region: eu; was none. "
        "Labels: rack=b12; were none."
    )
    assert (event.kind, event.details) == ("changed", {"by": "alice"})


def test_what_is_left_out_of_a_change_stays(session: Session, cast: Cast, gpu01: Appliance) -> None:
    gpu01.labels, gpu01.region = {"rack": "b12"}, "eu"
    changes = ApplianceChanges(site="Lyon")
    change_appliance(session, scope_of(cast.alice), gpu01.id, changes, now=NOON)
    assert (gpu01.name, gpu01.region, gpu01.labels) == ("gpu-01", "eu", {"rack": "b12"})


def test_every_error_in_a_change_is_named(session: Session, cast: Cast, gpu01: Appliance) -> None:
    changes = ApplianceChanges(name="a b", site="x" * 101, labels={"": "x", "a": "b\nc"})
    with pytest.raises(InvalidInputError) as caught:
        change_appliance(session, scope_of(cast.alice), gpu01.id, changes, now=NOON)
    assert sorted(caught.value.errors) == ["labels", "name", "site"]
    assert len(caught.value.errors["labels"]) == 2
    assert gpu01.name == "gpu-01"


def test_several_are_drained_together_or_none(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    other = make_appliance(session, gpu01.tenant, "gpu-02")
    foreign = make_appliance(session, session.get_one(Tenant, cast.globex.id), "gpu-03")
    scope = scope_of(cast.alice)
    with pytest.raises(NotFoundError):
        drain_appliances(session, scope, [gpu01.id, foreign.id], now=NOON)
    assert gpu01.drained_at is None
    assert drain_appliances(session, scope, [gpu01.id, other.id], now=NOON) == [gpu01, other]
    assert {effective_status_of(gpu01), effective_status_of(other)} == {EffectiveStatus.DRAINED}


def test_labels_are_added_to_and_removed_from_several_appliances(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    gpu01.labels = {"rack": "a1", "tier": "gold"}
    scope = scope_of(cast.alice)
    label_appliances(session, scope, [gpu01.id], added={"rack": "b12"}, now=NOON)
    assert gpu01.labels == {"rack": "b12", "tier": "gold"}
    label_appliances(session, scope, [gpu01.id], added={}, removed=["tier", "none"], now=NOON)
    assert gpu01.labels == {"rack": "b12"}


def test_a_retired_appliance_leaves_the_list_keeps_its_name_and_comes_back(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    retire_appliance(session, scope, gpu01.id, running_jobs=[], now=NOON)
    assert list_appliances(session, scope).items == []
    retired = ApplianceFilter(status=EffectiveStatus.RETIRED)
    assert list_appliances(session, scope, retired).items == [gpu01]
    other = make_appliance(session, gpu01.tenant, "gpu-02")
    with pytest.raises(ConflictError):
        rename(session, scope, other.id, "gpu-01")
    reinstate_appliance(session, scope, gpu01.id, now=NOON)
    assert effective_status_of(gpu01) is EffectiveStatus.LOST
    kinds = [event.kind for event in list_events(session, scope, gpu01.id).items]
    assert sorted(kinds) == ["reinstated", "retired"]


def test_an_appliance_on_which_jobs_run_is_not_retired_and_they_are_named(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    jobs = [f"train-{n}" for n in range(7)]
    with pytest.raises(ConflictError, match=r"'train-0', .*'train-4' and 2 more") as caught:
        retire_appliance(session, scope_of(cast.alice), gpu01.id, running_jobs=jobs, now=NOON)
    assert caught.value.code == "jobs_running"
    assert gpu01.retired_at is None


def test_a_revoked_appliance_is_neither_retired_nor_reinstated(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    scope = scope_of(cast.alice)
    revoke_appliance(session, scope, gpu01.id, now=NOON)
    with pytest.raises(ConflictError):
        retire_appliance(session, scope, gpu01.id, running_jobs=[], now=NOON)
    with pytest.raises(ConflictError):
        reinstate_appliance(session, scope, gpu01.id, now=NOON)
