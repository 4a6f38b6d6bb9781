"""`vedette logs` against a real portal."""

import json

from core.db import SessionFactory
from tenants.users.tokens import create_api_token
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.in_process import run_vedette
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.logs.lines import line, send


def test_lines_are_printed_oldest_first_and_filtered(
    *, url: str, cast: Cast, sessions: SessionFactory, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        appliance = add_appliance(session, cast.acme, "dgx-07")
        secret = create_api_token(session, scope_of(cast.bob), name="test", now=clock.now)[1]
    send(
        sessions,
        appliance,
        line("NVRM: Xid 79", second=-60, unit="kernel"),
        line("eth0: link down", second=-30, unit="kernel"),
        now=NOON,
    )
    environ = {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret}
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
