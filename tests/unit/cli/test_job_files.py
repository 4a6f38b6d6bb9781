"""`vedette job apply`: files of jobs, and their JSON Schema."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema_rs import Draft202012Validator, meta

from core.db import SessionFactory
from portal.api.examples import EXAMPLES
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.in_process import Result, run_vedette
from tests.generated_files import generated_files
from tests.unit.portal.world_parts import add_appliance

Vedette = Callable[..., Result]
TRAIN = """
name: train
image: acme/train:1
command: [python, train.py]
gpus: 2
memory_bytes: 16GiB
time_limit_seconds: 2h
appliance_id: dgx-1
---
name: watch
image: tensorflow/tensorflow
kind: service
ports: [{container_port: 6006, name: web}]
"""
WRONG = """
name: ""
image: acme/train:1
gpus: many
memory_bytes: lots
time_limit_seconds: -1
comand: [python]
---
name: eval
image: UPPER CASE
priority: 400
"""


@pytest.fixture
def job(url: str, cast: Cast, sessions: SessionFactory, clock: FrozenClock) -> Vedette:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-1", now=clock.now)
        secret = create_api_token(session, scope_of(cast.bob), name="test", now=clock.now)[1]
    environ = {"VEDETTE_URL": url, "VEDETTE_TOKEN": secret, "HF_TOKEN": "s3cret"}
    return lambda *arguments, stdin="": run_vedette("job", *arguments, environ=environ, stdin=stdin)


def test_the_jobs_of_a_file_are_tried_and_then_submitted(job: Vedette) -> None:
    tried = job("apply", "-f", "-", "--dry-run", stdin=TRAIN)
    assert tried.returncode == 0
    assert [line for line in tried.stdout.splitlines() if line in {"train", "watch"}] == [
        "train",
        "watch",
    ]
    assert "dgx-1" in tried.stdout
    assert job("ls", "-o", "name").stdout == ""

    ids = [line.split()[0] for line in job("apply", "-f", "-", stdin=TRAIN).stdout.splitlines()]
    shown = json.loads(job("show", ids[0], "-o", "json").stdout)
    assert (shown["memory_bytes"], shown["time_limit_seconds"]) == (16 * 1024**3, 7200)
    assert shown["requested_appliance_id"]
    assert job("ls", "-o", "name").stdout.split() == ["watch", "train"]
    with_secret = job("apply", "-f", "-", "--secret", "HF_TOKEN", "-o", "json", stdin=TRAIN)
    ident = json.loads(with_secret.stdout)[0]["job_id"]
    assert json.loads(job("show", ident, "-o", "json").stdout)["secret_names"] == ["HF_TOKEN"]


def test_every_error_of_every_job_is_reported_and_none_is_submitted(job: Vedette) -> None:
    result = job("apply", "-f", "-", stdin=WRONG)
    assert result.returncode == 1
    for part in (
        "jobs.0.name",
        "jobs.0.gpus: Not a valid integer",
        "jobs.0.memory_bytes: 'lots'",
        "jobs.0.time_limit_seconds",
        "jobs.0.comand: Unknown field",
        "jobs.1.image",
        "jobs.1.priority",
    ):
        assert part in result.stderr
    one_wrong = job("apply", "-f", "-", stdin=TRAIN + "---\nname: eval\nimage: a\ngpus: -1\n")
    assert "jobs.2.gpus" in one_wrong.stderr
    assert "jobs.0" not in one_wrong.stderr
    assert job("ls", "-o", "name").stdout == ""


@pytest.mark.parametrize("text", ["", "[1]", "name: [", "- name: a"])
def test_a_file_without_jobs_is_refused(job: Vedette, text: str) -> None:
    result = job("apply", "-f", "-", stdin=text)
    assert result.returncode == 1
    assert "<stdin>" in result.stderr


def test_the_schema_describes_what_the_api_accepts(job: Vedette) -> None:
    schema = json.loads(job("schema").stdout)
    meta.validate(schema)
    validator = Draft202012Validator(schema)
    for accepted in (EXAMPLES["JobRequestSchema"], *yaml.safe_load_all(TRAIN)):
        assert list(validator.iter_errors(accepted)) == []
    wrong = [
        set(error.instance_path) for error in validator.iter_errors(next(yaml.safe_load_all(WRONG)))
    ]
    assert {"gpus"} in wrong
    assert {"time_limit_seconds"} in wrong
    assert set() in wrong  # the misspelled key


@pytest.mark.parametrize("path", generated_files(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == generated_files()[path], "Run: make generate"


def test_templates_are_listed_saved_and_used(job: Vedette) -> None:
    assert "jupyterlab" in job("template", "ls", "-o", "name").stdout.split()
    shown = job("template", "show", "tensorboard").stdout
    assert job("apply", "-f", "-", stdin=shown).returncode == 0
    tune = "name: tune\nimage: acme/tune:1\ngpus: 2\nlabels: {project: llm}\n"
    for text in (tune, tune.replace("gpus: 2", "gpus: 1")):
        assert job("template", "save", "tune", "-f", "-", stdin=text).stdout == "tune saved\n"
    assert "2 jobs" in job("template", "save", "x", "-f", "-", stdin=TRAIN).stderr

    made = job("run", "--template", "tune", "--memory", "2GiB", "--", "python", "tune.py")
    assert made.stderr == ""
    submitted = json.loads(job("show", made.stdout.split()[0], "-o", "json").stdout)
    assert (submitted["name"], submitted["gpus"], submitted["labels"]) == (
        "tune",
        1,
        {"project": "llm"},
    )
    assert (submitted["memory_bytes"], submitted["command"]) == (2 * 1024**3, ["python", "tune.py"])
    assert job("template", "rm", "tune").returncode == 0
    assert "tune" in job("run", "--template", "tune").stderr
    assert "--image" in job("run").stderr


def test_errors_in_nested_parts_are_reported_with_the_others(job: Vedette) -> None:
    text = """
