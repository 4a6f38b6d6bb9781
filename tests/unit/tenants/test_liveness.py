"""Missing heartbeats: online, stale, unreachable, lost; and the mass-outage guard."""

import logging
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from protocol.inventory import Inventory
from tenants.fleet.heartbeats import record_heartbeat
from tenants.fleet.liveness import ApplianceChange, sweep_appliances
from tenants.fleet.states import (
    TRANSITIONS,
    WITHOUT_AGENT,
    Thresholds,
    check_transition,
    next_state,
)
from tenants.models import Appliance, ApplianceState, Tenant
from tests.cast import NOON, Cast, make_appliance
from tests.diagrams import diagram_of

S = ApplianceState
THRESHOLDS = Thresholds(timedelta(seconds=30), timedelta(seconds=90), timedelta(seconds=600))


def sweep(
    session: Session, silence_seconds: float, *, listening_for: float | None = None
) -> list[ApplianceChange]:
    now = NOON + timedelta(seconds=silence_seconds)
    since = None if listening_for is None else now - timedelta(seconds=listening_for)
    return sweep_appliances(
        session,
        now=now,
        stale_after=THRESHOLDS.stale_after,
        unreachable_after=THRESHOLDS.unreachable_after,
        lost_after=THRESHOLDS.lost_after,
        listening_since=since,
    )


def fleet(session: Session, cast: Cast, count: int) -> list[Appliance]:
    tenant = session.get_one(Tenant, cast.acme.id)
    return [make_appliance(session, tenant, f"gpu-{n:02}") for n in range(count)]


def report(session: Session, appliance: Appliance, after_seconds: float) -> None:
    at = NOON + timedelta(seconds=after_seconds)
    record_heartbeat(
        session,
        appliance.id,
        inventory=Inventory(hostname="gpu-01"),
        agent_version="0.1.0",
        sent_at=at,
        now=at,
    )


@pytest.mark.parametrize("current", [state for state in S if state not in WITHOUT_AGENT])
@pytest.mark.parametrize(
    ("seconds", "by_silence"),
    [(0, S.ONLINE), (30, S.ONLINE), (31, S.STALE), (91, S.UNREACHABLE), (601, S.LOST)],
)
def test_missing_heartbeats_only_worsen_a_state(
    current: ApplianceState, seconds: int, by_silence: ApplianceState
) -> None:
    order = [S.ENROLLED, S.ONLINE, S.STALE, S.UNREACHABLE, S.LOST]
    worse = max(current, by_silence, key=order.index)
    expected = current if by_silence is S.ONLINE else worse
    assert next_state(current, timedelta(seconds=seconds), THRESHOLDS) is expected


def test_an_appliance_goes_quiet_step_by_step(session: Session, cast: Cast) -> None:
    (appliance,) = fleet(session, cast, 1)
    seen = [[change.after for change in sweep(session, at)] for at in (10, 40, 50, 100, 700, 710)]
    assert seen == [[], [S.STALE], [], [S.UNREACHABLE], [S.LOST], []]
    assert appliance.state is S.LOST


def test_a_change_names_the_appliance_and_both_states(session: Session, cast: Cast) -> None:
    (appliance,) = fleet(session, cast, 1)
    assert sweep(session, 100) == [
        ApplianceChange(
            appliance_id=appliance.id,
            tenant_id=cast.acme.id,
            name="gpu-00",
            before=S.ONLINE,
            after=S.UNREACHABLE,
        )
    ]


def test_an_appliance_that_never_reported_goes_quiet_too(session: Session, cast: Cast) -> None:
    (appliance,) = fleet(session, cast, 1)
    appliance.state, appliance.last_seen_at = S.ENROLLED, None
    session.flush()
    assert [change.after for change in sweep(session, 40)] == [S.STALE]


def test_a_revoked_appliance_is_left_alone(session: Session, cast: Cast) -> None:
    (appliance,) = fleet(session, cast, 1)
    appliance.revoked_at = NOON
    session.flush()
    assert sweep(session, 700) == []


def test_the_portals_own_downtime_does_not_count(session: Session, cast: Cast) -> None:
    fleet(session, cast, 1)
    assert sweep(session, 3600, listening_for=10) == []
    assert [change.after for change in sweep(session, 3640, listening_for=50)] == [S.STALE]


def test_the_guard_protects_a_fleet_that_disappears_at_once(
    session: Session, cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    fleet(session, cast, 5)
    with caplog.at_level(logging.WARNING):
        changes = sweep(session, 700)
    assert [change.after for change in changes] == [S.UNREACHABLE] * 5
    (entry,) = caplog.records
    assert (entry.levelno, entry.args) == (logging.CRITICAL, (5, 5))


def test_the_guard_protects_unreachable_appliances(session: Session, cast: Cast) -> None:
    fleet(session, cast, 6)
    sweep(session, 100)
    assert sweep(session, 700) == []


def test_the_guard_ends_when_enough_appliances_report_again(session: Session, cast: Cast) -> None:
    appliances = fleet(session, cast, 6)
    sweep(session, 700)
    for appliance in appliances[:3]:
        report(session, appliance, 700)
    assert [change.after for change in sweep(session, 701)] == [S.LOST] * 3


def test_half_of_the_fleet_is_not_a_mass_outage(session: Session, cast: Cast) -> None:
    appliances = fleet(session, cast, 10)
    for appliance in appliances[:5]:
        report(session, appliance, 700)
    assert [change.after for change in sweep(session, 700)] == [S.LOST] * 5


def test_four_appliances_are_too_few_for_a_mass_outage(session: Session, cast: Cast) -> None:
    fleet(session, cast, 4)
    assert [change.after for change in sweep(session, 700)] == [S.LOST] * 4


@pytest.mark.parametrize(("current", "target"), list(product(S, S)))
def test_only_transitions_of_the_table_are_allowed(
    current: ApplianceState, target: ApplianceState
) -> None:
    if target is current or target in TRANSITIONS[current]:
        assert check_transition(current, target) is target
    else:
        with pytest.raises(ValueError, match=f"{current} to {target}"):
            check_transition(current, target)


def test_the_end_of_an_outage_is_logged_as_a_warning(
    session: Session, cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    appliances = fleet(session, cast, 5)
    sweep(session, 700)
    caplog.clear()
    for appliance in appliances:
        report(session, appliance, 700)
    sweep(session, 701)
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING]


def test_the_diagram_is_the_table() -> None:
    diagram = diagram_of(Path("docs/states/appliance.md"))
    assert diagram == {(a.value, b.value) for a, after in TRANSITIONS.items() for b in after}
