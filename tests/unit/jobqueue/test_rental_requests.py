"""What jobs ask of rented appliances is checked when they are submitted."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.dispatch.waiting_jobs import read_waiting
from jobqueue.placement.rentals import RentalNeed
from protocol.job_spec import Mount
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import submit

WISHES = {"region": "EU-North, eu-west", "compliance": "gdpr,ISO27001", "availability": "99.5"}


def errors_of(
    session: Session,
    cast: Cast,
    **fields: Any,  # noqa: ANN401 - fields of a job
) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as raised:
        submit(session, cast.bob, **fields)
    return raised.value.errors


def test_placement_gets_what_a_job_asks(session: Session, cast: Cast) -> None:
    wishes = WISHES | {"reputation": "0.8"}
    job = submit(session, cast.bob, max_gpu_hour_price=12.4, rental=wishes, time_limit_seconds=3600)
    [waiting] = read_waiting(session, cast.acme.id, [job.id], (), now=NOON)
    assert (job.max_gpu_hour_price, job.rental) == (12.4, wishes)
    assert waiting.view.rental == RentalNeed(
        max_price=Decimal("12.4"),
        regions=frozenset({"eu-north", "eu-west"}),
        facts=frozenset({"gdpr", "iso27001"}),
        availability_percent=99.5,
        reputation=0.8,
        time_limit=timedelta(hours=1),
    )


def test_by_default_a_job_stays_on_own_appliances(session: Session, cast: Cast) -> None:
    job = submit(session, cast.bob)
    [waiting] = read_waiting(session, cast.acme.id, [job.id], (), now=NOON)
    assert (job.max_gpu_hour_price, job.rental, waiting.view.rental) == (0.0, {}, None)


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ({"regoin": "x"}, "There is no requirement 'regoin'. Did you mean 'region'?"),
        ({"": "x"}, "There is no requirement ''. Use region, compliance, availability, "),
        ({"region": " , "}, "region is empty; enter a value, or remove it."),
        ({"region": "a\nb"}, "region is too long, or has unprintable characters; enter a short"),
        ({"region": "a" * 501}, "region is too long, or has unprintable characters; enter a short"),
        ({"availability": "101"}, "availability is '101'; enter a number from 0 to 100."),
        ({"availability": "nan"}, "availability is 'nan'; enter a number from 0 to 100."),
        ({"availability": ""}, "availability is ''; enter a number from 0 to 100."),
        ({"reputation": "-0.1"}, "reputation is '-0.1'; enter a number from 0 to 1."),
        ({"reputation": "good"}, "reputation is 'good'; enter a number from 0 to 1."),
    ],
)
def test_a_requirement_that_cannot_be_is_refused(
    session: Session, cast: Cast, wishes: dict[str, str], text: str
) -> None:
    errors = errors_of(session, cast, max_gpu_hour_price=1, rental=wishes)
    assert errors["rental"][0].startswith(text)


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 1e7])
def test_a_price_out_of_range_is_refused(session: Session, cast: Cast, price: float) -> None:
    [text] = errors_of(session, cast, max_gpu_hour_price=price)["max_gpu_hour_price"]
    assert text == f"max_gpu_hour_price is {price:.15g}; enter 0 to 1000000."


def test_a_price_counts_with_the_places_that_prices_have(session: Session, cast: Cast) -> None:
    job = submit(session, cast.bob, max_gpu_hour_price=1e-300)
    [waiting] = read_waiting(session, cast.acme.id, [job.id], (), now=NOON)
    assert waiting.view.rental is not None
    assert waiting.view.rental.max_price == 0


def test_requirements_without_a_price_are_refused(session: Session, cast: Cast) -> None:
    [text] = errors_of(session, cast, rental=WISHES)["rental"]
    assert text == "rental is set without max_gpu_hour_price; set the highest price, too."


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"mounts": [Mount(source="/data", target="/data")]},
            "Rented appliances mount no host paths; remove mounts, or",
        ),
        ({"nodes": 2}, "Rented appliances run no members of gangs; remove nodes, or"),
        (
            {"network": "host"},
            "Rented appliances give no job their own network; remove network, or",
        ),
        ({"uses_rdma": True}, "Rented appliances pass no RDMA devices; remove uses_rdma, or"),
        (
            {"cluster_options": {"slurm.partition": "gpu"}},
            "No clusters are rented; remove cluster_options, or",
        ),
    ],
)
def test_what_reaches_beyond_a_container_is_not_rented(
    session: Session, cast: Cast, fields: dict[str, Any], text: str
) -> None:
    [error] = errors_of(session, cast, max_gpu_hour_price=1, **fields)["max_gpu_hour_price"]
    assert error.startswith(text)
