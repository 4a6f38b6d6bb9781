"""Orders to have datasets on appliances ahead of jobs, by hand or on a schedule.

An order stays until it is deleted, so an appliance that comes online later follows it, too. Without
a schedule it is for one version; with one, a new version is made of the source each time, and the
appliances fetch whatever version is the newest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Unpack

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Columns, Page, Paging, list_page, sorted_by
from core.schedule_times import check_schedule, check_time_zone, next_time
from core.spec import About
from datasets.catalog import (
    OPEN_STATES,
    VersionRequest,
    create_version,
    get_dataset,
    require_change,
)
from datasets.indexing import can_index, set_appliance
from datasets.models import (
    Dataset,
    DatasetCopyRecord,
    DatasetPrefetch,
    DatasetVersion,
    VersionState,
)
from datasets.sources import ON_AN_APPLIANCE
from datasets.staging import newest_versions
from datasets.targets import targets_of
from protocol.datasets import SourceKind
from tenants.fleet.appliances import bump_generations, with_report
from tenants.fleet.states import has_no_connector, in_service
from tenants.models import Appliance, Role
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_PREFETCHES = 200
MAX_LABELS = 20
_MAX_TEXT_LENGTH = 100
PREFETCH_SORTS: Columns = {
    "created_at": DatasetPrefetch.created_at,
    "next_run_at": DatasetPrefetch.next_run_at,
}
COPY_SORTS: Columns = {
    "appliance_name": Appliance.name,
    "number": DatasetVersion.number,
    "cached_bytes": DatasetCopyRecord.cached_bytes,
    "state": DatasetCopyRecord.state,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchRequest:
    """An order as a user enters it; without appliance and labels it is for all appliances."""

    version: Annotated[
        int, About("The number of a version; 0 is the newest, and follows it with a schedule.")
    ] = 0
    appliance: Annotated[str, About("Name or ID of the only appliance.")] = ""
    labels: Annotated[
        Mapping[str, str], About("Only appliances with these labels.", maximum=MAX_LABELS)
    ] = field(default_factory=dict)
    is_pinned: Annotated[bool, About("Whether the copy is never evicted from the cache.")] = False
    schedule: Annotated[
        str,
        About("When a new version is made if the source has changed: cron, or ISO 8601."),
    ] = ""
    time_zone: Annotated[str, About("Of times without an offset, such as `Europe/Oslo`.")] = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """A version in the cache of an appliance."""

    version_id: str
    number: int
    total_bytes: int
    appliance_id: str
    appliance_name: str
    copy: DatasetCopyRecord


def list_prefetches(
    session: Session, scope: Scope, dataset_id: str, **paging: Unpack[Paging]
) -> Page[DatasetPrefetch]:
    """Return the orders for a dataset, the oldest first by default."""
    dataset = get_dataset(session, scope, dataset_id)
    statement = select(DatasetPrefetch).where(DatasetPrefetch.dataset_id == dataset.id)
    ordered = statement.order_by(DatasetPrefetch.created_at, DatasetPrefetch.id)
    return list_page(session, ordered, PREFETCH_SORTS, last=DatasetPrefetch.id, **paging)


def get_prefetch(
    session: Session, scope: Scope, dataset_id: str, prefetch_id: str
) -> DatasetPrefetch:
    """Return an order for a dataset."""
    get_dataset(session, scope, dataset_id)
    prefetch = scope.get(session, DatasetPrefetch, prefetch_id, kind="prefetch")
    if prefetch.dataset_id != dataset_id:
        raise NotFoundError.of("prefetch", prefetch_id)
    return prefetch


def create_prefetch(
    session: Session, scope: Scope, dataset_id: str, request: PrefetchRequest, *, now: datetime
) -> DatasetPrefetch:
    """Order a dataset onto appliances; one like it that is there already is returned.

    Raises:
        InvalidInputError: names every invalid field.
        ForbiddenError: the role may not pin, or not make versions of the dataset.
        ConflictError: the tenant has `MAX_PREFETCHES` already.
    """
    scope.require(Permission.MANAGE_DATA if request.is_pinned else Permission.EDIT_DATASETS)
    dataset = get_dataset(session, scope, dataset_id)
    if request.schedule:
        require_change(scope, dataset)
    values = _checked(session, scope, dataset, request)
    own = select(DatasetPrefetch).where(DatasetPrefetch.dataset_id == dataset.id)
    for prefetch in session.scalars(own):
        if all(getattr(prefetch, name) == value for name, value in values.items()):
            return prefetch
    count = select(func.count()).where(DatasetPrefetch.tenant_id == dataset.tenant_id)
    if (session.scalar(count) or 0) >= MAX_PREFETCHES:
        raise ConflictError(
            f"The tenant has {MAX_PREFETCHES} prefetches already. Delete one that it no longer "
            "needs."
        )
    prefetch = DatasetPrefetch(
        tenant_id=dataset.tenant_id,
        dataset_id=dataset.id,
        created_at=now,
        next_run_at=next_time(request.schedule, request.time_zone, after=now)
        if request.schedule
        else None,
        **values,
    )
    session.add(prefetch)
    session.flush()
    session.refresh(prefetch)
    bump_generations(session, targets_of(session, prefetch))
    return prefetch


def delete_prefetch(session: Session, scope: Scope, dataset_id: str, prefetch_id: str) -> None:
    """Delete an order; the copies stay until their place is needed.

    Raises:
        ForbiddenError: the role may not remove pins.
    """
    prefetch = get_prefetch(session, scope, dataset_id, prefetch_id)
    scope.require(Permission.MANAGE_DATA if prefetch.is_pinned else Permission.EDIT_DATASETS)
    targets = targets_of(session, prefetch)
    session.delete(prefetch)
    session.flush()
    bump_generations(session, targets)


def list_copies(
    session: Session,
    scope: Scope,
    dataset_id: str,
    *,
    sort: str = "appliance_name",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[CopyView]:
    """Return on which appliances of its tenant the versions of a dataset are cached."""
    dataset = get_dataset(session, scope, dataset_id)
    columns = (DatasetVersion.number, DatasetVersion.total_bytes, Appliance.name)
    statement = (
        select(DatasetCopyRecord, *columns)
        .join(DatasetVersion, DatasetVersion.id == DatasetCopyRecord.version_id)
        .join(Appliance, Appliance.id == DatasetCopyRecord.appliance_id)
        .where(
            DatasetVersion.dataset_id == dataset.id,
            Appliance.tenant_id == dataset.tenant_id,
            in_service(),
        )
    )
    last = DatasetCopyRecord.version_id
    ordered = sorted_by(statement, sort, COPY_SORTS, last=last)
    ordered = ordered.order_by(DatasetCopyRecord.appliance_id)
    total = session.scalar(select(func.count()).select_from(statement.order_by(None).subquery()))
    size = max(1, min(page_size, DEFAULT_PAGE_SIZE * 10))
    number = max(1, page)
    rows = session.execute(ordered.offset((number - 1) * size).limit(size)).unique()
    copies = [
        CopyView(
            version_id=copy.version_id,
            number=version_number,
            total_bytes=total_bytes,
            appliance_id=copy.appliance_id,
            appliance_name=name,
            copy=copy,
        )
        for copy, version_number, total_bytes, name in rows
    ]
    return Page(copies, total or 0, number, size)


def version_numbers(session: Session, prefetches: Sequence[DatasetPrefetch]) -> dict[str, int]:
    """Return the numbers of the versions that some orders are for, by the version's id."""
    idents = {row.version_id for row in prefetches if row.version_id is not None}
    columns = select(DatasetVersion.id, DatasetVersion.number)
    rows = session.execute(columns.where(DatasetVersion.id.in_(idents)))
    return {row.id: row.number for row in rows} if idents else {}