image: bad image
name: x
gpus: -1
memory_bytes: lots
kind: service
health_check: {kind: ftp}
mounts: [{target: /data}]
"""
    refused = job("apply", "-f", "-", stdin=text)
    assert refused.returncode == 1
    for field in ("image", "gpus", "memory_bytes", "health_check", "mounts"):
        assert field in refused.stderr


def test_a_schedule_is_saved_run_and_deleted(job: Vedette) -> None:
    text = "name: eval\nimage: acme/eval:1\n"
    saved = job("schedule", "save", "nightly", "--at", "0 2 * * *", "-f", "-", stdin=text)
    assert "nightly saved, next run" in saved.stdout
    replaced = job("schedule", "save", "nightly", "--at", "0 3 * * *", "-f", "-", stdin=text)
    assert replaced.stdout.endswith(" 03:00 UTC (UTC)\n")
    assert job("schedule", "run", "nightly").stdout.startswith("submitted")
    assert "submitted" in job("schedule", "runs", "nightly").stdout
    assert job("schedule", "edit", "nightly").returncode == 1
    edited = job("schedule", "edit", "nightly", "--at", "15 4 * * *", "--time-zone", "Europe/Oslo")
    assert edited.returncode == 0
    assert edited.stdout.endswith(" 04:15 CET (Europe/Oslo)\n")
    assert job("schedule", "show", "nightly").stdout.count(" 04:15 CE") == 5
    assert " 04:15 CET" in job("schedule", "ls").stdout
    assert job("schedule", "runs", "nightly").stdout.count(" CET") == 1
    assert job("schedule", "disable", "nightly").stdout == "nightly disabled\n"
    assert job("schedule", "enable", "nightly").stdout == "nightly enabled\n"
    wrong = job("schedule", "save", "x", "--at", "daily", "-f", "-", stdin=text)
    assert "schedule: 'daily' is not a schedule" in wrong.stderr
    assert job("schedule", "rm", "nightly").returncode == 0
    assert "vedette job schedule ls" in job("schedule", "runs", "nightly").stderr
