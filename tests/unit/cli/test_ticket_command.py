"""Commands of tickets."""

import json
from pathlib import Path

import pytest

from core.db import SessionFactory
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.in_process import run_vedette


@pytest.fixture
def environs(
    sessions: SessionFactory, cast: Cast, url: str, clock: FrozenClock
) -> dict[str, dict[str, str]]:
    """Return the variables of bob and olivia."""
    with sessions.begin() as session:
        return {
            user.name: {
                "VEDETTE_URL": url,
                "VEDETTE_TOKEN": create_api_token(
                    session, scope_of(user), name="test", now=clock.now
                )[1],
            }
            for user in (cast.bob, cast.olivia)
        }


def test_a_ticket_is_opened_answered_solved_and_rated(
    environs: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    def run(user: str, *words: str, status: int = 0) -> str:
        done = run_vedette("ticket", *words, environ=environs[user])
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "vedette ticket open TITLE" in run("Bob", "ls")
    log = tmp_path / "nccl.log"
    log.write_text("NCCL WARN")
    words = ("open", "Job stops", "--text", "After a minute.", "--file", str(log), "-o", "json")
    ident = json.loads(run("Bob", *words))["id"]
    assert run("Olivia", "ls", "--waiting").splitlines()[1].startswith(f"{ident}  Job stops")
    assert run("Olivia", "reply", ident, "--text", "Is it the driver?", "--note").endswith("open\n")
    answered = run("Olivia", "reply", ident, "--text", "Update the driver.")
    assert answered == f"Ticket {ident} is waiting for customer\n"
    shown = run("Bob", "show", ident)
    assert "Answer within 1d: first answer after 0s" in shown
    assert "Is it the driver?" not in shown
    assert "the operator\nUpdate the driver." in shown
    file_id = shown.partition("  file ")[2].split()[0]
    copy = tmp_path / "copy.log"
    assert "9 bytes written" in run("Bob", "download", ident, file_id, str(copy))
    assert copy.read_text() == "NCCL WARN"
    assert run("Bob", "assign", ident, "alice@acme.example").endswith("waiting for customer\n")
    assert "takes part in this ticket already" in run("Bob", "call-operator", ident, status=1)
    assert run("Bob", "solve", ident).endswith("is solved\n")
    assert run("Bob", "rate", ident, "4", "--comment", "Good.").endswith("is solved\n")
    assert run("Bob", "reopen", ident).endswith("is waiting for operator\n")
    run("Bob", "solve", ident)
    assert run("Bob", "close", ident).endswith("is closed\n")
    assert run("Bob", "ls", "--all", "-o", "name") == f"{ident}\n"
    assert "The ticket is closed" in run("Bob", "reply", ident, "--text", "x", status=1)
    assert "There is no job 'x' here" in run(
        "Bob", "open", "x", "--text", "x", "--about", "job", "x", status=1
    )
