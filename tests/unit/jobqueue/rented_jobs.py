"""Jobs that acme runs on an appliance of globex."""

# ruff: noqa: ANN401 - `rent` passes any field on

from typing import Any

from sqlalchemy.orm import Session

from jobqueue.models import Attempt, Job
from tests.cast import NOON, Cast
from tests.unit.jobqueue.builders import add_appliance, dispatch, submit
from tests.unit.jobqueue.rental_builders import grant, offer


def lend(session: Session, cast: Cast) -> str:
    row = add_appliance(session, cast.globex, "globex-dgx")
    offer(session, [row])
    grant(session, cast.acme, cast.globex)
    return row.id


def rent(session: Session, cast: Cast, name: str = "train", **changes: Any) -> Job:
    """Submit a job of Alice's that pays 10 for a GPU-hour."""
    return submit(session, cast.alice, name, **({"gpus": 1, "max_gpu_hour_price": 10} | changes))


def placed(session: Session, job: Job) -> Attempt:
    """Place the waiting jobs; return the job's attempt."""
    dispatch(session, now=NOON)
    session.refresh(job)
    assert job.attempt is not None
    return job.attempt
