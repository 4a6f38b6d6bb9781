"""`vedette job` with a highest price and what a rented appliance must meet."""

from collections.abc import Callable

import pytest

from core.db import SessionFactory
from tests.cast import Cast
from tests.fixtures.in_process import Result, run_vedette
from tests.unit.cli.conftest import EnvironOf
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.jobqueue.rental_builders import grant, offer
from vedette import Client

RUN = ("run", "--image", "python:3.13", "--gpus", "1", "--max-price", "12.40")


@pytest.fixture
def environ(environ_of: EnvironOf, cast: Cast, sessions: SessionFactory) -> dict[str, str]:
    with sessions.begin() as session:
        offer(session, [add_appliance(session, cast.globex, "globex-dgx")])
        grant(session, cast.acme, cast.globex)
    return environ_of(cast.bob)


@pytest.fixture
def job(environ: dict[str, str]) -> Callable[..., Result]:
    return lambda *arguments: run_vedette("job", *arguments, environ=environ)


def test_a_job_pays_up_to_a_price(job: Callable[..., Result], environ: dict[str, str]) -> None:
    ran = job(*RUN, "--rental", "region=eu-north", "--rental", "reputation=0.8", "--", "true")
    assert ran.returncode == 0, ran.stderr
    client = Client(environ["VEDETTE_URL"], environ["VEDETTE_TOKEN"])
    [submitted] = client.jobs(limit=1)
    assert submitted.max_gpu_hour_price == 12.4
    assert submitted.rental == {"region": "eu-north", "reputation": "0.8"}
    cloned = job("clone", submitted.id, "--max-price", "3", "--rental", "region=us")
    assert cloned.returncode == 0, cloned.stderr
    [copy] = client.jobs(limit=1)
    assert (copy.max_gpu_hour_price, copy.rental) == (3, {"region": "us", "reputation": "0.8"})


def test_a_dry_run_shows_the_offer(job: Callable[..., Result]) -> None:
    ran = job(*RUN, "--dry-run", "--", "true")
    assert ran.returncode == 0, ran.stderr
    assert "pool can run it for 2.50 an hour for each GPU." in ran.stdout
    assert "globex-dgx" not in ran.stdout


def test_a_price_that_is_none_is_refused(job: Callable[..., Result]) -> None:
    assert job("run", "--image", "x", "--max-price", "cheap").returncode == 2
