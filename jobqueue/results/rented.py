"""Whose parts an appliance reads and writes: those of its tenant, or of a job of a customer.

An agent asks for parts by their hash alone. Those of results have an address that the portal made,
which names the attempt of a customer; parts of a customer's datasets are found by what its jobs
that run on the appliance read.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from core.errors import NotFoundError
from datasets.models import DataPart, VersionPart
from jobqueue.models import Attempt
from jobqueue.rentals import rented_data
from jobqueue.results.announcements import result_part

ATTEMPT_PARAMETER = "attempt"


def tenant_of_results(session: Session, appliance_id: str, tenant_id: str, attempt_id: str) -> str:
    """Return whose results an appliance uploads: its own tenant's, or those of an attempt.

    Raises:
        NotFoundError: the appliance has no such attempt of a customer.
    """
    if not attempt_id:
        return tenant_id
    attempt = session.get(Attempt, attempt_id)
    if attempt is None or attempt.appliance_id != appliance_id or attempt.contract_id is None:
        raise NotFoundError.of("attempt", attempt_id)
    return attempt.tenant_id


def tenant_of_part(
    session: Session, appliance_id: str, tenant_id: str, sha256: str, attempt_id: str
) -> str:
    """Return whose part an appliance reads; one that is nowhere counts as its own tenant's.

    Raises:
        NotFoundError: the appliance has no such attempt of a customer, or its job no such part.
    """
    if attempt_id:
        from_results = tenant_of_results(session, appliance_id, tenant_id, attempt_id)
        result_part(session, appliance_id, attempt_id, sha256)
        return from_results
    if session.get(DataPart, (tenant_id, sha256)) is not None:
        return tenant_id
    versions = rented_data(session, appliance_id)
    for ids in chunked(sorted(versions)):
        statement = select(VersionPart.version_id).where(
            VersionPart.version_id.in_(ids), VersionPart.sha256 == sha256
        )
        if (version_id := session.scalar(statement.limit(1))) is not None:
            return versions[version_id]
    return tenant_id
