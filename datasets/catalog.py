"""Datasets of a tenant: list, add, change and delete them; their versions: make and cancel."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing, changed_one
from core.errors import ConflictError, InvalidInputError
from core.paging import Columns, Page, Paging, list_page
from datasets.connections import get_connection
from datasets.indexing import can_index, choose_appliance, set_appliance
from datasets.models import MAX_NAME_LENGTH, Dataset, DatasetVersion, VersionState
from datasets.sources import ON_AN_APPLIANCE, connection_fits, kind_of, source_problem
from datasets.targets import notify_caches, notify_targets
from datasets.upper_tables import data_roots, jobs_using
from protocol.datasets import SourceKind
from tenants.checks import raise_if_invalid
from tenants.fleet.appliances import bump_generations
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.quotas import count_rows
from tenants.scope import Scope

MAX_DESCRIPTION_LENGTH = 500
MAX_DATASETS = 10_000
MAX_VERSIONS = 1_000
MAX_OPEN_VERSIONS = 10
"""Of a dataset, that are being uploaded."""
DATASET_SORTS: Columns = {"name": Dataset.name, "created_at": Dataset.created_at}
VERSION_SORTS: Columns = {
    "number": DatasetVersion.number,
    "created_at": DatasetVersion.created_at,
    "total_bytes": DatasetVersion.total_bytes,
}
OPEN_STATES = (VersionState.INDEXING, VersionState.UPLOADING)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_PROBLEM = (
    f"Use 1 to {MAX_NAME_LENGTH} letters, digits, hyphens, dots and underscores, such as "
    "'imagenet-2012'."
)
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    """A dataset as a user writes it.

    Attributes:
        source_url: where its files are; "" for files that are uploaded.
        connection_id: of the credentials for the source, if it needs any.
        appliance_id: where the source of the first version is read; None leaves the choice.
    """

    name: str
    description: str = ""
    source_url: str = ""
    connection_id: str | None = None
    appliance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetChange:
    """A change of a dataset; its source stays what it is."""

    name: str
    description: str = ""
    connection_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest:
    """A new version of a dataset.

    Attributes:
        appliance_id: where the source is read; None leaves the choice.
        upload_key: names the files that are uploaded: the same key continues an upload.
    """

    appliance_id: str | None = None
    upload_key: str | None = None


def list_datasets(
    session: Session, scope: Scope, *, search: str = "", **paging: Unpack[Paging]
) -> Page[Dataset]:
    """Return the datasets of the scope, by name; `search` is a part of name or description."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Dataset), Dataset)
    if search:
        columns = (Dataset.name, Dataset.description, Dataset.source_url)
        contains = (column.icontains(search, autoescape=True) for column in columns)
        statement = statement.where(or_(*contains))
    ordered = statement.order_by(Dataset.name, Dataset.id)
    return list_page(session, ordered, DATASET_SORTS, last=Dataset.id, **paging)


