"""The one word for an appliance's status: what decides it, in Python and in SQL alike."""

from datetime import datetime
from itertools import product

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.fleet.states import (
    EffectiveStatus,
    effective_status_of,
    effective_status_rank,
    has_effective_status,
    is_skewed,
)
from tenants.models import Appliance, ApplianceState
from tests.cast import NOON, Cast, make_appliance

L, S = EffectiveStatus, ApplianceState
SILENT = (S.STALE, S.UNREACHABLE, S.LOST, S.SILENT)


def appliance(
    state: ApplianceState = S.ONLINE,
    *,
    drained: bool = False,
    fenced: bool = False,
    retired: bool = False,
    revoked: bool = False,
) -> Appliance:
    def at(is_so: bool) -> datetime | None:  # noqa: FBT001 - read in place
        return NOON if is_so else None

    return Appliance(
        name="gpu-01",
        state=state,
        drained_at=at(drained),
        fenced_at=at(fenced),
        retired_at=at(retired),
        revoked_at=at(revoked),
    )


@pytest.mark.parametrize("state", list(S))
def test_without_an_admins_decision_the_status_is_the_state(state: ApplianceState) -> None:
    assert effective_status_of(appliance(state)).value == state.value


@pytest.mark.parametrize("state", list(S))
def test_silence_outranks_drained_and_drained_outranks_presence(state: ApplianceState) -> None:
    expected = state.value if state in SILENT else L.DRAINED.value
    assert effective_status_of(appliance(state, drained=True)).value == expected


@pytest.mark.parametrize("state", list(S))
def test_a_refused_agent_has_its_own_status(state: ApplianceState) -> None:
    assert effective_status_of(appliance(state, drained=True, fenced=True)) is L.FENCED
    assert effective_status_of(appliance(state, fenced=True, retired=True)) is L.RETIRED
    assert (
        effective_status_of(appliance(state, fenced=True, retired=True, revoked=True)) is L.REVOKED
    )


def test_only_retired_and_revoked_are_out_of_service() -> None:
    assert {status for status in L if not status.is_in_service} == {L.RETIRED, L.REVOKED}


def test_sql_finds_the_same_status_for_every_combination(session: Session, cast: Cast) -> None:
    verdicts = product(*[(None, NOON)] * 5)
    for number, (state, verdict) in enumerate(product(S, verdicts)):
        made = make_appliance(session, cast.acme, f"gpu-{number}", state=state)
        made.drained_at, made.quarantined_at, made.fenced_at, *out_of_service = verdict
        made.retired_at, made.revoked_at = out_of_service
    session.flush()
    status_by_id = {
        row.id: status
        for status in L
        for row in session.scalars(select(Appliance).where(has_effective_status(status)))
    }
    everything = session.scalars(select(Appliance)).all()
    assert status_by_id == {row.id: effective_status_of(row) for row in everything}
    assert len(status_by_id) == len(S) * 2**5


def test_sorted_by_need_the_fenced_and_lost_come_first(session: Session, cast: Cast) -> None:
    for status in L:
        state = S(status.value) if status.value in set(S) else S.ONLINE
        made = make_appliance(session, cast.acme, status.value, state=state)
        for verdict in ("drained", "quarantined", "fenced", "retired", "revoked"):
            setattr(made, f"{verdict}_at", NOON if status.value == verdict else None)
    session.flush()
    names = session.scalars(select(Appliance.name).order_by(effective_status_rank()))
    assert list(names) == [
        "fenced",
        "lost",
        "unreachable",
        "silent",
        "stale",
        "quarantined",
        "enrolled",
        "drained",
        "online",
        "reporting",
        "retired",
        "revoked",
    ]


@pytest.mark.parametrize(
    ("skew_seconds", "expected"),
    [(None, False), (0.0, False), (5.0, False), (-5.0, False), (5.01, True), (-90.0, True)],
)
def test_a_clock_is_off_beyond_five_seconds_either_way(
    skew_seconds: float | None,
    expected: bool,  # noqa: FBT001 - a table
) -> None:
    assert is_skewed(skew_seconds) is expected
