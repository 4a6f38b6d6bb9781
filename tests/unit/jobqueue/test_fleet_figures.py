"""The figures of fleet advice: capacity, use, demand and waits by GPU model and hour."""

from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.advice.additions import add_replays
from jobqueue.advice.child import fleet_figures, whole_hours
from jobqueue.advice.figures import FleetFigures, ModelFigures, high_hours
from jobqueue.states import JobState
from jobqueue.usage.measuring import Period
from tenants.fleet.events import EventKind, add_event
from tests.cast import Cast
from tests.unit.jobqueue.advice_builders import (
    A100,
    DAY,
    H100,
    HOUR,
    LATER,
    MONDAY,
    add_gpus,
    add_run,
    add_waiting,
    busy_fleet,
    close_ledger,
)

PERIOD = Period(MONDAY, LATER)


def model_of(figures: FleetFigures, name: str) -> ModelFigures:
    [row] = [row for row in figures.models if row.gpu_model == name]
    return row


def computed(session: Session, cast: Cast) -> FleetFigures:
    return fleet_figures(session, cast.acme.id, PERIOD)


def test_gpu_hours_are_by_model_and_hour(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        busy_fleet(session, cast.alice, cast.acme)
        figures = computed(session, cast)
    h100, a100 = model_of(figures, H100), model_of(figures, A100)
    assert (h100.gpus, h100.appliances, a100.gpus) == (8, 1, 4)
    assert sum(h100.capacity) == 8 * 24 * 14
    # 10 workdays of 8 hours with 8 GPUs; the afternoons are idle half of the time.
    assert (sum(h100.allocated), sum(h100.idle)) == (640, 10 * 4 * 8 / 2)
    # 10 jobs for 8 GPUs waited from 9 to 13, while all were allocated.
    assert (sum(h100.waiting), h100.short().sum(), h100.blocked().sum()) == (320, 320, 0)
    assert h100.waiting[8:14] == [0, 8, 8, 8, 8, 0]
    assert (h100.jobs, h100.wait_seconds_p50, h100.wait_seconds_p95) == (20, 7200, 14400)
    assert (sum(a100.capacity), sum(a100.allocated)) == (4 * 24 * 14, 0)
    assert a100.free().sum() == 4 * 24 * 14
    by_name = {row.name: row for row in figures.appliances}
    assert by_name["dgx-01"].last_used_at == MONDAY + 11 * DAY + 17 * HOUR
    assert by_name["spare-01"].last_used_at is None
    assert by_name["dgx-01"].idle_gpu_hours == 160


def test_gpus_that_can_run_no_jobs_are_no_capacity(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        dgx = add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=8)
        old = add_gpus(session, cast.acme, "old-01", model=H100, gpus=2)
        old.enrolled_at, old.retired_at = MONDAY - DAY, MONDAY + 2 * DAY
        close_ledger(session)
        states = (
            ("online", "stale", 20),
            ("stale", "online", 21),
            ("online", "lost", 24),
            ("lost", "online", 36),
        )
        for before, after, hours in states:
            details = {"before": before, "after": after}
            at = MONDAY + hours * HOUR
            add_event(session, dgx, EventKind.STATE, "x", now=at, details=details)
        # Overlaps the outage for six hours.
        add_event(session, dgx, EventKind.DRAINED, "x", now=MONDAY + 30 * HOUR)
        add_event(session, dgx, EventKind.UNDRAINED, "x", now=MONDAY + 42 * HOUR + HOUR / 2)
        session.flush()
        h100 = model_of(computed(session, cast), H100)
    assert h100.gpus == 8
    assert h100.capacity[0] == h100.capacity[23] == 8 + 2
    assert h100.capacity[24:42] == [2] * 18
    assert h100.capacity[42:44] == [2 + 4, 8 + 2]
    assert h100.capacity[48] == 8


def test_rented_gpus_are_demand_and_those_rented_out_are_used(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        own = add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=8)
        other = add_gpus(session, cast.globex, "dgx-a1", model=A100, gpus=8)
        add_run(session, cast.alice, other, MONDAY, gpus=4, contract_id="rented")
        add_run(session, cast.charlie, own, MONDAY, gpus=2, contract_id="rented-out")
        close_ledger(session)
        figures = computed(session, cast)
    h100, a100 = model_of(figures, H100), model_of(figures, A100)
    assert (sum(h100.allocated), sum(h100.rented)) == (2, 0)
    assert (a100.gpus, sum(a100.capacity), sum(a100.rented), a100.short().sum()) == (0, 0, 4, 4)
    assert [row.name for row in figures.appliances] == ["dgx-01"]


def test_jobs_that_still_wait_count_for_the_models_that_they_may_have(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=3)
        add_gpus(session, cast.acme, "old-01", model=A100, gpus=1)
        close_ledger(session)
        since = LATER - 10 * HOUR
        add_waiting(session, cast.alice, since=since, gpus=4, models="")
        add_waiting(session, cast.alice, since=since, gpus=2, models="A100")
        add_waiting(session, cast.alice, since=since, gpus=1, models="B200")
        figures = computed(session, cast)
    assert sum(model_of(figures, H100).waiting) == 10 * 3
    assert sum(model_of(figures, A100).waiting) == 10 * (1 + 2)
    assert sum(model_of(figures, "B200").waiting) == 10
    # Three and three are free.
    assert sum(model_of(figures, H100).blocked()) == 30


def test_instances_that_sleep_do_not_wait(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=8)
        close_ledger(session)
        for state, retry_at in (
            (JobState.ASLEEP, None),
            (JobState.QUEUED, LATER - 2 * HOUR),
        ):
            job = add_waiting(session, cast.alice, since=MONDAY, gpus=1, models="")
            job.autoscaling, job.state, job.retry_at = {}, state, retry_at
        session.flush()
        h100 = model_of(computed(session, cast), H100)
    assert sum(h100.waiting) == 2


def test_jobs_do_not_wait_for_gpus_while_they_wait_for_other_jobs(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        dgx = add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=8)
        first = add_run(session, cast.alice, dgx, MONDAY, hours=5, gpus=8)
        start_at = MONDAY + 6 * HOUR
        second = add_run(session, cast.alice, dgx, start_at, gpus=8, waited_hours=6)
        second.dependencies = [{"job_id": first.id, "name": "train", "condition": "ok"}]
        close_ledger(session)
        session.flush()
        h100 = model_of(computed(session, cast), H100)
    assert sum(h100.waiting) == 8
    # Of five hours without a wait, and one of an hour.
    assert h100.wait_seconds_p95 == pytest.approx(3420)


def test_the_period_begins_with_the_first_gpus_and_ends_with_the_ledger(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        appliance = add_gpus(session, cast.acme, "dgx-01", model=H100, gpus=8)
        appliance.enrolled_at = MONDAY + DAY + timedelta(minutes=10)
        close_ledger(session)
        wide = Period(MONDAY - 7 * DAY, LATER + 2 * HOUR)
        period = whole_hours(session, cast.acme.id, wide)
        nothing = whole_hours(session, cast.globex.id, wide)
    assert (period.since, period.until) == (MONDAY + DAY + HOUR, LATER)
    assert nothing.since == nothing.until


def test_another_tenant_has_none_of_it(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        busy_fleet(session, cast.alice, cast.acme)
        figures = fleet_figures(session, cast.globex.id, PERIOD)
    assert (figures.models, figures.appliances) == ([], [])


def test_hours_of_the_week_are_those_of_a_time_zone(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        busy_fleet(session, cast.alice, cast.acme)
        figures = computed(session, cast)
    h100 = model_of(figures, H100)
    week = figures.week(h100.allocated, UTC)
    assert week.shape == (7, 24)
    assert (week[0, 8], week[0, 9], week[4, 16], week[5, 12]) == (0, 8, 8, 0)
    assert high_hours(week) == "Mon-Fri 09:00-17:00"
    kolkata = figures.week(h100.allocated, ZoneInfo("Asia/Kolkata"))
    assert high_hours(kolkata) == "Mon-Fri 14:00-22:00"
    los_angeles = figures.week(h100.allocated, ZoneInfo("America/Los_Angeles"))
    assert high_hours(los_angeles) == "Mon-Fri 01:00-09:00"


def test_hours_are_named_in_a_few_words() -> None:
    week = np.zeros((7, 24))
    assert high_hours(week) == ""
    week[5:] = 3
    assert high_hours(week) == "Sat-Sun all day"
    week[0, 22:], week[2, :3], week[3, 8:9] = 3, 3, 3
    assert high_hours(week) == "Mon 22:00-24:00; Wed 00:00-03:00; Sat-Sun all day and others"
    assert high_hours(np.ones((7, 24))) == "at all hours"


def test_one_more_appliance_ends_the_waits(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        busy_fleet(session, cast.alice, cast.acme)
        figures = computed(session, cast)
        parts: list[float] = []
        add_replays(session, cast.acme.id, figures, report=parts.append, now=LATER)
    [addition] = figures.additions
    assert (addition.gpu_model, addition.appliance, addition.gpus) == (H100, "dgx-01", 8)
    # The two jobs of a day come four hours apart in the recording, too.
    assert addition.today.jobs == addition.changed.jobs == 20
    assert (addition.today.waiting_gpu_hours, addition.changed.waiting_gpu_hours) == (320, 0)
    assert addition.today.wait_seconds_p95 == 4 * 3600
    assert parts[-1] == 1.0
    assert not figures.problem


def test_replays_that_take_too_long_are_left_out(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        busy_fleet(session, cast.alice, cast.acme)
        figures = computed(session, cast)
        add_replays(
            session, cast.acme.id, figures, report=lambda _: None, now=LATER, max_seconds=-1
        )
    assert not figures.additions
    assert "0 of 1 GPU models" in figures.problem
