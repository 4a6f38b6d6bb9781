"""Data that appliances fetch for jobs which wait for them, once these no longer do."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState
from tenants.fleet.appliances import bump_generations


def withdraw_data(session: Session, job_ids: Collection[str]) -> None:
    """Let the appliances that jobs are bound to fetch no data for them. Call it before they end."""
    for chunk in chunked(sorted(job_ids)):
        fetching = (
            select(Attempt.appliance_id)
            .join(Job, Job.id == Attempt.job_id)
            .where(
                Attempt.job_id.in_(chunk),
                Attempt.state == AttemptState.BOUND,
                Job.options["datasets"].as_string().is_not(None),
            )
        )
        bump_generations(session, session.scalars(fetching.distinct()).all())
