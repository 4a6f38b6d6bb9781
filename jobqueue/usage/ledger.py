"""The usage ledger: what attempts used of GPUs, hour by hour.

An hour is recorded a few minutes after its end, from the attempts and their samples. Appliances
deliver late what they buffered, and an end may be reported late, so an hour is measured again some
hours, a day and a week later: where the figures differ, the difference is appended as another
revision. Nothing is changed or deleted, and what a ledger says is the sum of its rows.
`recompute` does the same for any hours, and finds nothing to append where they are right.

Entries of deleted jobs stay as they are: there is nothing to compare them with.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.db import SessionFactory, chunked, transaction
from core.errors import ConflictError
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.partitions.measures import slice_of
from jobqueue.usage.measuring import (
    NO_WINDOWS,
    GPUKey,
    GPUWindows,
    Period,
    Use,
    gpu_use,
    gpu_windows,
)
from jobqueue.usage.models import MAX_MODEL_LENGTH, UsageEntry, UsageHour
from protocol.clusters import are_requested
from protocol.inventory import Inventory
from tenants.models import Appliance
from tenants.models.appliances import decode_inventory
from tenants.scope import Scope
from timeseries.store import Store

HOUR = timedelta(hours=1)
# Samples of the last seconds of an hour arrive after it.
SETTLE = timedelta(minutes=3)
CHECKS_AFTER = (timedelta(hours=6), timedelta(days=1), timedelta(days=7))
MAX_HOURS_PER_RUN = 48
UNKNOWN_MODEL = "unknown"
# Averages of a window may differ in the last digit.
_TOLERANCE = 10
_CHUNK = 2000
# In place of a UUID: the model of all GPUs of a cluster, "" if it has several.
_OF_NODES = ""


class LedgerAttempt(NamedTuple):
    """The columns of an attempt that the ledger needs.

    GPUs are allocated from `charged_from` on; None while it waits in the queue of a cluster.
    `site_id` is the node of a cluster, or the appliance; `contract_id` that by which it is rented.
    """

    id: str
    job_id: str
    tenant_id: str
    appliance_id: str
    gpu_uuids: list[str]
    charged_from: datetime | None
    finished_at: datetime | None
    user_id: str | None
    job_name: str
    project_id: str | None
    gpu_slice: dict[str, Any] | None
    site_id: str
    contract_id: str | None = None

    @property
    def has_mig(self) -> bool:
        """Return whether it has a MIG slice, of which there are samples."""
        return bool(self.gpu_slice and self.gpu_slice.get("profile"))


class EntryKey(NamedTuple):
    """An attempt's use of one GPU model."""

    attempt_id: str
    gpu_model: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The entries of one hour as they are in the ledger: their sum, and the last revision."""

    use: Use
    revision: int


def record_usage(sessions: SessionFactory, store: Store, *, now: datetime) -> int:
    """Record the hours that have ended, and check those that are due; return the rows appended.

    Raises:
        StoreUnavailableError: the store is unavailable; the next call continues.
    """
    with transaction(sessions) as session:
        due = _due_hours(session, now=now)
    ledger = _Ledger(sessions, store)
    return sum(ledger.settle(hour_at, now=now) for hour_at in due)


def recompute(
    sessions: SessionFactory, store: Store, *, since: datetime, until: datetime, now: datetime
) -> Iterator[tuple[datetime, int]]:
    """Measure the recorded hours of a time range again, oldest first.

    Yields each hour with the number of rows appended: 0 where its figures are right.
    """
    with transaction(sessions) as session:
        recorded = select(UsageHour.hour_at).where(
            UsageHour.hour_at >= since, UsageHour.hour_at < until
        )
        hours = session.scalars(recorded.order_by(UsageHour.hour_at)).all()
    ledger = _Ledger(sessions, store)
    for hour_at in hours:
        yield hour_at, ledger.settle(hour_at, now=now)


def recorded_until(session: Session) -> datetime | None:
    """Return the end of the last recorded hour; None if there is none."""
    last = session.scalar(select(func.max(UsageHour.hour_at)))
    return None if last is None else last + HOUR


def check_again(session: Session, period: Period) -> None:
    """Let the next run measure the recorded hours of a period again: attempts were added."""
    statement = update(UsageHour).where(
        UsageHour.hour_at > period.since - HOUR, UsageHour.hour_at < period.until
    )
    session.execute(statement.values(next_check_at=period.until))


def floor_hour(at: datetime) -> datetime:
    """Return the beginning of the hour of an instant."""
    return at.replace(minute=0, second=0, microsecond=0)


def _due_hours(session: Session, *, now: datetime) -> list[datetime]:
    first_recorded_at, last_recorded_at = session.execute(
        select(func.min(UsageHour.hour_at), func.max(UsageHour.hour_at))
    ).one()
    first_assigned_at = session.scalar(select(func.min(Attempt.assigned_at)))
    begin = floor_hour(first_assigned_at or now)
    if first_recorded_at is not None and begin >= first_recorded_at:
        begin = last_recorded_at + HOUR
    due: list[datetime] = []
    while begin + HOUR + SETTLE <= now and len(due) < MAX_HOURS_PER_RUN:
        if begin == first_recorded_at:  # attempts of earlier hours were added
            begin = last_recorded_at + HOUR
            continue
        due.append(begin)
        begin += HOUR
    checked = select(UsageHour.hour_at).where(UsageHour.next_check_at <= now)
    due += session.scalars(checked.order_by(UsageHour.hour_at).limit(MAX_HOURS_PER_RUN))
    return due


class _Ledger:
    """Brings hours up to date. Attempts that go on into the next hour are read once."""

    def __init__(self, sessions: SessionFactory, store: Store) -> None:
        self._sessions = sessions
        self._store = store
        self._models: dict[str, Mapping[str, str]] = {}
        self._read_until: datetime | None = None
        self._running: list[LedgerAttempt] = []

    def settle(self, hour_at: datetime, *, now: datetime) -> int:
        """Append what is missing in an hour; return the number of rows."""
        end_at = hour_at + HOUR
        with transaction(self._sessions) as session:
            recorded = _recorded(session, hour_at)
            attempts = self._attempts(session, hour_at)
            self._read_models(session, {attempt.site_id for attempt in attempts})
            # An attempt that ended earlier than it seemed is not in this hour any more.
            elsewhere = {key.attempt_id for key in recorded} - {attempt.id for attempt in attempts}
            moved_attempts = _existing(session, elsewhere)
        windows = (
            gpu_windows(
                self._store,
                start_ns=to_ns(hour_at),
                end_ns=to_ns(end_at),
                has_slices=any(attempt.has_mig for attempt in attempts),
            )
            if attempts
            else {}
        )
        rows: list[dict[str, Any]] = []
        own: dict[str, set[str]] = defaultdict(set)
        for key in recorded:
            own[key.attempt_id].add(key.gpu_model)
        for attempt in [*attempts, *moved_attempts]:
            measured = self._measured(attempt, windows, hour_at, own[attempt.id])
            for model in measured.keys() | own[attempt.id]:
                before = recorded.get(EntryKey(attempt.id, model))
                rows += _row(attempt, model, measured.get(model, Use()), before)
        common = {"hour_at": hour_at, "recorded_at": now}
        try:
            with transaction(self._sessions) as session:
                for chunk in chunked(rows, _CHUNK):
                    session.execute(insert(UsageEntry), [row | common for row in chunk])
                _mark(session, hour_at, has_rows=bool(rows), now=now)
        except IntegrityError as error:
            raise ConflictError(
                f"Another process records {hour_at:%Y-%m-%d %H:%M} UTC. Try again in a minute."
            ) from error
        return len(rows)

    def _attempts(self, session: Session, hour_at: datetime) -> list[LedgerAttempt]:
        """Return the attempts with GPUs that were allocated in an hour."""
        end_at = hour_at + HOUR
        is_next = self._read_until == hour_at
        earlier = (
            self._running
            if is_next
            else _read(
                session,
                _ATTEMPTS.where(
                    Attempt.assigned_at < hour_at,
                    or_(Attempt.finished_at > hour_at, Attempt.finished_at.is_(None)),
                ),
            )
        )
        begun = _ATTEMPTS.where(Attempt.assigned_at >= hour_at, Attempt.assigned_at < end_at)
        attempts = [*earlier, *_read(session, begun)]
        self._running = [
            attempt
            for attempt in attempts
            if attempt.finished_at is None or attempt.finished_at > end_at
        ]
        self._read_until = end_at
        return attempts

    def _read_models(self, session: Session, appliance_ids: set[str]) -> None:
        self._models |= read_models(session, appliance_ids - self._models.keys())

    def _measured(
        self,
        attempt: LedgerAttempt,
        windows: Mapping[GPUKey, GPUWindows],
        hour_at: datetime,
        recorded_models: set[str],
    ) -> dict[str, Use]:
        """Return an attempt's use in an hour by GPU model."""
        # A GPU that was replaced is not in the inventory: the ledger may know what it was.
        fallback = next(iter(recorded_models)) if len(recorded_models) == 1 else UNKNOWN_MODEL
        return use_by_model(
            attempt,
            windows,
            self._models.get(attempt.site_id, {}),
            Period(hour_at, hour_at + HOUR),
            fallback=fallback,
        )


