"""The one word for an appliance's life: what decides it, in Python and in SQL alike."""

from datetime import datetime
from itertools import product

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.fleet.life import LifeState, is_skewed, life_is, life_of, life_rank
from tenants.models import Appliance, ApplianceState
from tests.cast import NOON, Cast, make_appliance

L, S = LifeState, ApplianceState
SILENT = (S.STALE, S.UNREACHABLE, S.LOST)


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
        name="gpu-01", state=state, drained_at=at(drained), fenced_at=at(fenced),
        retired_at=at(retired), revoked_at=at(revoked),
    )  # fmt: skip


@pytest.mark.parametrize("state", list(S))
def test_without_a_verdict_the_word_is_the_state_of_silence(state: ApplianceState) -> None:
    assert life_of(appliance(state)).value == state.value


@pytest.mark.parametrize("state", list(S))
def test_silence_outranks_drained_and_drained_outranks_presence(state: ApplianceState) -> None:
    expected = state.value if state in SILENT else L.DRAINED.value
    assert life_of(appliance(state, drained=True)).value == expected


@pytest.mark.parametrize("state", list(S))
def test_who_is_not_let_in_is_called_so_whatever_it_was_before(state: ApplianceState) -> None:
    assert life_of(appliance(state, drained=True, fenced=True)) is L.FENCED
    assert life_of(appliance(state, fenced=True, retired=True)) is L.RETIRED
    assert life_of(appliance(state, fenced=True, retired=True, revoked=True)) is L.REVOKED


def test_only_retired_and_revoked_are_out_of_service() -> None:
    assert {life for life in L if not life.is_in_service} == {L.RETIRED, L.REVOKED}


def test_sql_finds_the_same_word_for_every_combination(session: Session, cast: Cast) -> None:
    verdicts = product(*[(None, NOON)] * 4)
    for number, (state, verdict) in enumerate(product(S, verdicts)):
        made = make_appliance(session, cast.acme, f"gpu-{number}", state=state)
        made.drained_at, made.fenced_at, made.retired_at, made.revoked_at = verdict
    session.flush()
    found = {
        one.id: life
        for life in L
        for one in session.scalars(select(Appliance).where(life_is(life)))
    }
    everything = session.scalars(select(Appliance)).all()
    assert found == {one.id: life_of(one) for one in everything}
    assert len(found) == 5 * 2**4


def test_sorted_by_need_the_fenced_and_lost_come_first(session: Session, cast: Cast) -> None:
    for life in L:
        state = S(life.value) if life.value in set(S) else S.ONLINE
        made = make_appliance(session, cast.acme, life.value, state=state)
        for verdict in ("drained", "fenced", "retired", "revoked"):
            setattr(made, f"{verdict}_at", NOON if life.value == verdict else None)
    session.flush()
    names = session.scalars(select(Appliance.name).order_by(life_rank()))
    assert list(names) == [
        "fenced", "lost", "unreachable", "stale", "enrolled", "drained", "online", "retired",
        "revoked",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("skew_seconds", "expected"),
    [(None, False), (0.0, False), (5.0, False), (-5.0, False), (5.01, True), (-90.0, True)],
)
def test_a_clock_is_off_beyond_five_seconds_either_way(
    skew_seconds: float | None,
    expected: bool,  # noqa: FBT001 - a table
) -> None:
    assert is_skewed(skew_seconds) is expected