def get_dataset(session: Session, scope: Scope, dataset_id: str) -> Dataset:
    """Return a dataset of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, Dataset, dataset_id, kind="dataset")


def may_change(scope: Scope, dataset: Dataset) -> bool:
    """Return whether the scope may change a dataset: its own, or any as an admin."""
    is_own = dataset.user_id == scope.user_id and scope.allows(Permission.EDIT_DATASETS)
    return scope.owns(dataset) and (is_own or scope.allows(Permission.MANAGE_DATA))


def require_change(scope: Scope, dataset: Dataset) -> None:
    """Raise `ForbiddenError` unless the scope may change a dataset."""
    scope.require(Permission.EDIT_DATASETS)
    if not may_change(scope, dataset):
        scope.require(Permission.MANAGE_DATA)


def create_dataset(
    session: Session, scope: Scope, request: DatasetRequest, *, now: datetime
) -> Dataset:
    """Add a dataset to the scope's tenant; its source is read at once, for the first version.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the tenant has `MAX_DATASETS`.
    """
    scope.require(Permission.EDIT_DATASETS)
    tenant_id = scope.require_tenant()
    url = request.source_url.strip()
    kind = (kind_of(url) or SourceKind.UPLOAD) if url else SourceKind.UPLOAD
    dataset = Dataset(
        tenant_id=tenant_id, user_id=scope.user_id, kind=kind, source_url=url, created_at=now
    )
    errors = _errors(session, scope, dataset, request)
    problem = source_problem(url) if url else None
    if problem:
        errors["source_url"] = [problem]
    raise_if_invalid(errors, "The dataset was not added")
    if count_rows(session, Dataset.tenant_id == tenant_id) >= MAX_DATASETS:
        raise ConflictError(f"There are {MAX_DATASETS} datasets. Delete one first.")
    _fill(dataset, request)
    session.add(dataset)
    session.flush()
    if url:
        version = VersionRequest(appliance_id=request.appliance_id)
        create_version(session, scope, dataset.id, version, now=now)
    session.refresh(dataset)
    return dataset


def update_dataset(
    session: Session, scope: Scope, dataset_id: str, request: DatasetChange
) -> Dataset:
    """Rename or describe a dataset, or let it use another connection.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: jobs that have not ended use it by its name.
    """
    dataset = get_dataset(session, scope, dataset_id)
    require_change(scope, dataset)
    raise_if_invalid(_errors(session, scope, dataset, request), "The dataset was not changed")
    has_other_source = dataset.connection_id != request.connection_id
    _fill(dataset, request)
    session.flush()
    if has_other_source:
        session.refresh(dataset)  # with its connection
        notify_caches(session, dataset.tenant_id)
    return dataset


def delete_dataset(session: Session, scope: Scope, dataset_id: str) -> None:
    """Delete a dataset with its versions; what only they store is deleted within two days.

    Raises:
        ConflictError: jobs that have not ended use it; names some.
    """
    dataset = get_dataset(session, scope, dataset_id)
    require_change(scope, dataset)
    _lock_versions(session, DatasetVersion.dataset_id == dataset.id)
    _require_unused(session, dataset, None)
    _wake_indexing(session, dataset.versions)
    notify_targets(session, dataset.id)
    session.delete(dataset)
    session.flush()


def list_versions(
    session: Session, scope: Scope, dataset_id: str, **paging: Unpack[Paging]
) -> Page[DatasetVersion]:
    """Return the versions of a dataset, newest first."""
    dataset = get_dataset(session, scope, dataset_id)
    statement = select(DatasetVersion).where(DatasetVersion.dataset_id == dataset.id)
    ordered = statement.order_by(DatasetVersion.number.desc())
    return list_page(session, ordered, VERSION_SORTS, last=DatasetVersion.id, **paging)


def get_version(session: Session, scope: Scope, version_id: str) -> DatasetVersion:
    """Return a version of a dataset of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, DatasetVersion, version_id, kind="dataset version")


def get_upload(session: Session, scope: Scope, version_id: str) -> DatasetVersion:
    """Return a version whose files the scope may upload.

    Raises:
        ConflictError: its dataset has a source.
    """
    version = get_version(session, scope, version_id)
    require_change(scope, version.dataset)
    if version.dataset.kind is not SourceKind.UPLOAD:
        raise ConflictError(
            f"{version.dataset.name} has a source: its files are read there, not uploaded."
        )
    return version


