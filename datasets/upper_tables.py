"""What datasets must know of packages above this one: allowed paths, and jobs that use datasets."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import JSON, Text, column, or_, select, table, type_coerce
from sqlalchemy.orm import Session

from datasets.models import Dataset

_settings = table("tenant_queue_settings", column("tenant_id"), column("data_roots", JSON))
_jobs = table(
    "jobs",
    column("id"),
    column("name"),
    column("tenant_id"),
    column("finished_at"),
    column("options", JSON),
)


def data_roots(session: Session, tenant_id: str) -> list[str]:
    """Return the folders of appliances that a tenant's jobs may read."""
    roots: list[dict[str, Any]] | None = session.scalar(
        select(_settings.c.data_roots).where(_settings.c.tenant_id == tenant_id)
    )
    return [str(root["path"]) for root in roots or ()]


def jobs_using(session: Session, dataset: Dataset, number: int | None = None) -> list[str]:
    """Return the names of jobs that have not ended and use a dataset, or one of its versions."""
    text = type_coerce(_jobs.c.options, Text)  # whole: MariaDB cuts what it casts
    names = [dataset.id, dataset.name]
    jobs = select(_jobs.c.name, _jobs.c.options).where(
        _jobs.c.tenant_id == dataset.tenant_id,
        _jobs.c.finished_at.is_(None),
        or_(*(text.contains(f'"{name}"', autoescape=True) for name in names)),
    )
    return [
        str(name)
        for name, options in session.execute(jobs)
        if any(
            mounted in names and (number is None or version in {0, number})
            for mounted, version in _mounts(options)
        )
    ]


def _mounts(options: dict[str, Any] | None) -> Iterator[tuple[str, int]]:
    for mount in (options or {}).get("datasets") or ():
        yield str(mount.get("dataset", "")), int(mount.get("version") or 0)
