"""The datasets of jobs: which versions a request means.

A job stores the version that it got at its submission, so a retry and a copy read the same data;
schedules and templates store the request, so each of their jobs gets the newest one.
`datasets.upper_tables` looks up which jobs use a version.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from core.quantities import format_share
from datasets.models import Dataset, DatasetVersion, VersionState
from jobqueue.jobs.settings import is_clean_path
from protocol.job_spec import DatasetMount, JobRequest
from tenants.scope import Scope

Stored = dict[str, Any]
# Datasets to choose from in a form; others can be entered by name.
MAX_OFFERED = 500


class DatasetOffer(NamedTuple):
    """A dataset with its newest ready version."""

    name: str
    number: int
    total_bytes: int


class _Version(NamedTuple):
    """A version without its manifest."""

    id: str
    dataset_id: str
    name: str
    number: int
    state: VersionState
    message: str
    indexed_bytes: int
    total_bytes: int


def resolve_datasets(
    session: Session, tenant_id: str, request: JobRequest
) -> tuple[list[Stored], list[tuple[str, str]]]:
    """Return the datasets of a request as a job stores them, and the errors of the request.

    Each has `dataset`, its name; `target`; `version`, the number; `version_id` and `total_bytes`.
    """
    if not request.datasets:
        return [], []
    errors = [("datasets", error) for error in _target_errors(request)]
    versions = _versions(session, tenant_id, {mount.dataset for mount in request.datasets})
    stored: list[Stored] = []
    for mount in request.datasets:
        version, error = _chosen(mount, versions.get(mount.dataset))
        if version is None:
            errors.append(("datasets", error))
            continue
        stored.append(
            {
                "dataset": version.name,
                "target": mount.target,
                "version": version.number,
                "version_id": version.id,
                "total_bytes": version.total_bytes,
            }
        )
    return stored, errors


def offered_datasets(session: Session, scope: Scope) -> list[DatasetOffer]:
    """Return the datasets of the scope's tenant that have a ready version, by name."""
    newest = (
        select(DatasetVersion.dataset_id, func.max(DatasetVersion.number).label("number"))
        .where(
            DatasetVersion.tenant_id == scope.require_tenant(),
            DatasetVersion.state == VersionState.READY,
        )
        .group_by(DatasetVersion.dataset_id)
        .subquery()
    )
    statement = (
        select(Dataset.name, DatasetVersion.number, DatasetVersion.total_bytes)
        .join(newest, newest.c.dataset_id == Dataset.id)
        .join(
            DatasetVersion,
            (DatasetVersion.dataset_id == Dataset.id) & (DatasetVersion.number == newest.c.number),
        )
        .order_by(Dataset.name)
        .limit(MAX_OFFERED)
    )
    return [DatasetOffer(*row) for row in session.execute(statement)]


def _versions(
    session: Session, tenant_id: str, names: Collection[str]
) -> Mapping[str, Sequence[_Version]]:
    """Return the versions of a tenant's datasets by the name or id that they are asked for by."""
    rows = session.execute(
        select(Dataset.id, Dataset.name).where(
            Dataset.tenant_id == tenant_id, or_(Dataset.name.in_(names), Dataset.id.in_(names))
        )
    ).all()
    columns = (getattr(DatasetVersion, name) for name in _Version._fields if name != "name")
    # A version that is deleted meanwhile stays until the job is stored.
    statement = (
        select(*columns)
        .where(DatasetVersion.dataset_id.in_([row.id for row in rows]))
        .order_by(DatasetVersion.number)
        .with_for_update(read=True)
    )
    names_by_id = {row.id: row.name for row in rows}
    by_dataset: dict[str, list[_Version]] = {row.id: [] for row in rows}
    for version in session.execute(statement):
        values = version._asdict() | {"name": names_by_id[version.dataset_id]}
        by_dataset[version.dataset_id].append(_Version(**values))
    # A name goes before an id, so that nobody hides a dataset by the name of another.
    return by_dataset | {row.name: by_dataset[row.id] for row in rows}


def _chosen(
    mount: DatasetMount, versions: Sequence[_Version] | None
) -> tuple[_Version | None, str]:
    """Return the version that a job gets, or None and why there is none."""
    if versions is None:
        problem = f"There is no dataset {mount.dataset[:100]!r}."
        return None, f"{problem} 'vedette dataset ls' lists those of the tenant."
    if not versions:
        return None, f"{mount.dataset!r} has no version yet; add one."
    ready = [version for version in versions if version.state is VersionState.READY]
    if not mount.version:
        return (ready[-1], "") if ready else (None, _state_text(versions[-1]))
    version = next((row for row in versions if row.number == mount.version), None)
    if version is None:
        newest = versions[-1].number
        return None, f"{mount.dataset!r} has no version {mount.version}; the newest is {newest}."
    if version.state is VersionState.READY:
        return version, ""
    others = f" Version {ready[-1].number} is ready." if ready else ""
    return None, f"{_state_text(version)}{others}"


def _state_text(version: _Version) -> str:
    name = f"Version {version.number} of {version.name!r}"
    if version.state is VersionState.FAILED:
        why = version.message or "it could not be read"
        return f"{name} failed: {why.rstrip('.')}. Make a new version."
    if version.state is VersionState.UPLOADING:
        return f"{name} is still uploaded. Submit the job once that has ended."
    total = max(version.total_bytes, version.indexed_bytes)
    progress = format_share(version.indexed_bytes, total) if version.indexed_bytes else ""
    read = f" ({progress} read)" if progress and version.total_bytes else ""
    return f"{name} is still indexed{read}. Submit the job once it is ready."


def _target_errors(request: JobRequest) -> Iterator[str]:
    targets = [mount.target for mount in request.datasets]
    others = [*(mount.target for mount in request.mounts), *request.outputs]
    for place, target in enumerate(targets):
        if not is_clean_path(target) or target == "/":
            yield f"{target!r} is not an absolute path without '..'; enter one such as '/data'."
            continue
        for other in (*targets[:place], *others):
            path, second = PurePosixPath(target), PurePosixPath(other)
            if path.is_relative_to(second) or second.is_relative_to(path):
                yield f"{target!r} and {other!r} overlap; use separate paths in the container."
