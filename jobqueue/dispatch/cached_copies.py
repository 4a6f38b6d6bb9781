"""The caches of appliances and the copies of the datasets of waiting jobs, as placement sees them.

They are read when a job with datasets is considered.
"""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from datasets.copies import fetching_caches, read_copies
from jobqueue.models import Attempt, Job
from jobqueue.placement.data_locality import Copies, DataLocality
from jobqueue.placement.views import CacheView, JobView
from jobqueue.states import AttemptState

# The first jobs of an appliance's queue, whose data it fetches ahead.
_MAX_AWAITED = 50


def cached_copies(
    session: Session,
    tenant_id: str,
    jobs: Iterable[JobView],
    *,
    but: DataLocality | None = None,
) -> Copies:
    """Return the cached bytes of the versions that jobs read, by version and appliance.

    Those that are in `but` already are left out; without datasets, there is no query.
    """
    version_ids = {version_id for job in jobs for version_id, _ in job.datasets}
    missing = version_ids if but is None else but.missing(version_ids)
    return read_copies(session, tenant_id, missing) if missing else {}


def staging_caches(session: Session, tenant_id: str) -> dict[str, CacheView]:
    """Return the caches of a tenant's appliances that fetch datasets ahead of jobs."""
    return {
        cache.appliance_id: CacheView(cache.bytes_per_second, cache.failed)
        for cache in fetching_caches(session, tenant_id)
    }


def awaited_versions(session: Session, appliance_id: str) -> list[str]:
    """Return the versions that the jobs which are bound to an appliance read, in their order."""
    statement = (
        select(Job.options["datasets"].label("datasets"))
        .join(Attempt, Attempt.job_id == Job.id)
        .where(
            Attempt.appliance_id == appliance_id,
            Attempt.state == AttemptState.BOUND,
            Job.options["datasets"].as_string().is_not(None),
        )
        .order_by(Job.queue_at, Job.id)
        .limit(_MAX_AWAITED)
    )
    return [
        stored["version_id"] for datasets in session.scalars(statement) for stored in datasets or ()
    ]
