"""How far the data of a job is on its appliance, as its page shows it."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from datasets.copies import read_copies
from jobqueue.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetProgress:
    """A dataset of a job, and how much of it its appliance has.

    `cached_bytes` is None where there is no appliance, or its cache is not known.
    """

    name: str
    version: int
    target: str
    total_bytes: int
    cached_bytes: int | None


def datasets_of(session: Session, job: Job) -> list[DatasetProgress]:
    """Return the datasets of a job; how much is cached while its attempt has not ended."""
    attempt = job.attempt if job.datasets and not job.state.is_final else None
    ident = attempt.appliance_id if attempt else ""
    version_ids = {stored["version_id"] for stored in job.datasets}
    copies = read_copies(session, job.tenant_id, version_ids, appliance_id=ident) if attempt else {}
    return [
        DatasetProgress(
            name=stored["dataset"],
            version=stored["version"],
            target=stored["target"],
            total_bytes=stored["total_bytes"],
            cached_bytes=copies[stored["version_id"]].get(ident, 0) if attempt else None,
        )
        for stored in job.datasets
    ]
