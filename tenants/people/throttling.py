"""Guessing is made slow: tries are counted by account and by network address, and made to wait.

A *try* is counted before its secret is looked at, so that guesses made at the same moment count
too. A right one is taken back: its account starts anew, its address has one try less. Whether an
account exists plays no part, so that nothing here tells which ones do.
"""

import ipaddress
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select, update
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.errors import OverloadedError
from core.ids import hash_secret, new_id
from tenants.models import Throttle, ThrottleKind

FORGOTTEN_AFTER = timedelta(hours=1)
_IPV6_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True)
class Patience:
    """How many tries are free, and how long the next ones wait: doubled at each, up to a limit."""

    free: int
    first_wait: timedelta
    longest_wait: timedelta

    def wait_after(self, failures: int) -> timedelta | None:
        """Return how long nothing more is tried after so many failures; None is not at all."""
        if failures < self.free:
            return None
        # The exponent is bounded, for the failures of a patient guesser are not.
        doublings = min(failures - self.free, 16)
        return min(self.first_wait * (1 << doublings), self.longest_wait)


PATIENCE = {
    ThrottleKind.ACCOUNT: Patience(5, timedelta(minutes=1), timedelta(hours=1)),
    # Many people may share an address.
    ThrottleKind.ADDRESS: Patience(50, timedelta(minutes=1), timedelta(minutes=15)),
}


class TooManyTriesError(OverloadedError):
    """There were too many wrong tries of late; whether this one is right was not looked at."""

    default_code = "too_many_tries"

    def __init__(self, wait: timedelta) -> None:
        seconds = max(1, math.ceil(wait.total_seconds()))
        self.advice = f"Try again in {math.ceil(seconds / 60)} min."
        super().__init__(
            f"There were too many wrong tries. {self.advice}", retry_after_seconds=seconds
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """One try as it was counted, to be taken back when it turns out to be right."""

    kind: ThrottleKind
    subject: str
    locked_until: datetime | None


Try = tuple[Counted, ...]


def count_try(session: Session, *, account: str, address: str | None, now: datetime) -> Try:
    """Count a try; commit it before the secret is looked at.

    Args:
        session: the database session.
        account: what is being guessed at, such as an email address; other texts for other secrets.
        address: the network address that asks; of IPv6 its network of 64 bits counts.
        now: the present instant.

    Raises:
        TooManyTriesError: says how long to wait; such a try is not counted.
    """
    subjects = [(ThrottleKind.ACCOUNT, hash_secret(account.strip().lower()))]
    if address:
        subjects.append((ThrottleKind.ADDRESS, network_of(address)))
    return tuple(_count(session, kind, subject, now=now) for kind, subject in subjects)


def take_back(session: Session, tried: Try) -> None:
    """Take back a try that was right."""
    for one in tried:
        here = _row(one.kind, one.subject)
        if one.kind is ThrottleKind.ACCOUNT:
            session.execute(delete(Throttle).where(here))
            continue
        # The wait that this very try began ends with it; one begun by others since then does not.
        is_own = Throttle.locked_until == one.locked_until
        session.execute(
            update(Throttle)
            .where(here, Throttle.failures > 0)
            .values(
                failures=Throttle.failures - 1,
                locked_until=case((is_own, None), else_=Throttle.locked_until),
            )
            .execution_options(synchronize_session=False)
        )


def forgive_account(session: Session, account: str) -> None:
    """Let an account be tried again at once: its owner has shown who they are in another way."""
    subject = hash_secret(account.strip().lower())
    session.execute(delete(Throttle).where(_row(ThrottleKind.ACCOUNT, subject)))


def is_forgotten(now: datetime) -> ColumnElement[bool]:
    """Return what holds for rows that count no more: the last wait is over for long enough."""
    last = func.coalesce(Throttle.locked_until, Throttle.first_failed_at)
    return last <= now - FORGOTTEN_AFTER


def network_of(address: str) -> str:
    """Return the address as it is counted: an IPv6 host owns all of its network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_NETWORK_BITS), strict=False))


def _count(session: Session, kind: ThrottleKind, subject: str, *, now: datetime) -> Counted:
    here = _row(kind, subject)
    _run(session, update(Throttle).where(here, is_forgotten(now)).values(
        failures=0, first_failed_at=now, locked_until=None
    ))  # fmt: skip
    is_open = or_(Throttle.locked_until.is_(None), Throttle.locked_until <= now)
    counting = update(Throttle).where(here, is_open).values(failures=Throttle.failures + 1)
    if not _run(session, counting):
        _refuse_if_locked(session, here, now=now)
        session.execute(_new_row(session, kind, subject, now=now))
        if not _run(session, counting):
            _refuse_if_locked(session, here, now=now)
    # The row is this transaction's from the count on.
    failures = session.scalars(select(Throttle.failures).where(here)).one()
    wait = PATIENCE[kind].wait_after(failures)
    locked_until = None if wait is None else now + wait
    _run(session, update(Throttle).where(here).values(locked_until=locked_until))
    return Counted(kind, subject, locked_until)


def _refuse_if_locked(session: Session, here: ColumnElement[bool], *, now: datetime) -> None:
    locked_until = session.scalar(select(Throttle.locked_until).where(here))
    if locked_until is not None and locked_until > now:
        raise TooManyTriesError(locked_until - now)


def _row(kind: ThrottleKind, subject: str) -> ColumnElement[bool]:
    return and_(Throttle.kind == kind, Throttle.subject == subject)


def _run(session: Session, statement: Any) -> int:  # noqa: ANN401 - an UPDATE
    result: Any = session.execute(statement.execution_options(synchronize_session=False))
    return int(result.rowcount)


def _new_row(session: Session, kind: ThrottleKind, subject: str, *, now: datetime) -> Any:  # noqa: ANN401 - of either dialect
    """Return what makes a row unless somebody else just did.

    A plain INSERT that fails would keep a shared lock on MySQL, over which two could wait for each
    other.
    """
    values = {
        "id": new_id(), "kind": kind, "subject": subject, "failures": 0, "first_failed_at": now,
    }  # fmt: skip
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(Throttle).values(values).on_conflict_do_nothing()
    return mysql.insert(Throttle).values(values).on_duplicate_key_update(failures=Throttle.failures)
