"""`vedette project`: a tree of projects, their members and quotas, by the REST API."""

import json

import pytest

from core.db import SessionFactory
from tests.cast import Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance


@pytest.fixture
def environ(sessions: SessionFactory, cast: Cast, environ_of: EnvironOf) -> dict[str, str]:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
    return environ_of(cast.alice)


def test_a_tree_of_projects_is_made_listed_and_archived(environ: dict[str, str]) -> None:
    def run(*words: str) -> str:
        return run_vedette("project", *words, environ=environ).stdout

    assert "No projects yet" in run("list")
    run("create", "vision", "--shares", "3", "--budget-label", "CC-1")
    run("create", "video team", "--parent", "vision")
    run("quota", "vision", "--guaranteed", "4", "--borrowing-limit", "2")
    run("quota", "vision", "--memory", "--maximum", "64GiB")
    quotas = [line.split() for line in run("quota", "vision").splitlines()]
    assert quotas[1:] == [
        ["gpus", "4", "-", "-", "2"],
        ["memory_bytes", "0", "B", "64", "GiB", "-", "-"],
    ]
    assert "4 guaranteed" in run("list")
    assert "bob@acme.example" in run("members", "video team", "--add", "bob@acme.example")
    shown = json.loads(run("show", "video team", "-o", "json"))
    assert (shown["parent"], shown["depth"]) == ("vision", 1)
    assert [member["is_default"] for member in shown["members"]] == [True]
    assert "shares: 5" in run("update", "vision", "--shares", "5")
    assert "  video team" in run("list")
    run("members", "video team", "--remove", "bob@acme.example")
    assert run("archive", "video team") == "video team archived\n"
    assert "video team" not in run("list")
    assert run("archive", "video team", "--restore") == "video team restored\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("quota", "vision", "--guaranteed", "9"), "enter at most 8"),
        (("update", "vision", "--parent", "vision"), "close the circle vision > vision"),
        (("quota", "vision", "--maximum", "many"), "'many' is not an amount"),
        (("update", "vision"), "Enter an option"),
        (("show", "sound"), "There is no project 'sound'"),
    ],
)
def test_what_can_t_work_is_refused_with_the_reason(
    environ: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    run_vedette("project", "create", "vision", environ=environ)
    refused = run_vedette("project", *words, environ=environ)
    assert refused.returncode == 1
    assert message in refused.stderr


def test_a_job_is_submitted_to_a_project(environ: dict[str, str]) -> None:
    run_vedette("project", "create", "vision", environ=environ)
    words = ("job", "run", "--image", "x/y:1", "--name", "train", "--project")
    run_vedette(*words, "vision", environ=environ)
    shown = json.loads(run_vedette("job", "show", "train", "-o", "json", environ=environ).stdout)
    assert shown["project"] == "vision"
    refused = run_vedette(*words, "sound", environ=environ)
    assert "no project 'sound'. Use one of: vision" in refused.stderr