def use_by_model(
    attempt: LedgerAttempt,
    windows: Mapping[GPUKey, GPUWindows],
    models: Mapping[str, str],
    period: Period,
    *,
    fallback: str = UNKNOWN_MODEL,
) -> dict[str, Use]:
    """Return an attempt's use of GPUs in a period by GPU model.

    Args:
        attempt: whose GPUs are allocated from its assignment, or start on a cluster, to its end.
        windows: what was measured.
        models: the GPU models of its appliance or node by UUID.
        period: the time; of an attempt outside of it nothing is returned.
        fallback: the model of a GPU that is not in `models`.
    """
    if attempt.charged_from is None:
        return {}
    start_at = max(attempt.charged_from, period.since)
    end_at = min(attempt.finished_at or period.until, period.until)
    if start_at >= end_at:
        return {}
    uses: dict[str, Use] = {}
    # Not every cluster tells which GPUs of a node a job has; they are of one model.
    only_model = ""
    if are_requested(attempt.gpu_uuids):
        only_model = models.get(_OF_NODES, next(iter(models.values()), ""))
    for uuid in attempt.gpu_uuids:
        own = slice_of(attempt.gpu_slice)
        key = GPUKey(attempt.tenant_id, attempt.job_id, own.uuid if own else uuid)
        use = gpu_use(windows.get(key, NO_WINDOWS), start_ns=to_ns(start_at), end_ns=to_ns(end_at))
        use = use.part(own.share_milli) if own else use
        model = models.get(uuid) or only_model or fallback
        uses[model] = uses.get(model, Use()) + use
    return uses