def run_due(session: Session, *, now: datetime) -> bool:
    """Make a new version for one order whose time has come; return whether there was one.

    While a version is being made, or no appliance can read the source, none is. One with the files
    of the version before is deleted as soon as its agent has read the source.
    """
    due = select(DatasetPrefetch).where(DatasetPrefetch.next_run_at <= now)
    prefetch = session.scalars(due.order_by(DatasetPrefetch.next_run_at).limit(1)).first()
    if prefetch is None:
        return False
    try:
        following = next_time(prefetch.schedule, prefetch.time_zone, after=now)
    except ValueError:  # its time zone is gone from the database of time zones
        following = None
    guarded = update(DatasetPrefetch).where(
        DatasetPrefetch.id == prefetch.id, DatasetPrefetch.next_run_at == prefetch.next_run_at
    )
    if changed_one(session, guarded.values(next_run_at=following), synchronize_session=False):
        _make_version(session, prefetch, now=now)
    session.expire_all()
    return True


def _make_version(session: Session, prefetch: DatasetPrefetch, *, now: datetime) -> None:
    dataset = session.get_one(Dataset, prefetch.dataset_id)
    is_open = exists().where(
        DatasetVersion.dataset_id == dataset.id, DatasetVersion.state.in_(OPEN_STATES)
    )
    if dataset.kind is SourceKind.UPLOAD or session.scalar(select(is_open)):
        return
    reader = _reader(session, dataset, prefetch)
    if reader is None:
        return
    is_bound = dataset.kind in ON_AN_APPLIANCE
    scope = Scope(user_id="", role=Role.ADMIN, tenant_id=dataset.tenant_id)
    request = VersionRequest(appliance_id=reader.id if is_bound else None)
    version = create_version(session, scope, dataset.id, request, now=now)
    version.is_scheduled = True
    if version.indexing_appliance_id != reader.id:
        set_appliance(session, version, reader)
    session.flush()


