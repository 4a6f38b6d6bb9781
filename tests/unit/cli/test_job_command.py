"""`vedette job` against a real portal: names, formats, waiting and exit statuses."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
import yaml
from click.testing import CliRunner

from cli.main import vedette
from core.clock import to_ns
from core.db import SessionFactory
from jobqueue.models import Job
from jobqueue.queue.service import submit_job
from jobqueue.states import JobState
from protocol.job_spec import JobRequest
from tests.cast import BOX, Cast, FrozenClock, scope_of
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.portal.world_parts import add_appliance, run_job
from timeseries.points import Point
from timeseries.store import Store, write
from vedette import Client, JobFailedError, JobTimeoutError

Vedette = Callable[..., Result]


@pytest.fixture
def environ(environ_of: EnvironOf, cast: Cast) -> dict[str, str]:
    return environ_of(cast.bob)


@pytest.fixture
def job(environ: dict[str, str]) -> Vedette:
    return lambda *arguments: run_vedette("job", *arguments, environ=environ)


def submit(sessions: SessionFactory, cast: Cast, clock: FrozenClock, name: str) -> str:
    request = JobRequest(name=name, image="acme/train:1")
    clock.advance(1)
    with sessions.begin() as session:
        return submit_job(session, scope_of(cast.bob), request, box=BOX, now=clock.now).id


def end(sessions: SessionFactory, job_id: str, state: JobState, *, exit_code: int | None) -> None:
    with sessions.begin() as session:
        row = session.get_one(Job, job_id)
        row.state, row.exit_code, row.message = state, exit_code, "It ended."


def test_a_wrong_size_is_reported_with_its_option() -> None:
    result = CliRunner().invoke(vedette, ["job", "run", "--image", "a", "--memory", "lots"])
    assert result.exit_code == 2
    assert "--memory" in result.output
    assert "'lots' is not a size" in result.output


def test_jobs_are_listed_in_every_format(
    job: Vedette, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    assert "vedette job run" in job("ls").stderr
    ids = [submit(sessions, cast, clock, name) for name in ("first", "second")]

    header, *rows = job("ls").stdout.splitlines()
    assert header.split()[:3] == ["ID", "NAME", "STATE"]
    assert [row.split()[:2] for row in rows] == [[ids[1][-8:], "second"], [ids[0][-8:], "first"]]
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert [item["id"] for item in load(job("ls", "-o", output).stdout)] == ids[::-1]
    assert job("ls", "-o", "name", "--limit", "1").stdout == "second\n"
    assert job("ls", "-o", "name", "--search", "fir").stdout == "first\n"
    none = job("ls", "--state", "lost")
    assert (none.stdout, none.stderr) == ("", "No jobs match.\n")
    assert json.loads(job("ls", "--state", "lost", "-o", "json").stdout) == []


def test_a_job_is_found_by_name_and_by_either_end_of_its_id(
    job: Vedette, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    ids = [submit(sessions, cast, clock, name) for name in ("train", "eval", "train")]

    for text, job_id in (
        ("eval", ids[1]),
        ("train", ids[2]),
        (ids[0], ids[0]),
        (ids[0][-8:], ids[0]),
        (ids[0][-12:].upper(), ids[0]),
    ):
        assert json.loads(job("show", text, "-o", "json").stdout)["id"] == job_id
    several = job("show", ids[0][:6])
    assert several.returncode == 1
    assert "ambiguous" in several.stderr
    missing = job("show", "nothing")
    assert missing.returncode == 1
    assert "vedette job ls" in missing.stderr


def test_a_job_is_submitted_again_and_several_are_stopped(
    job: Vedette, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    options = ("--image", "acme/train:1", "-e", "A=1", "--secret", "KEY=x")
    assert job("run", "--gpu", "1", *options, "python").returncode == 2
    command = ("python", "-c", "print(1)", "--env", "C=3")
    first = job("run", *options, *command).stdout.split()[0]
    assert json.loads(job("show", first, "-o", "json").stdout)["command"] == list(command)
    retried = job("retry", "train", "--secret", "A=2").stdout.split()[0]

    shown = json.loads(job("show", retried, "-o", "json").stdout)
    assert (shown["image"], shown["env"]) == ("acme/train:1", {})
    assert sorted(shown["secret_names"]) == ["A", "KEY"]
    copy = job("clone", "train", "--gpus", "2", "--env", "B=2", "--name", "wide").stdout.split()[0]
    wide = json.loads(job("show", copy, "-o", "json").stdout)
    assert (wide["name"], wide["gpus"], wide["command"]) == ("wide", 2, list(command))
    assert (wide["env"], sorted(wide["secret_names"])) == ({"B": "2"}, ["A", "KEY"])
    assert job("stop", first, retried).stdout.count("stop requested") == 2
    assert job("stop", copy).returncode == 0
    assert job("cancel", submit(sessions, cast, clock, "other")).returncode == 0
    assert job("ls", "--state", "stopped", "-o", "name").stdout.split() == [
        "other",
        "wide",
        "train",
        "train",
    ]


def test_an_array_is_one_line_and_all_of_its_tasks_stop(job: Vedette) -> None:
    options = ("--image", "acme/train:1", "--array", "0-3%2", "--idle-limit", "5", "30m")
    assert "idle_gpu_percent" in job("run", *options).stderr  # no GPUs
    first = job("run", *options, "--gpus", "1").stdout.split()[0]
    assert job("run", "--image", "acme/merge", "--after-ok", "train").returncode == 0
    assert "after_any" in job("run", "--image", "a", "--after-any", "nothing").stderr
    tried = job("run", "--image", "a", "--after-ok", "train", "--array", "0-4", "--dry-run").stdout
    assert ("'train' has succeeded" in tried, "first of 5 tasks" in tried) == (True, True)
    rows = [line.split() for line in job("ls").stdout.splitlines()[1:]]
    assert [row[1] for row in rows] == ["merge", "train[4"]
    assert len(job("ls", "--tasks", "-o", "name").stdout.split()) == 5
    assert "train[0]" in job("ls", "--tasks").stdout
    assert "Waiting until 'train' succeeds" in job("why", "merge").stdout
    assert job("stop", "--array", first).returncode == 0
    assert len(job("ls", "--state", "stopped", "-o", "name").stdout.split()) == 4


def test_wait_exits_as_the_first_job_that_did_not_succeed(
    job: Vedette, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    ends = (
        (JobState.SUCCEEDED, 0),
        (JobState.FAILED, 7),
        (JobState.LOST, None),
    )
    ids = [submit(sessions, cast, clock, "train") for _ in ends]
    for job_id, (state, exit_code) in zip(ids, ends, strict=True):
        end(sessions, job_id, state, exit_code=exit_code)

    assert job("wait", ids[0]).returncode == 0
    assert job("wait", *ids).returncode == 7
    assert job("wait", ids[2]).returncode == 1
    for command in (("logs", "-f"), ("attach",)):
        followed = job(*command, ids[1])
        assert (followed.returncode, followed.stderr.count("[failed")) == (7, 1)
    waiting = job("wait", submit(sessions, cast, clock, "next"), "--timeout", "0")
    assert waiting.returncode == 1
    assert "is still submitted" in waiting.stderr
    assert "--timeout" in job("wait", ids[0], "--timeout", "soon").stderr


def test_the_client_returns_results_and_raises_failures(
    environ: dict[str, str], sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with Client(environ["VEDETTE_URL"], environ["VEDETTE_TOKEN"]) as client:
        made = client.submit("acme/train:1", command=["python"], gpus=0)
        assert (made.name, made.state, made.has_ended) == ("train", "submitted", False)
        with pytest.raises(JobTimeoutError):
            client.result(made.id, timeout_seconds=0)
        end(sessions, made.id, JobState.FAILED, exit_code=3)
        with pytest.raises(JobFailedError, match="It ended") as caught:
            client.result(made.id)
        assert caught.value.job.exit_status == 3
        end(sessions, made.id, JobState.SUCCEEDED, exit_code=0)
        assert client.result(made.id).exit_code == 0
        for number in range(3):
            submit(sessions, cast, clock, f"job {number}")
        assert [listed.name for listed in client.jobs(limit=2)] == ["job 2", "job 1"]
        assert len(list(client.jobs())) == 4


def test_top_shows_what_running_jobs_use(
    *,
    job: Vedette,
    sessions: SessionFactory,
    cast: Cast,
    store: Store,
    clock: FrozenClock,
) -> None:
    assert "No jobs are running" in job("top", "--once").stderr
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-1", now=clock.now)
        running = run_job(session, cast, now=clock.now, log=b"epoch 1\n")
        attempt = running.attempt
        assert attempt is not None
        identity = {"tenant": cast.acme.id, "appliance": attempt.appliance_id}
        uuid, job_id = attempt.gpu_uuids[0], running.id
    clock.advance(30)
    at_ns = to_ns(clock.now - timedelta(seconds=10))
    tags = {"gpu": "0", "uuid": uuid, "job": job_id}
    fields = {"utilization_percent": 87.0, "power_watts": 512.0, "memory_used_bytes": 2.0**30}
    write(store, [Point("gpu", tags, fields, at_ns)], identity=identity)

    header, row = job("top", "--once").stdout.splitlines()
    assert header.split()[:3] == ["ID", "NAME", "GPUS"]
    assert row.split()[:2] == [job_id[-8:], "train"]
    for shown in ("87 %", "512 W", "1 GiB"):
        assert shown in row
    assert job("logs", "train").stdout == "epoch 1\n"


def test_a_service_is_scaled_updated_and_rolled_back(job: Vedette) -> None:
    run = ("run", "--service", "--image", "acme/api:1", "--name", "api", "--env", "A=1")
    assert "--health" in job("run", "--image", "a", "--health-retries", "2").stderr
    check = ("--health", "http:8000/health", "--health-interval", "30s")
    first = job(*run, *check, "--instances", "2").stdout.split()[0]
    assert job("ls").stdout.splitlines()[1].split()[1:3] == ["api[2", "instances]"]
    assert job("scale", "api", "3").returncode == 0
    assert "instances" in job("scale", "api", "0").stderr
    update = ("update", "api", "--image", "acme/api:2", "--env", "B=2", "--stop-grace", "2m")
    assert job(*update).returncode == 0
    with_client = json.loads(job("show", first, "-o", "json").stdout)
    assert (with_client["instances"], with_client["image"]) == (3, "acme/api:1")
    assert with_client["health_check"]["interval_seconds"] == 30
    assert job("update", "api", "--rollback").returncode == 0
    assert "no_service" not in job("run", "--image", "a").stdout
    refused = job("scale", "a", "2")
    assert (refused.returncode, "not a service" in refused.stderr) == (1, True)


def test_a_service_scales_by_itself_as_commands_say(job: Vedette) -> None:
    run = ("run", "--service", "--image", "acme/api:1", "--name", "model", "--port", "web=8000")
    policy = "0-4; requests_per_second=20; zero=5m; window=0 8 * * 1-5 for 10h 2-8 in Europe/Oslo"
    assert "number of instances" in job(*run, "--autoscale", "many").stderr
    assert job(*run, "--autoscale", policy).returncode == 0
    assert policy in job("autoscale", "model").stdout
    assert "scales by itself" in job("autoscale", "model", "1-2").stdout
    status = json.loads(job("autoscale", "model", "-o", "json").stdout)
    assert (status["policy"]["max_instances"], status["awake"]) == (2, 1)
    assert "scales by itself" in job("scale", "model", "2").stderr
    assert "is fixed" in job("autoscale", "model", "--off").stdout
    assert job("autoscale", "model").returncode == 1