def read_models(session: Session, appliance_ids: set[str]) -> dict[str, Mapping[str, str]]:
    """Return the GPU models of appliances, by appliance id and UUID."""
    statement = select(Appliance.id, Appliance.inventory).where(Appliance.id.in_(appliance_ids))
    return {
        ident: _models_of(decode_inventory(inventory))
        for ident, inventory in (session.execute(statement) if appliance_ids else ())
    }


def _models_of(inventory: Inventory) -> dict[str, str]:
    models = {gpu.uuid: gpu.model[:MAX_MODEL_LENGTH] for gpu in inventory.gpus}
    if inventory.cluster is None:
        return models
    # No job of the cluster has the GPUs of its connector's own host.
    of_nodes = {node.gpu_model[:MAX_MODEL_LENGTH] for node in inventory.cluster.nodes if node.gpus}
    return {**models, _OF_NODES: of_nodes.pop() if len(of_nodes) == 1 else ""}


def read_attempts(
    session: Session,
    period: Period,
    *conditions: ColumnElement[bool],
    scope: Scope | None = None,
) -> list[LedgerAttempt]:
    """Return the attempts that GPUs were allocated to in a period; all without a scope."""
    statement: Any = _ATTEMPTS.where(
        Attempt.assigned_at < period.until,
        or_(Attempt.finished_at > period.since, Attempt.finished_at.is_(None)),
        *conditions,
    )
    return _read(session, statement if scope is None else scope.select(statement, Attempt))


