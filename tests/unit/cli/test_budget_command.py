"""Commands of budgets."""

import pytest

from core.db import SessionFactory
from jobqueue.projects.service import ProjectRequest, create_project
from marketplace.budgets.evaluation import evaluate_budgets
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.marketplace.cost_builders import add_line


@pytest.fixture
def environ(environ_of: EnvironOf, cast: Cast, sessions: SessionFactory) -> dict[str, str]:
    with sessions.begin() as session:
        create_project(session, scope_of(cast.alice), ProjectRequest(name="vision"), now=NOON)
    return environ_of(cast.alice)


def test_budgets_are_set_listed_and_removed(
    environ: dict[str, str], sessions: SessionFactory, cast: Cast
) -> None:
    def run(*words: str, status: int = 0) -> str:
        done = run_vedette("budget", *words, environ=environ)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "vedette budget set AMOUNT" in run("ls")
    assert run("set", "1000") == "The tenant Acme may spend 1000.00 a month.\n"
    run("set", "40", "--project", "vision", "--action", "stop_jobs", "--grace", "2h")
    run("set", "50", "--project", "vision")
    run("set", "5", "--user", "BOB@acme.example")
    with sessions.begin() as session:
        add_line(session, cast.acme, "25", user_id=cast.bob.id)
        evaluate_budgets(session, cast.acme.id, now=NOON)
    rows = [line.split() for line in run("ls").splitlines()[1:]]
    assert [row[:5] for row in rows] == [
        ["tenant", "Acme", "1000.00", "25.00", "2"],
        ["project", "vision", "50.00", "0.00", "0"],
        ["user", "bob@acme.example", "5.00", "25.00", "500"],
    ]
    assert rows[1][6:] == ["stop_jobs", "after", "2h"]
    assert run("rm", "--project", "vision") == "Budget of the project vision deleted\n"
    assert "has no budget" in run("rm", "--project", "vision", status=1)
    assert "enter digits such as 2.45" in run("set", "much", status=1)
    assert "no project 'x'" in run("set", "1", "--project", "x", status=1)
    run("set", "1", "--project", "x", "--user", "y", status=2)
