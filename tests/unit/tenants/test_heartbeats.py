"""Heartbeats: what they keep of an appliance, and the events that they make."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from protocol.gpu_slices import MIGInstance, MIGProfile
from protocol.health import ApplianceHealth, HealthState
from protocol.inventory import GPUInfo, Inventory
from tenants.fleet.events import EventKind, add_event, list_events, prune_events
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.states import SKEW_LIMIT_SECONDS
from tenants.models import Appliance, ApplianceState, Tenant
from tests.cast import NOON, Cast, make_appliance, scope_of

GPUS = [
    GPUInfo(index=n, uuid=f"GPU-{n}", model="H100 80GB", memory_bytes=80 * 2**30) for n in range(8)
]
MIG_GPU = GPUInfo(
    index=0,
    uuid="GPU-0",
    model="H100 80GB",
    memory_bytes=80 * 2**30,
    is_mig_capable=True,
    mig_profiles=[
        MIGProfile(
            name="1g.10gb",
            profile_id=19,
            memory_bytes=10 * 2**30,
            multiprocessors=16,
            slots=1,
            starts=tuple(range(7)),
        )
    ],
)
INVENTORY = Inventory(hostname="gpu-01", gpus=GPUS)


@pytest.fixture
def gpu01(session: Session, cast: Cast) -> Appliance:
    return make_appliance(
        session,
        session.get_one(Tenant, cast.acme.id),
        "gpu-01",
        inventory=msgspec.to_builtins(INVENTORY),
    )


def beat(session: Session, appliance: Appliance, after_seconds: float = 10, **told: Any) -> None:  # noqa: ANN401 - what the heartbeat tells
    now = NOON + timedelta(seconds=after_seconds)
    values: dict[str, Any] = {
        "inventory": INVENTORY,
        "agent_version": appliance.agent_version,
        "sent_at": now,
    }
    record_heartbeat(session, appliance.id, now=now, **{**values, **told})
    session.refresh(appliance)


def events(session: Session, cast: Cast, appliance: Appliance) -> list[tuple[str, str]]:
    """Return kind and message, the oldest first."""
    page = list_events(session, scope_of(cast.bob), appliance.id)
    return [(entry.kind, entry.message) for entry in reversed(page.items)]


def test_an_ordinary_heartbeat_makes_no_event_and_two_statements(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    beat(session, gpu01)
    asked: list[str] = []
    engine = session.get_bind()

    def note(*args: Any) -> None:  # noqa: ANN401 - whatever SQLAlchemy hands over
        asked.append(args[2])

    event.listen(engine, "before_cursor_execute", note)
    now = NOON + timedelta(seconds=20)
    record_heartbeat(session, gpu01.id, inventory=INVENTORY, agent_version="", sent_at=now, now=now)
    event.remove(engine, "before_cursor_execute", note)
    assert [statement.split()[0] for statement in asked] == ["SELECT", "UPDATE"]
    assert "inventory=" not in asked[1]
    assert events(session, cast, gpu01) == []


def test_a_clock_that_swings_around_the_limit_makes_one_event_and_one_when_it_is_right(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    for number, skew_seconds in enumerate([0, 5.2, 4.8, 5.2, 3.0, 5.2, 2.0, 3.0, 2.0]):
        at = 10.0 * number
        sent_at = NOON + timedelta(seconds=at + skew_seconds)
        beat(session, gpu01, after_seconds=at, sent_at=sent_at)
    told = [message for kind, message in events(session, cast, gpu01) if kind == "clock"]
    assert told == [
        "The clock is 5.2 s ahead of the portal's. Check the time service.",
        "The clock is within 2.5 s of the portal's again.",
    ]


def test_a_delayed_heartbeat_is_no_clock_that_is_behind(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    recorded = []
    for number, late_seconds in enumerate([0, 17, 0, 17, 17]):
        at = 10.0 * number
        sent_at = NOON + timedelta(seconds=at - late_seconds)
        beat(session, gpu01, after_seconds=at, sent_at=sent_at)
        recorded.append(gpu01.clock_skew_seconds)
    assert recorded == [0, -SKEW_LIMIT_SECONDS, 0, -SKEW_LIMIT_SECONDS, -17]
    assert [kind for kind, _ in events(session, cast, gpu01)] == ["clock"]


def test_the_columns_of_lists_follow_inventory_and_health(
    session: Session, gpu01: Appliance
) -> None:
    assert (gpu01.gpu_count, gpu01.gpu_model) == (8, "H100 80GB")
    two = [GPUS[0], GPUInfo(index=1, uuid="GPU-x", model="A100", memory_bytes=0)]
    health = ApplianceHealth(state=HealthState.DEGRADED, appliance_class="2 x flagship")
    beat(session, gpu01, inventory=Inventory(hostname="gpu-01", gpus=two), health=health)
    assert (gpu01.gpu_count, gpu01.gpu_model) == (2, "A100, H100 80GB")
    assert (gpu01.appliance_class, gpu01.health_state) == ("2 x flagship", HealthState.DEGRADED)


def test_a_return_from_silence_says_how_long_it_was(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    gpu01.state = ApplianceState.UNREACHABLE
    session.flush()
    beat(session, gpu01, 720)
    assert events(session, cast, gpu01) == [("state", "Online again after 12m without heartbeats.")]


def test_all_that_is_new_becomes_an_event_each(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    gpu01.agent_version = "1.0"
    gpu01.inventory = {**gpu01.inventory, "boot_id": "a"}
    session.flush()
    after = Inventory(hostname="gpu-01", gpus=GPUS[:7], boot_id="b")
    health = ApplianceHealth(state=HealthState.FAILED)
    beat(
        session,
        gpu01,
        inventory=after,
        agent_version="1.1",
        health=health,
        sent_at=NOON + timedelta(seconds=50),
    )
    kinds = [kind for kind, _ in events(session, cast, gpu01)]
    assert sorted(kinds) == ["agent", "clock", "health", "inventory", "reboot"]
    beat(
        session,
        gpu01,
        20,
        inventory=after,
        agent_version="1.1",
        health=health,
        sent_at=NOON - timedelta(seconds=40),
    )
    assert len(events(session, cast, gpu01)) == 5


def test_a_sweep_in_between_costs_no_event(session: Session, cast: Cast, gpu01: Appliance) -> None:
    """The heartbeat looked while it was online, and the sweep called it stale before it wrote."""
    swept: list[bool] = []

    def sweep_first(conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:  # noqa: ANN401 - SQLAlchemy's
        if statement.startswith("UPDATE appliances SET") and not swept:
            swept.append(True)
            conn.exec_driver_sql(f"UPDATE appliances SET state = 'stale' WHERE id = '{gpu01.id}'")  # noqa: S608 - an id

    event.listen(session.get_bind(), "before_cursor_execute", sweep_first)
    beat(session, gpu01, 31)
    assert gpu01.state is ApplianceState.ONLINE
    assert events(session, cast, gpu01) == [("state", "Online again after 31s without heartbeats.")]


def test_a_retired_appliance_stays_as_it_was(session: Session, gpu01: Appliance) -> None:
    gpu01.retired_at = NOON
    session.flush()
    beat(session, gpu01, 60, agent_version="9.9")
    assert (gpu01.last_seen_at, gpu01.agent_version) == (NOON, "")


def test_a_heartbeat_of_nobody_is_dropped(session: Session) -> None:
    record_heartbeat(
        session,
        "gone",
        inventory=Inventory(hostname="gpu-01"),
        agent_version="",
        sent_at=NOON,
        now=NOON,
    )


def test_events_are_paged_filtered_and_of_the_own_tenant_only(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    for number in range(3):
        at = NOON + timedelta(seconds=number)
        add_event(session, gpu01, EventKind.CLOCK, f"clock {number}", now=at)
    add_event(session, gpu01, EventKind.AGENT, "agent", now=NOON)
    session.flush()
    page = list_events(session, scope_of(cast.bob), gpu01.id, kind=EventKind.CLOCK, page_size=2)
    assert ([entry.message for entry in page.items], page.total) == (["clock 2", "clock 1"], 3)
    with pytest.raises(NotFoundError):
        list_events(session, scope_of(cast.charlie), gpu01.id)


def test_old_events_are_pruned_and_young_ones_stay(
    session: Session, cast: Cast, gpu01: Appliance
) -> None:
    for days in (1, 10, 100):
        at = NOON - timedelta(days=days)
        add_event(session, gpu01, EventKind.STATE, f"{days} days", now=at)
    session.flush()
    before = NOON - timedelta(days=5)
    assert [prune_events(session, before=before) for _ in range(2)] == [2, 0]
    assert events(session, cast, gpu01) == [("state", "1 days")]


def test_a_long_message_is_truncated(session: Session, cast: Cast, gpu01: Appliance) -> None:
    add_event(session, gpu01, EventKind.HEALTH, "x" * 600, now=NOON)
    session.flush()
    assert events(session, cast, gpu01) == [("health", "x" * 500)]


def test_gpus_with_mig_do_not_change_with_each_heartbeat(
    session: Session, gpu01: Appliance
) -> None:
    inventory = msgspec.structs.replace(INVENTORY, gpus=[MIG_GPU])
    beat(session, gpu01, inventory=inventory)
    report_id = gpu01.report_id
    session.expire_all()
    beat(session, gpu01, 20, inventory=inventory)
    assert gpu01.report_id == report_id


def test_an_agent_fetches_its_orders_when_its_gpus_offer_other_profiles(
    session: Session, gpu01: Appliance
) -> None:
    before = gpu01.desired_generation
    made = MIGInstance(uuid="MIG-1", profile="1g.10gb", start=0, slots=1)
    for gpu in (
        MIG_GPU,
        msgspec.structs.replace(MIG_GPU, is_mig_enabled=True, mig_instances=[made]),
        msgspec.structs.replace(MIG_GPU, is_mig_enabled=True),
        msgspec.structs.replace(MIG_GPU, mig_profiles=[]),
    ):
        beat(session, gpu01, inventory=msgspec.structs.replace(INVENTORY, gpus=[gpu]))
    # Instances come and go with jobs, which change the generation themselves.
    assert gpu01.desired_generation == before + 3
    able = msgspec.structs.replace(INVENTORY, gpus=[MIG_GPU], partition_modes=["mig"])
    beat(session, gpu01, inventory=able)
    assert gpu01.desired_generation == before + 4
