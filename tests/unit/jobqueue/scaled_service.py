"""A service that scales, on eight GPUs and with a clock."""

# ruff: noqa: ANN401 - helpers pass any field on

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.services.autoscaling.evaluation import scale_services
from jobqueue.services.autoscaling.instances import wake_service
from jobqueue.services.autoscaling.traffic import Count, add_traffic
from jobqueue.services.scaling import service_instances
from jobqueue.states import AttemptState
from protocol.attempts import ObservedState
from protocol.autoscaling import Autoscaling
from protocol.job_spec import JobKind, Port
from tests.cast import NOON, Cast
from tests.conftest import Fill
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, submit
from timeseries.store import Store

WEB = [Port(container_port=8000, name="web")]
POLICY = Autoscaling(
    min_instances=0,
    max_instances=6,
    metric="requests_per_second",
    target=10,
    down_seconds=60,
    zero_seconds=120,
)
TICK = 15


@dataclass
class Service:
    """A service of Alice's, with a clock."""

    sessions: SessionFactory
    store: Store
    cast: Cast
    id: str
    at: datetime = NOON

    def settle(self, *, state: ObservedState = ObservedState.STOPPED) -> None:
        """Place what waits, end what should stop as `state`, and let the rest run."""
        for _ in range(2):
            with self.sessions.begin() as session:
                dispatch(session, now=self.at)
                moved = 0
                for attempt in self.attempts(session):
                    if attempt.stop_reason or attempt.job.stop_requested_at:
                        moved += report(session, attempt, state)
                    elif attempt.state is AttemptState.STARTING:
                        moved += report(session, attempt, ObservedState.RUNNING)
            if not moved:
                break

    def attempts(self, session: Session) -> Sequence[Attempt]:
        """Return those that are on an appliance."""
        allocated = (AttemptState.STARTING, AttemptState.RUNNING)
        of_service = (Job.id == self.id) | (Job.array_id == self.id)
        statement = select(Attempt).join(Job, Job.id == Attempt.job_id)
        return session.scalars(statement.where(of_service, Attempt.state.in_(allocated))).all()

    def tick(self, rate: float = 0.0, *, count: int = 1) -> None:
        """Let some intervals pass with so many requests per second."""
        for _ in range(count):
            self.at += timedelta(seconds=TICK)
            with self.sessions.begin() as session:
                counted = Count(round(rate * TICK), rate * TICK * 0.1)
                tenant_id = session.get_one(Job, self.id).tenant_id
                counts = [(self.id, tenant_id, counted)] if rate else []
                add_traffic(session, "process", counts, now=self.at)
            scale_services(self.sessions, self.store, now=self.at)
            self.settle()

    def wake(self) -> bool:
        """Let Alice send a request to it while it sleeps."""
        with self.sessions.begin() as session:
            job = session.get_one(Job, self.id)
            return wake_service(session, job, self.cast.alice.id, now=self.at)

    @property
    def states(self) -> list[str]:
        """The states of the instances that have not ended."""
        with self.sessions() as session:
            instances = service_instances(session, session.get_one(Job, self.id))
            return [instance.state.value for instance in instances]

    @property
    def events(self) -> list[str]:
        """The messages of its history."""
        with self.sessions() as session:
            of_service = (Job.id == self.id) | (Job.array_id == self.id)
            statement = select(JobEvent.message).join(Job, Job.id == JobEvent.job_id)
            return list(session.scalars(statement.where(of_service).order_by(JobEvent.id)))


def add_service(session: Session, cast: Cast, **changes: Any) -> str:
    add_appliance(session, cast.acme, "dgx-01")
    fields = {"kind": JobKind.SERVICE, "gpus": 1, "ports": WEB, "autoscaling": POLICY}
    return submit(session, cast.alice, "web", **(fields | changes)).id


def run_service(session: Session, cast: Cast) -> str:
    ident = add_service(session, cast)
    dispatch(session, now=NOON)
    [attempt] = session.scalars(select(Attempt)).all()
    report(session, attempt, ObservedState.RUNNING)
    return ident


@pytest.fixture
def make(
    sessions: SessionFactory, store: Store, cast: Cast, prefill: Callable[[Fill], str]
) -> Callable[..., Service]:
    """Submit services of Alice's, and let them run on eight GPUs."""

    def make(policy: Autoscaling | None = POLICY, **changes: Any) -> Service:
        if policy is POLICY and not changes:
            return Service(sessions, store, cast, prefill(run_service))
        with sessions.begin() as session:
            ident = add_service(session, cast, **({"autoscaling": policy} | changes))
        service = Service(sessions, store, cast, ident)
        service.settle()
        return service

    return make
