"""Deletes results of ended jobs that are older than their tenant retains them.

What their parts held is deleted a day later, when nothing else refers to it (`datasets.parts`).
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from datasets.models import TenantDataSettings
from jobqueue.models import Job
from jobqueue.results.models import Artifact

BATCH = 500


def expire_results(session: Session, *, now: datetime) -> int:
    """Delete up to `BATCH` files of one tenant; return how many, 0 if there are no more."""
    rows = session.execute(
        select(TenantDataSettings.tenant_id, TenantDataSettings.results_retention_days).where(
            TenantDataSettings.results_retention_days.is_not(None)
        )
    ).all()
    for tenant_id, days in rows:
        before = now - timedelta(days=days or 0)
        expired = (
            select(Artifact.id)
            .join(Job, Job.id == Artifact.job_id)
            .where(
                Artifact.tenant_id == tenant_id,
                Artifact.uploaded_at < before,
                Job.finished_at < before,
            )
            .order_by(Artifact.uploaded_at)
            .limit(BATCH)
        )
        ids = list(session.scalars(expired))
        if ids:
            session.execute(
                delete(Artifact).where(Artifact.id.in_(ids)),
                execution_options={"synchronize_session": False},
            )
            return len(ids)
    return 0
