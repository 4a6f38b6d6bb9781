"""Shares of a queue and its order: the command, the REST API and the pages say the same."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.projects.models import Project
from tests.cast import NOON, Cast, FrozenClock
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit


@pytest.fixture
def environ(
    sessions: SessionFactory, cast: Cast, environ_of: EnvironOf, clock: FrozenClock
) -> dict[str, str]:
    """Alice's; her job in the project vision runs on two GPUs since noon, Bob's waits."""
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "mini", gpus=2)
        add_project(session, cast, "speech", shares=3, now=clock.now)
        vision = add_project(session, cast, "vision", shares=1, now=clock.now)
        submit(session, cast.alice, "busy", gpus=2, time_limit_seconds=7200).project_id = vision.id
        session.flush()
        dispatch(session, now=NOON)
        submit(session, cast.bob, "next", gpus=1, time_limit_seconds=60)
    clock.now = NOON + timedelta(hours=1)
    return environ_of(cast.alice)


def add_project(session: Session, cast: Cast, name: str, *, shares: int, now: datetime) -> Project:
    project = Project(tenant_id=cast.acme.id, name=name, shares=shares, created_at=now)
    session.add(project)
    session.flush()
    return project


def test_the_order_is_changed_and_the_shares_are_a_tree(environ: dict[str, str]) -> None:
    before = run_vedette("queue", "shares", environ=environ)
    assert "shares have no effect" in before.stderr
    changed = run_vedette("queue", "order", "--policy", "fair_tree", environ=environ)
    assert "half_life_days: 7.0\nmemory_usage_weight: 0.0\npolicy: fair_tree\n" in changed.stdout
    printed = run_vedette("queue", "shares", environ=environ)
    assert printed.stderr == ""
    rows = [line.split() for line in printed.stdout.splitlines()]
    # Two GPUs for an hour, of which the half-life of a week takes 0.2 %.
    assert rows[1:] == [
        ["tenant", "-", "1.000000", "2.0", "1.000000", "-", "100.0%", "-"],
        ["No", "project", "1", "0.200000", "0.0", "0.000000", "inf", "0.0%", "-"],
        ["bob@acme.example", "1", "1.000000", "0.0", "0.000000", "inf", "0.0%", "1.000000"],
        ["speech", "3", "0.600000", "0.0", "0.000000", "inf", "0.0%", "-"],
        ["vision", "1", "0.200000", "2.0", "1.000000", "0.200000", "100.0%", "-"],
        [
            "alice@acme.example",
            "1",
            "1.000000",
            "2.0",
            "1.000000",
            "1.000000",
            "100.0%",
            "0.500000",
        ],
    ]


def test_why_a_job_waits_has_the_parts_of_its_points(environ: dict[str, str]) -> None:
    run_vedette("queue", "order", "--policy", "fair_tree", environ=environ)
    printed = run_vedette("job", "why", "next", environ=environ).stdout
    # An hour of waiting at 200 points a day.
    assert "Position:       1 of 1\nPoints:         1008.3\n" in printed
    assert "  fair share      1000.0  = 1.000 x 1000\n" in printed
    assert "  age                8.3  = 0.042 x 200\n" in printed
    assert "Rank of the user in the fair share tree: 1 of 2\n" in printed


def test_the_queue_is_listed_in_its_order(environ: dict[str, str]) -> None:
    plain = run_vedette("queue", "ls", environ=environ).stdout.splitlines()
    assert plain[0].split() == ["POS", "ID", "NAME", "USER", "PROJECT", "GPUS", "POINTS"]
    assert plain[1].split()[2:] == ["next", "bob@acme.example", "-", "1", "-"]
    run_vedette("queue", "order", "--policy", "fair_tree", environ=environ)
    [_, row] = run_vedette("queue", "ls", environ=environ).stdout.splitlines()
    expected = "next bob@acme.example - 1 1008.3 0.0 1000.0 8.3 0.0"
    assert " ".join(row.split()[2:]) == expected


def test_a_wrong_order_is_refused_with_every_reason(environ: dict[str, str]) -> None:
    refused = run_vedette(
        *("queue", "order", "--policy", "fair_tree", "--half-life-days", "0"),
        *("--age-weight", "0", "--cpu-usage-weight", "-1"),
        environ=environ,
    )
    assert refused.returncode == 1
    assert "cpu_usage_weight is -1" in refused.stderr
    assert "enter at least 1, or a job may wait forever" in refused.stderr
    assert "half_life_days is 0; enter 0.042 (one hour) to 365" in refused.stderr
    unreadable = run_vedette("queue", "order", "--cpu-usage-weight", "nan", environ=environ)
    assert "'nan' is not a number" in unreadable.stderr


def test_how_long_data_is_fetched_on_allocated_gpus_is_shown_and_changed(
    environ: dict[str, str],
) -> None:
    assert run_vedette("queue", "data", environ=environ).stdout == "longest_fetch_minutes: 5\n"
    for minutes in ("30", "0"):
        option = "--longest-fetch-minutes", minutes
        changed = run_vedette("queue", "data", *option, environ=environ)
        assert changed.stdout == f"longest_fetch_minutes: {minutes}\n"
    wrong = run_vedette("queue", "data", "--longest-fetch-minutes", "-1", environ=environ)
    assert wrong.returncode != 0
    assert "enter 0 to" in wrong.stderr
