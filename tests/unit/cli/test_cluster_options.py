"""`vedette job` and the client with options of clusters, and without an image."""

import json
from collections.abc import Callable

import pytest

from core.db import SessionFactory
from tests.cast import Cast
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.test_cluster_requests import add_cluster
from vedette import Client
from vedette.jobs import Job

Vedette = Callable[..., Result]
GPU = {"slurm.partition": "gpu"}
SET_GPU = ("--cluster-option", "slurm.partition=gpu")


@pytest.fixture
def environ(environ_of: EnvironOf, cast: Cast, sessions: SessionFactory) -> dict[str, str]:
    with sessions.begin() as session:
        add_cluster(session, cast, "slurm-a")
        add_cluster(session, cast, "slurm-b", runs_images=True)
    return environ_of(cast.bob)


@pytest.fixture
def job(environ: dict[str, str]) -> Vedette:
    return lambda *arguments: run_vedette("job", *arguments, environ=environ)


@pytest.fixture
def client(environ: dict[str, str]) -> Client:
    return Client(environ["VEDETTE_URL"], environ["VEDETTE_TOKEN"])


def newest(client: Client) -> Job:
    return next(client.jobs(limit=1))


def test_an_option_stands_in_for_an_image(job: Vedette, client: Client) -> None:
    result = job("run", *SET_GPU, "--cluster-option", "slurm.nice=10", "--", "bin/train.sh", "-v")
    assert result.returncode == 0, result.stderr
    submitted = newest(client)
    assert (submitted.name, submitted.image) == ("train.sh", "")
    assert submitted.command == ["bin/train.sh", "-v"]
    assert submitted.cluster_options == {**GPU, "slurm.nice": "10"}


def test_an_empty_image_is_entered_or_asked_for(job: Vedette, client: Client) -> None:
    refused = job("run", "--", "true")
    assert refused.returncode == 1
    assert "Enter --image, a --template or a --cluster-option." in refused.stderr
    assert job("run", "--image", "", "--name", "plain", "--", "true").returncode == 0
    assert (newest(client).image, newest(client).cluster_options) == ("", {})


def test_wrong_options_are_told(job: Vedette) -> None:
    refused = job("run", "--cluster-option", "slurm.partion=gpu", "--", "true")
    assert refused.returncode == 1
    assert "There is no option 'slurm.partion'. Did you mean 'slurm.partition'?" in refused.stderr
    refused = job("run", "--cluster-option", "gpu", "--", "true")
    assert refused.returncode == 2
    assert "'gpu' is not KEY=VALUE." in refused.stderr


def test_a_dry_run_names_the_cluster(job: Vedette) -> None:
    result = job("run", *SET_GPU, "--dry-run", "--", "true")
    assert result.returncode == 0, result.stderr
    assert "slurm-a" in result.stdout


def test_a_copy_takes_options_along(job: Vedette, client: Client) -> None:
    assert job("run", *SET_GPU, "--", "true").returncode == 0
    source = newest(client)
    result = job("clone", source.id, "--cluster-option", "slurm.qos=high")
    assert result.returncode == 0, result.stderr
    assert newest(client).cluster_options == {**GPU, "slurm.qos": "high"}
    assert newest(client).image == ""
    assert job("clone", source.id, "--image", "acme/train:1").returncode == 0
    assert (newest(client).image, newest(client).cluster_options) == ("acme/train:1", GPU)
    with_image = newest(client)
    assert job("clone", with_image.id, "--image", "").returncode == 0
    assert newest(client).image == ""
    assert client.retry(source.id).cluster_options == GPU


def test_a_file_and_a_template_have_neither_an_image(
    job: Vedette, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("jobs") / "job.yaml"
    body = {"name": "nightly", "command": ["true"], "cluster_options": GPU}
    path.write_text(json.dumps(body), encoding="utf-8")
    assert job("apply", "-f", str(path)).returncode == 0
    assert (newest(client).image, newest(client).cluster_options) == ("", GPU)
    assert job("template", "save", "plain", "-f", str(path)).returncode == 0
    listed = job("template", "ls").stdout
    assert next(line for line in listed.splitlines() if "plain" in line).split()[1] == "-"
    assert job("run", "--template", "plain", "--name", "again").returncode == 0
    assert (newest(client).name, newest(client).image) == ("again", "")
    assert newest(client).cluster_options == GPU


def test_the_client_names_a_job_after_its_program(client: Client) -> None:
    submitted = client.submit(command=["/opt/bin/train"], cluster_options=GPU)
    assert (submitted.name, submitted.image) == ("train", "")
    assert client.dry_run(command=["true"], cluster_options=GPU)


def test_an_update_has_no_such_option(job: Vedette) -> None:
    assert "No such option '--cluster-option'" in job("update", "api", *SET_GPU).stderr
