"""`vedette logs` against a real portal."""

import json

from core.db import SessionFactory
from jobqueue.jobs.gangs import gang_members
from tests.cast import NOON, Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance, append_log, start
from tests.unit.logs.lines import line, record, send


def test_lines_are_printed_oldest_first_and_filtered(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        appliance = add_appliance(session, cast.acme, "dgx-07")
    send(
        sessions,
        appliance,
        line("NVRM: Xid 79", second=-60, unit="kernel"),
        line("eth0: link down", second=-30, unit="kernel"),
        now=NOON,
    )
    environ = environ_of(cast.bob)
    printed = run_vedette("logs", "--source", "appliance", environ=environ)
    rows = printed.stdout.splitlines()
    assert [row.rpartition("dgx-07 ")[2] for row in rows] == [
        "kernel: NVRM: Xid 79",
        "kernel: eth0: link down",
    ]
    found_json = run_vedette("logs", "xid", "--appliance", "dgx-07", "-o", "json", environ=environ)
    assert json.loads(found_json.stdout)["text"] == "NVRM: Xid 79"
    assert run_vedette("logs", "timeout", environ=environ).stdout == ""
    wrong = run_vedette("logs", '"x', environ=environ)
    assert wrong.returncode == 1
    assert "without an end" in wrong.stderr


def test_the_lines_of_a_gang_are_those_of_rank_0_at_first(
    *, environ_of: EnvironOf, cast: Cast, sessions: SessionFactory
) -> None:
    with sessions.begin() as session:
        first = start(session, cast, nodes=2).job
        for member in gang_members(session, first):
            text = record(f"rank {member.array_index}", second=-1)
            append_log(session, member.attempts[-1], text)
        job_id = first.id
    environ = environ_of(cast.alice)

    def texts(*options: str) -> list[str]:
        command = ("logs", "rank", "--job", job_id, "--source", "job", *options)
        printed = run_vedette(*command, environ=environ)
        return [row.rpartition(": ")[2] for row in printed.stdout.splitlines()]

    assert texts() == ["rank 0"]
    assert texts("--rank", "1") == ["rank 1"]
    assert sorted(texts("--rank", "all")) == ["rank 0", "rank 1"]
    wrong = run_vedette("logs", "--job", job_id, "--rank", "first", environ=environ)
    assert "'first' is no rank" in wrong.stderr
