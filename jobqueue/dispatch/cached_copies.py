"""The copies of the datasets of waiting jobs, read when such a job is considered."""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from datasets.copies import read_copies
from jobqueue.placement.data_locality import Copies, DataLocality
from jobqueue.placement.views import JobView


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
