"""Guessing is made slow: tries are counted by account and by network address, and made to wait.

A *try* is counted before its secret is looked at, so that guesses made at the same moment count
too. A right one is taken back: its account starts anew, its address has one try less. Whether an
account exists plays no part, so that nothing here tells which ones do.
"""

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Update,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.db import UTCDateTime
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
        TooManyTriesError: says how long to wait; roll back, for such a try is not counted.
    """
    subjects = {ThrottleKind.ACCOUNT: hash_secret(account.strip().lower())}
    if address:
        subjects[ThrottleKind.ADDRESS] = network_of(address)
    # From the count on the rows are this transaction's.
    session.execute(_counting(session, subjects, now=now))
    found = _counts(session, subjects)
    waits = [until - now for _, until in found.values() if until is not None and until > now]
    if waits:
        raise TooManyTriesError(max(waits))
    return tuple(
        _lock(session, kind, subject, counts=found[kind], now=now)
        for kind, subject in subjects.items()
    )


def take_back(session: Session, tried: Try) -> None:
    """Take back a try that was right; do it late in a transaction, right before its commit."""
    for one in tried:
        if one.kind is ThrottleKind.ACCOUNT:
            _start_anew(session, one.subject)
        else:
            _uncount(session, one)


def uncount(session: Session, tried: Try) -> None:
    """Take back a try whose secret nobody looked at: there is one less, and no more is forgiven."""
    for one in tried:
        _uncount(session, one)


def forgive_account(session: Session, account: str) -> None:
    """Let an account be tried again at once: its owner has shown who they are in another way."""
    _start_anew(session, hash_secret(account.strip().lower()))


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


def _counting(session: Session, subjects: Mapping[ThrottleKind, str], *, now: datetime) -> Any:  # noqa: ANN401 - of either dialect
    """Return what counts a try on each row that is not locked, and makes those that are not there.

    Accounts come before addresses wherever both are locked, so that no circle of waiting closes.
    """
    rows = [
        {"id": new_id(), "kind": kind, "subject": subject, "failures": 1, "first_failed_at": now}
        for kind, subject in subjects.items()
    ]
    is_locked, is_old = Throttle.locked_until > now, is_forgotten(now)
    # MySQL sets one after the other: what the others look at is changed last.
    changes: dict[str, Any] = {
        "failures": case((is_locked, Throttle.failures), (is_old, 1), else_=Throttle.failures + 1),
        "first_failed_at": case(
            (is_old, literal(now, UTCDateTime())), else_=Throttle.first_failed_at
        ),
    }
    if session.get_bind().dialect.name == "sqlite":
        key = [Throttle.kind, Throttle.subject]
        return sqlite.insert(Throttle).values(rows).on_conflict_do_update(key, set_=changes)
    return mysql.insert(Throttle).values(rows).on_duplicate_key_update(list(changes.items()))


def _counts(
    session: Session, subjects: Mapping[ThrottleKind, str]
) -> dict[ThrottleKind, tuple[int, datetime | None]]:
    """Return of each row how many tries failed, and until when it is locked."""
    rows = or_(*(_row(kind, subject) for kind, subject in subjects.items()))
    statement = select(Throttle.kind, Throttle.failures, Throttle.locked_until).where(rows)
    return {kind: (failures, until) for kind, failures, until in session.execute(statement)}


def _lock(
    session: Session,
    kind: ThrottleKind,
    subject: str,
    *,
    counts: tuple[int, datetime | None],
    now: datetime,
) -> Counted:
    """Begin the wait that the try which was just counted causes, if any."""
    failures, former = counts
    wait = PATIENCE[kind].wait_after(failures)
    until = None if wait is None else now + wait
    if until != former:
        _run(session, update(Throttle).where(_row(kind, subject)).values(locked_until=until))
    return Counted(kind, subject, until)


def _start_anew(session: Session, subject: str) -> None:
    # The row stays: where rows go and come, InnoDB locks gaps, over which two wait for each other.
    here = _row(ThrottleKind.ACCOUNT, subject)
    _run(session, update(Throttle).where(here).values(failures=0, locked_until=None))


def _uncount(session: Session, one: Counted) -> None:
    # The wait that this very try began ends with it; one begun by others since then does not.
    is_own = Throttle.locked_until == one.locked_until
    fewer = update(Throttle).where(_row(one.kind, one.subject), Throttle.failures > 0)
    _run(session, fewer.values(
        failures=Throttle.failures - 1,
        locked_until=case((is_own, None), else_=Throttle.locked_until),
    ))  # fmt: skip


def _row(kind: ThrottleKind, subject: str) -> ColumnElement[bool]:
    return and_(Throttle.kind == kind, Throttle.subject == subject)


def _run(session: Session, statement: Update) -> None:
    session.execute(statement.execution_options(synchronize_session=False))