WANTS_GPUS = or_(Job.gpus > 0, Job.gpu_slice != "", Job.gpu_memory_bytes > 0, Job.gpu_compute > 0)
"""`Job.wants_gpus` in the database."""
_ATTEMPTS = (
    select(
        Attempt.id,
        Attempt.job_id,
        Attempt.tenant_id,
        Attempt.appliance_id,
        Attempt.gpu_uuids,
        CHARGED_FROM.label("charged_from"),
        Attempt.finished_at,
        Job.user_id,
        Job.name,
        Job.project_id,
        Attempt.gpu_slice,
        func.coalesce(Attempt.node_id, Attempt.appliance_id).label("site_id"),
        Attempt.contract_id,
    )
    .join(Job, Job.id == Attempt.job_id)
    .where(WANTS_GPUS, Attempt.assigned_at.is_not(None))
)


def _read(session: Session, statement: Select[*tuple[Any, ...]]) -> list[LedgerAttempt]:
    return [LedgerAttempt(*row) for row in session.execute(statement)]


def _existing(session: Session, attempt_ids: set[str]) -> list[LedgerAttempt]:
    return [
        attempt
        for ids in chunked(sorted(attempt_ids), _CHUNK)
        for attempt in _read(session, _ATTEMPTS.where(Attempt.id.in_(ids)))
    ]


def _recorded(session: Session, hour_at: datetime) -> dict[EntryKey, Recorded]:
    figures = [func.sum(getattr(UsageEntry, name)) for name in Use.__dataclass_fields__]
    statement = (
        select(UsageEntry.attempt_id, UsageEntry.gpu_model, func.max(UsageEntry.revision), *figures)
        .where(UsageEntry.hour_at == hour_at)
        .group_by(UsageEntry.attempt_id, UsageEntry.gpu_model)
    )
    return {
        EntryKey(attempt_id, model): Recorded(Use(*map(int, sums)), revision)
        for attempt_id, model, revision, *sums in session.execute(statement)
    }


def _row(
    attempt: LedgerAttempt, model: str, use: Use, before: Recorded | None
) -> Iterator[dict[str, Any]]:
    """Yield the row that brings an entry up to date, if one is needed."""
    missing = use if before is None else use - before.use
    if before is not None:
        if all(abs(figure) <= _TOLERANCE for figure in missing.figures):
            return
        measured = missing.used_milliseconds + missing.idle_milliseconds
        if missing.allocated_milliseconds == 0 and measured < -_TOLERANCE:
            return  # samples have expired
    yield {
        "tenant_id": attempt.tenant_id,
        "user_id": attempt.user_id,
        "project_id": attempt.project_id,
        "job_id": attempt.job_id,
        "job_name": attempt.job_name,
        "attempt_id": attempt.id,
        "appliance_id": attempt.appliance_id,
        "contract_id": attempt.contract_id,
        "gpu_model": model,
        "revision": 0 if before is None else before.revision + 1,
        **dict(zip(Use.__dataclass_fields__, missing.figures, strict=True)),
    }


def _mark(session: Session, hour_at: datetime, *, has_rows: bool, now: datetime) -> None:
    """Store that an hour is up to date, whether rows were added, and when it is checked next."""
    hour = session.get(UsageHour, hour_at)
    if hour is None:
        hour = UsageHour(hour_at=hour_at, recorded_at=now, appends=0)
        session.add(hour)
    checks = [hour_at + HOUR + after for after in CHECKS_AFTER]
    hour.next_check_at = next((at for at in checks if at > now), None)
    if has_rows:
        # By the database: another process may append to the same hour.
        session.flush()
        hour.appends = UsageHour.appends + 1