def _reader(session: Session, dataset: Dataset, prefetch: DatasetPrefetch) -> Appliance | None:
    """Return the appliance that reads the source; None if none can.

    A source on an appliance is read where it was read last, others by one that the order is for:
    the one that read it last, if it can.
    """
    last = session.scalar(
        select(DatasetVersion.indexing_appliance_id)
        .where(
            DatasetVersion.dataset_id == dataset.id,
            DatasetVersion.indexing_appliance_id.is_not(None),
        )
        .order_by(DatasetVersion.number.desc())
        .limit(1)
    )
    idents = [last] if last is not None else []
    if dataset.kind not in ON_AN_APPLIANCE:
        targets = targets_of(session, prefetch)
        idents = [*(ident for ident in idents if ident in targets), *targets]
    for ident in idents:
        appliance = session.get(Appliance, ident, options=with_report())
        if appliance is not None and can_index(appliance) is None:
            return appliance
    return None


def _checked(
    session: Session, scope: Scope, dataset: Dataset, request: PrefetchRequest
) -> dict[str, Any]:
    errors: dict[str, list[str]] = {}
    appliance = None
    if request.appliance:
        appliance = _appliance(session, scope, dataset, request.appliance)
        if appliance is None:
            missing = NotFoundError.of("appliance", request.appliance[:_MAX_TEXT_LENGTH]).message
            errors["appliance"] = [missing]
        if request.labels:
            errors["labels"] = ["Enter an appliance or labels, not both."]
    if len(request.labels) > MAX_LABELS or any(
        not key or len(key) + len(value) > 2 * _MAX_TEXT_LENGTH
        for key, value in request.labels.items()
    ):
        errors["labels"] = [f"Enter at most {MAX_LABELS} short labels."]
    if request.schedule:
        errors |= _schedule_errors(dataset, request)
    version_id, error = _version(session, dataset, request)
    if error:
        errors["version"] = [error]
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The dataset was not prefetched. {details}", errors=errors)
    return {
        "version_id": version_id,
        "appliance_id": None if appliance is None else appliance.id,
        "labels": dict(request.labels),
        "is_pinned": request.is_pinned,
        "schedule": request.schedule.strip(),
        "time_zone": request.time_zone if request.schedule else "UTC",
    }


def _appliance(session: Session, scope: Scope, dataset: Dataset, name: str) -> Appliance | None:
    statement = scope.select(select(Appliance), Appliance).where(
        Appliance.tenant_id == dataset.tenant_id,
        (Appliance.name == name) | (Appliance.id == name),
        in_service(),
        has_no_connector(),
    )
    return session.scalars(statement).first()


def _schedule_errors(dataset: Dataset, request: PrefetchRequest) -> dict[str, list[str]]:
    errors = {}
    checks = {"schedule": check_schedule, "time_zone": check_time_zone}
    for name, check in checks.items():
        try:
            check(getattr(request, name).strip())
        except ValueError as error:
            errors[name] = [str(error)]
    if dataset.kind is SourceKind.UPLOAD:
        errors["schedule"] = ["Uploaded datasets have no source to read again; leave it empty."]
    elif request.version:
        errors["version"] = ["With a schedule, the newest version is fetched; leave it empty."]
    return errors


def _version(
    session: Session, dataset: Dataset, request: PrefetchRequest
) -> tuple[str | None, str]:
    """Return the version of an order, None for the newest, and what is wrong with it."""
    if request.schedule:
        return None, ""
    if not request.version:
        # While none is ready, the first one that will be.
        return newest_versions(session, [dataset.id]).get(dataset.id), ""
    row = session.execute(
        select(DatasetVersion.id, DatasetVersion.state).where(
            DatasetVersion.dataset_id == dataset.id, DatasetVersion.number == request.version
        )
    ).one_or_none()
    if row is None:
        return None, f"{dataset.name!r} has no version {request.version}."
    if row.state is not VersionState.READY:
        return None, f"Version {request.version} is {row.state.value}; choose one that is ready."
    return row.id, ""