def create_version(
    session: Session, scope: Scope, dataset_id: str, request: VersionRequest, *, now: datetime
) -> DatasetVersion:
    """Begin a version: of a source, which an appliance reads, or of files that are uploaded.

    An upload with the key of one that is open continues that one.

    Raises:
        InvalidInputError: the appliance can't read it.
        ConflictError: another version is being made.
    """
    dataset = get_dataset(session, scope, dataset_id)
    require_change(scope, dataset)
    begin_writing(session)
    # Two new versions of a dataset wait for each other, and get numbers of their own.
    session.execute(
        update(Dataset).where(Dataset.id == dataset.id).values(last_number=Dataset.last_number),
        execution_options={"synchronize_session": False},
    )
    session.refresh(dataset)
    open_versions = session.scalars(
        select(DatasetVersion)
        .where(DatasetVersion.dataset_id == dataset.id, DatasetVersion.state.in_(OPEN_STATES))
        .execution_options(populate_existing=True)
    ).all()
    if dataset.kind is SourceKind.UPLOAD:
        same_key = [row for row in open_versions if row.upload_key == request.upload_key]
        if request.upload_key is not None and same_key:
            same_key[0].active_at = now
            return same_key[0]
        if len(open_versions) >= MAX_OPEN_VERSIONS:
            raise ConflictError(
                f"{dataset.name} has {MAX_OPEN_VERSIONS} open uploads. Finish or cancel one."
            )
    elif open_versions:
        raise ConflictError(
            f"Version {open_versions[0].number} of {dataset.name} is being read. Wait for it, or "
            "cancel it."
        )
    if len(dataset.versions) >= MAX_VERSIONS:
        raise ConflictError(f"{dataset.name} has {MAX_VERSIONS} versions. Delete one first.")
    return _add_version(session, scope, dataset, request, now)


def cancel_version(session: Session, scope: Scope, version_id: str) -> DatasetVersion:
    """Cancel a version that is being read or uploaded.

    Raises:
        ConflictError: it is ready, or has failed.
    """
    version = get_version(session, scope, version_id)
    require_change(scope, version.dataset)
    if not fail_version(session, version, "Cancelled."):
        raise ConflictError(
            f"Version {version.number} is {version.state.value}: there is nothing to cancel."
        )
    return version


def delete_version(session: Session, scope: Scope, version_id: str) -> None:
    """Delete a version; its number is not given again.

    Raises:
        ConflictError: jobs that have not ended use it, or it is the newest of the ready ones while
            jobs want that.
    """
    version = get_version(session, scope, version_id)
    require_change(scope, version.dataset)
    _lock_versions(session, DatasetVersion.id == version.id)
    _require_unused(session, version.dataset, version.number)
    _wake_indexing(session, [version])
    notify_targets(session, version.dataset_id)
    session.delete(version)
    session.flush()


def fail_version(session: Session, version: DatasetVersion, message: str) -> bool:
    """End a version that is not ready, with the reason; return False if it was not open."""
    appliance_id = version.indexing_appliance_id
    failed = (
        update(DatasetVersion)
        .where(DatasetVersion.id == version.id, DatasetVersion.state.in_(OPEN_STATES))
        .values(state=VersionState.FAILED, message=message)
    )
    if not changed_one(session, failed):
        session.refresh(version)
        return False
    session.refresh(version)
    if appliance_id is not None:
        bump_generations(session, {appliance_id})
    return True


def _add_version(
    session: Session, scope: Scope, dataset: Dataset, request: VersionRequest, now: datetime
) -> DatasetVersion:
    is_upload = dataset.kind is SourceKind.UPLOAD
    appliance = None if is_upload else _appliance(session, scope, dataset, request)
    dataset.last_number += 1
    version = DatasetVersion(
        tenant_id=dataset.tenant_id,
        dataset_id=dataset.id,
        dataset=dataset,
        number=dataset.last_number,
        state=VersionState.UPLOADING if is_upload else VersionState.INDEXING,
        upload_key=request.upload_key if is_upload else None,
        requested_appliance_id=appliance.id if appliance and request.appliance_id else None,
        created_at=now,
        active_at=now,
    )
    session.add(version)
    session.flush()
    if not is_upload:
        set_appliance(session, version, appliance or choose_appliance(session, version))
    return version


