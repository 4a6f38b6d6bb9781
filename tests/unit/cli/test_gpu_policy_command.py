"""Commands of partition policies, and of isolation on shared GPUs."""

import pytest

from core.db import SessionFactory
from tests.cast import NOON, Cast
from tests.fixtures.in_process import run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance, dispatch
from tests.unit.jobqueue.mig_gpus import mig_gpus


@pytest.fixture
def environ(sessions: SessionFactory, cast: Cast, environ_of: EnvironOf) -> dict[str, str]:
    """Alice's, with an appliance of two H100."""
    with sessions.begin() as session:
        add_appliance(
            session,
            cast.acme,
            "dgx-01",
            gpus=mig_gpus("dgx-01", 2),
            partition_modes=["mig", "mps", "time_slicing"],
        )
    return environ_of(cast.alice)


def test_commands_manage_policies(environ: dict[str, str]) -> None:
    def run(*words: str, status: int = 0) -> str:
        done = run_vedette("gpu-policy", *words, environ=environ)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "No policies" in run("ls")
    tried = run("add", "A", "--mode", "mig", "--layout", "3g.40gb", "--dry-run")
    assert tried == "Covers 2 GPUs on 1 appliance: dgx-01.\n"
    run("add", "A", "--mode", "mig", "--layout", "3g.40gb", "--layout", "3g.40gb")
    run("add", "B", "--mode", "mps", "--shares", "4", "--label", "pool=a")
    assert "The nearest is 1g.10gb" in run("set", "A", "--layout", "1g.9gb", status=1)
    assert "MIG: 7g.80gb" in run("set", "A", "--layout", "7g.80gb")
    assert "MIG on demand" in run("set", "A", "--layout", "")
    assert "position 1" in run("move", "B", "1")
    lines = run("ls").splitlines()
    assert lines[1].split() == ["1", "B", "all", "pool=a", "MPS,", "4", "shares", "0", "0"]
    assert lines[2].split()[:4] == ["2", "A", "all", "-"]
    assert run("rm", "A", "B") == "A deleted\nB deleted\n"
    assert "not isolated: a fatal fault of one job ends the others" in run("modes")


def test_isolation_is_printed_and_changed(environ: dict[str, str]) -> None:
    changes = ("--between-users", "mig", "--between-projects", "whole")
    done = run_vedette("queue", "isolation", *changes, environ=environ)
    assert done.stdout == "between_users: mig\nbetween_projects: whole\n"
    changed = run_vedette("queue", "isolation", "--between-users", "default", environ=environ)
    assert changed.stdout == "between_users: default\nbetween_projects: whole\n"


def test_a_job_is_shown_with_what_it_has_of_a_gpu(
    environ: dict[str, str], sessions: SessionFactory
) -> None:
    run_vedette(
        "gpu-policy", "add", "A", "--mode", "time_slicing", "--shares", "2", environ=environ
    )
    options = ("--image", "acme/lab:1", "--name", "lab", "--gpu-memory", "8GiB")
    submitted = run_vedette("job", "run", *options, "--gpu-compute", "0.5", environ=environ)
    assert submitted.returncode == 0, submitted.stderr
    with sessions.begin() as session:
        dispatch(session, now=NOON)
    shown = run_vedette("job", "show", "lab", environ=environ).stdout
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if " " in line)
    assert lines["slice"].strip() == "Time slicing share of 50 %, memory not limited"
    assert "memory isolation       not limited: a job can take the memory of the others" in shown
    listed = run_vedette("job", "ls", environ=environ).stdout
    assert "8 GiB of a GPU with 0.5 of a GPU's multiprocessors" in listed
    refused = run_vedette("job", "run", *options, "--gpu-slice", "1g.10gb", environ=environ)
    assert refused.returncode == 1
    assert "gpu_slice" in refused.stderr
