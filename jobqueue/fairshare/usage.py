"""Decayed usage in the database: what each user in each project was allocated.

Usage is what was allocated, whether it was used or not, from an attempt's assignment to its end; on
a cluster from its start, as it waits in the cluster's queue before.
Ended attempts are *charged*: added to a row of their user and project, once, in the transaction
that marks them. Running ones, and those that ended since, are computed from their rows whenever
usage is read. So usage is exact at any time, and a restart, a second scheduler, an end that is
reported late or a clock that was set back neither loses nor doubles any.

Usage decays: a second of a resource counts half as much after each half-life. What a resource used
from one instant to another is an integral with a closed form, so usage needs no ticks: it is exact
whenever it is computed, and sums of it can be brought to another instant by one factor. The
instants may lie in any order.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, select, update
from sqlalchemy.orm import Session

from core.db import begin_writing
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.models import FairShareUsage
from jobqueue.models import CHARGED_FROM, Attempt, Job
from jobqueue.partitions.measures import gpu_amount
from tenants.models import Tenant

# Attempts that one transaction charges.
MAX_CHARGED = 1000
# A clock that was years ahead leaves times in the future: usage grows towards them, but stays a
# number that can be compared and multiplied.
_MAX_DOUBLINGS = 300.0


class Account(NamedTuple):
    """A user in a project; "" is none."""

    project_id: str
    user_id: str


Charged = tuple[Row[*tuple[Any, ...]], ...]


def read_usage(
    session: Session, tenant_id: str, *, half_life: timedelta, now: datetime
) -> dict[Account, Resources]:
    """Return the decayed seconds of each resource by account."""
    uncharged = _ATTEMPTS.where(Attempt.tenant_id == tenant_id, Attempt.is_charged.is_(False))
    charged = _charged(session, tenant_id)
    attempts = session.execute(uncharged).all()
    # What another transaction charged between these reads would count twice, or not at all.
    while (reread := _charged(session, tenant_id)) != charged:
        charged, attempts = reread, session.execute(uncharged).all()
    usage: defaultdict[Account, Resources] = defaultdict(Resources)
    for row in charged:
        factor = decay_factor(now - row.decayed_to, timedelta(seconds=row.half_life_seconds))
        seconds = (row.gpu_seconds, row.cpu_seconds, row.memory_byte_seconds)
        account = Account(row.project_id, row.user_id)
        usage[account] = Resources(*(amount * factor for amount in seconds))
    for attempt in attempts:
        account = _account(attempt)
        usage[account] = usage[account].plus(_use(attempt, half_life=half_life, at=now, now=now))
    return dict(usage)


def tenants_to_charge(session: Session) -> Sequence[str]:
    """Return the tenants whose attempts have ended since they were charged."""
    return session.scalars(select(Attempt.tenant_id).where(*_ENDED).distinct()).all()


def charge_ended(session: Session, tenant_id: str, *, half_life: timedelta, now: datetime) -> int:
    """Add up to `MAX_CHARGED` ended attempts of a tenant to the usage of their accounts.

    A change of the half-life applies from the next call on.

    Returns:
        The number of attempts.
    """
    _lock(session, tenant_id)
    for row in session.scalars(_of(tenant_id)):
        if row.half_life_seconds != half_life.total_seconds():
            _decay_to(row, now)
            row.half_life_seconds = half_life.total_seconds()
    ended = _ATTEMPTS.where(Attempt.tenant_id == tenant_id, *_ENDED).limit(MAX_CHARGED)
    return _charge(session, tenant_id, ended, half_life=half_life)


def charge_jobs(
    session: Session, tenant_id: str, job_ids: Collection[str], *, half_life: timedelta
) -> None:
    """Charge the ended attempts of jobs that are about to be deleted."""
    _lock(session, tenant_id)
    ended = _ATTEMPTS.where(Attempt.tenant_id == tenant_id, *_ENDED, Job.id.in_(job_ids))
    _charge(session, tenant_id, ended, half_life=half_life)


def decay_factor(elapsed: timedelta, half_life: timedelta) -> float:
    """Return what is left of usage after some time: 0.5 after one half-life."""
    return math.exp2(min(-(elapsed / half_life), _MAX_DOUBLINGS))


def decayed_seconds(
    since: datetime, until: datetime, *, at: datetime, half_life: timedelta
) -> float:
    """Return what the seconds of a period count at an instant; 0 if it ends before it begins."""
    if until <= since:
        return 0.0
    passed = (until - since) / half_life
    at_its_end = -math.expm1(-passed * math.log(2)) * half_life.total_seconds() / math.log(2)
    return at_its_end * decay_factor(at - until, half_life)


_ATTEMPTS = (
    select(
        Attempt.id,
        CHARGED_FROM.label("charged_from"),
        Attempt.finished_at,
        Attempt.gpu_uuids,
        Attempt.gpu_slice,
        Job.project_id,
        Job.user_id,
        Job.cpus,
        Job.memory_bytes,
    )
    .join(Job, Job.id == Attempt.job_id)
    .where(Attempt.assigned_at.is_not(None))
)
_ENDED = (
    Attempt.is_charged.is_(False),
    Attempt.finished_at.is_not(None),
    Attempt.assigned_at.is_not(None),
)


def _lock(session: Session, tenant_id: str) -> None:
    """Let one transaction charge a tenant's attempts at a time."""
    begin_writing(session)
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update())