def _appliance(
    session: Session, scope: Scope, dataset: Dataset, request: VersionRequest
) -> Appliance | None:
    if request.appliance_id is None:
        if dataset.kind in ON_AN_APPLIANCE:
            problem = f"A {dataset.kind.value}:// source is read by an appliance that you choose."
            raise InvalidInputError(problem, errors={"appliance_id": [problem]})
        return None
    appliance = scope.get(session, Appliance, request.appliance_id, kind="appliance")
    reason = can_index(appliance)
    if appliance.tenant_id != dataset.tenant_id or reason:
        problem = f"{appliance.name} can't read it: {reason}"
        raise InvalidInputError(problem, errors={"appliance_id": [problem]})
    return appliance


def _errors(
    session: Session, scope: Scope, dataset: Dataset, request: DatasetRequest | DatasetChange
) -> dict[str, list[str]]:
    name, errors = request.name.strip(), dict[str, list[str]]()
    same = select(Dataset.id).where(Dataset.tenant_id == dataset.tenant_id, Dataset.name == name)
    if not (_NAME.fullmatch(name) and len(name) <= MAX_NAME_LENGTH):
        errors["name"] = [_NAME_PROBLEM]
    elif session.scalar(same) not in {None, dataset.id}:
        errors["name"] = [f"A dataset named {name!r} already exists. Choose another name."]
    elif dataset.id and name != dataset.name and (jobs := jobs_using(session, dataset)):
        errors["name"] = [f"Jobs that have not ended use it ({jobs[0]}). Rename it afterwards."]
    if len(request.description) > MAX_DESCRIPTION_LENGTH:
        errors["description"] = [f"Use at most {MAX_DESCRIPTION_LENGTH} characters."]
    errors |= _connection_errors(session, scope, dataset, request.connection_id)
    if dataset.kind is SourceKind.NFS and not dataset.id:
        # The server trusts the appliance's address, so that its files are not any user's.
        scope.require(Permission.MANAGE_DATA)
    if dataset.kind is SourceKind.FILE and not dataset.id:
        path, roots = (
            dataset.source_url.removeprefix("file://"),
            data_roots(session, dataset.tenant_id),
        )
        if not any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in roots):
            listed = ", ".join(roots) or "there is none"
            problem = f"{path[:200]!r} is not in a data root of this tenant ({listed})."
            errors["source_url"] = [f"{problem} An admin can add one in the queue settings."]
    return errors


def _connection_errors(
    session: Session, scope: Scope, dataset: Dataset, connection_id: str | None
) -> dict[str, list[str]]:
    if connection_id is None:
        return {}
    connection = get_connection(session, scope, connection_id)
    if dataset.tenant_id != connection.tenant_id or not connection_fits(
        connection.url, dataset.source_url
    ):
        problem = f"The connection {connection.name} is for {connection.url}, not for this source."
        return {"connection_id": [problem]}
    return {}


def _fill(dataset: Dataset, request: DatasetRequest | DatasetChange) -> None:
    dataset.name, dataset.description = request.name.strip(), request.description.strip()
    dataset.connection_id = request.connection_id


def _require_unused(session: Session, dataset: Dataset, number: int | None) -> None:
    jobs = jobs_using(session, dataset, number)
    if jobs:
        subject = dataset.name if number is None else f"{dataset.name}@{number}"
        others = len(jobs) - _MAX_LISTED
        listed = ", ".join(jobs[:_MAX_LISTED]) + (f" and {others} others" if others > 0 else "")
        raise ConflictError(
            f"Jobs that have not ended use {subject}: {listed}. Stop them or wait for them first.",
            code="dataset_in_use",
        )


def _lock_versions(session: Session, condition: ColumnElement[bool]) -> None:
    """Wait for jobs that are being stored with versions, so that these are seen to be in use."""
    begin_writing(session)
    locked = select(DatasetVersion.id).where(condition).order_by(DatasetVersion.id)
    session.scalars(locked.with_for_update()).all()


def _wake_indexing(session: Session, versions: Sequence[DatasetVersion]) -> None:
    """Let agents stop reading sources of versions that are deleted."""
    reading = {row.indexing_appliance_id for row in versions if row.state is VersionState.INDEXING}
    bump_generations(session, {appliance_id for appliance_id in reading if appliance_id})