def _of(tenant_id: str) -> Select[FairShareUsage]:
    return select(FairShareUsage).where(FairShareUsage.tenant_id == tenant_id)


def _charged(session: Session, tenant_id: str) -> Charged:
    columns = select(*FairShareUsage.__table__.columns)
    of_tenant = columns.where(FairShareUsage.tenant_id == tenant_id)
    return tuple(
        session.execute(of_tenant.order_by(FairShareUsage.project_id, FairShareUsage.user_id))
    )


def _charge(
    session: Session,
    tenant_id: str,
    ended: Select[*tuple[Any, ...]],
    *,
    half_life: timedelta,
) -> int:
    by_account: defaultdict[Account, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    attempts = session.execute(ended).all()
    for attempt in attempts:
        by_account[_account(attempt)].append(attempt)
    rows = {Account(row.project_id, row.user_id): row for row in session.scalars(_of(tenant_id))}
    for account, of_account in by_account.items():
        last_at = max(attempt.finished_at for attempt in of_account)
        row = rows.get(account)
        if row is None:
            row = _empty_row(tenant_id, account, half_life=half_life, at=last_at)
            session.add(row)
        _decay_to(row, last_at)
        for attempt in of_account:
            _add(row, attempt)
    charged = update(Attempt).where(Attempt.id.in_([attempt.id for attempt in attempts]))
    session.execute(
        charged.values(is_charged=True), execution_options={"synchronize_session": False}
    )
    session.flush()
    return len(attempts)


def _empty_row(
    tenant_id: str, account: Account, *, half_life: timedelta, at: datetime
) -> FairShareUsage:
    return FairShareUsage(
        tenant_id=tenant_id,
        project_id=account.project_id,
        user_id=account.user_id,
        gpu_seconds=0.0,
        cpu_seconds=0.0,
        memory_byte_seconds=0.0,
        half_life_seconds=half_life.total_seconds(),
        decayed_to=at,
    )


def _decay_to(row: FairShareUsage, at: datetime) -> None:
    """Bring a row to a later instant; an earlier one leaves it as it is."""
    if at <= row.decayed_to:
        return
    factor = decay_factor(at - row.decayed_to, timedelta(seconds=row.half_life_seconds))
    row.gpu_seconds *= factor
    row.cpu_seconds *= factor
    row.memory_byte_seconds *= factor
    row.decayed_to = at


def _add(row: FairShareUsage, attempt: Row[*tuple[Any, ...]]) -> None:
    half_life = timedelta(seconds=row.half_life_seconds)
    use = _use(attempt, half_life=half_life, at=row.decayed_to, now=row.decayed_to)
    row.gpu_seconds += use.gpus
    row.cpu_seconds += use.cpus
    row.memory_byte_seconds += use.memory_bytes


def _use(
    attempt: Row[*tuple[Any, ...]], *, half_life: timedelta, at: datetime, now: datetime
) -> Resources:
    """Return the seconds of each resource that an attempt has used, decayed to an instant."""
    until = attempt.finished_at or now
    # A cluster may end an attempt that it has not started.
    since = attempt.charged_from or until
    seconds = decayed_seconds(since, until, at=at, half_life=half_life)
    return Resources(
        gpu_amount(attempt.gpu_uuids, attempt.gpu_slice) * seconds,
        attempt.cpus * seconds,
        attempt.memory_bytes * seconds,
    )


def _account(attempt: Row[*tuple[Any, ...]]) -> Account:
    return Account(attempt.project_id or "", attempt.user_id or "")
