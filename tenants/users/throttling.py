"""Lockout: failed attempts are counted by account and by network address, with growing waits.

An *attempt* is counted before its secret is checked, so that concurrent guesses count too. A
successful one is forgiven: its account starts again at zero, its address has one attempt less.
Unknown accounts are counted alike, so that nothing reveals which accounts exist.

A *known device* has signed in to the account before. It is counted by itself alone, so that nobody
else's attempts block it: docs/decisions/0014-sign-in.md.
"""

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, case, func, literal, or_, select, update
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.db import UTCDateTime
from core.errors import OverloadedError
from core.ids import hash_secret, new_id
from tenants.models import Throttle, ThrottleKind

EXPIRES_AFTER = timedelta(hours=1)
_IPV6_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True)
class LockoutPolicy:
    """The number of free attempts, and the wait after them: doubled each time, up to a limit."""

    free: int
    first_wait: timedelta
    longest_wait: timedelta

    def wait_after(self, failures: int) -> timedelta | None:
        """Return the wait after this many failures; None is no wait."""
        if failures < self.free:
            return None
        # Bounded: the number of failures is not.
        doublings = min(failures - self.free, 16)
        return min(self.first_wait * (1 << doublings), self.longest_wait)


_BY_ACCOUNT = LockoutPolicy(5, timedelta(minutes=1), timedelta(hours=1))
LOCKOUT_POLICIES = {
    ThrottleKind.ACCOUNT: _BY_ACCOUNT,
    ThrottleKind.DEVICE: _BY_ACCOUNT,
    # Many users may share an address.
    ThrottleKind.ADDRESS: LockoutPolicy(50, timedelta(minutes=1), timedelta(minutes=15)),
}
_ORIGINS = {
    ThrottleKind.ACCOUNT: "for this account",
    ThrottleKind.DEVICE: "from this browser",
    ThrottleKind.ADDRESS: "from your network address",
}


class TooManyAttemptsError(OverloadedError):
    """Too many recent failed attempts: this one was not checked."""

    default_code = "too_many_attempts"

    def __init__(self, kind: ThrottleKind, wait: timedelta) -> None:
        seconds = max(1, math.ceil(wait.total_seconds()))
        self.advice = f"Try again in {math.ceil(seconds / 60)} min."
        message = f"Too many failed attempts {_ORIGINS[kind]}. {self.advice}"
        super().__init__(message, retry_after_seconds=seconds)


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """A counted attempt of an account, device or address, to be forgiven if it succeeds."""

    kind: ThrottleKind
    subject: str
    locked_until: datetime | None


CountedAttempt = tuple[AttemptCount, ...]


def count_attempt(
    session: Session,
    *,
    account: str,
    address: str | None,
    now: datetime,
    device: str | None = None,
) -> CountedAttempt:
    """Count an attempt; commit this before you check the secret.

    Args:
        account: what is guessed, such as an email address.
        address: the client's network address; None is not counted.
        device: a known device of the account, which is counted instead of account and address.

    Raises:
        TooManyAttemptsError: says how long to wait. Roll back: the attempt is not counted.
    """
    guessed = account.strip().lower()
    if device is not None:
        subjects = {ThrottleKind.DEVICE: hash_secret(f"{device} {guessed}")}
    else:
        subjects = {ThrottleKind.ACCOUNT: hash_secret(guessed)}
        if address:
            subjects[ThrottleKind.ADDRESS] = network_of(address)
    # This locks the rows.
    session.execute(_counting(session, subjects, now=now))
    counts = _counts(session, subjects)
    locks = {kind: until for kind, (_, until) in counts.items() if until and until > now}
    if locks:
        longest = max(locks, key=locks.__getitem__)
        raise TooManyAttemptsError(longest, locks[longest] - now)
    attempt = []
    for kind, subject in subjects.items():
        failures, former = counts[kind]
        wait = LOCKOUT_POLICIES[kind].wait_after(failures)
        until = None if wait is None else now + wait
        if until != former:
            _run(session, update(Throttle).where(_row(kind, subject)).values(locked_until=until))
        attempt.append(AttemptCount(kind, subject, until))
    return tuple(attempt)


def forgive_attempt(session: Session, attempt: CountedAttempt) -> None:
    """Forgive a successful attempt; do it right before the commit."""
    for count in attempt:
        if count.kind is ThrottleKind.ADDRESS:
            _decrement(session, count)
        else:
            _reset(session, count.kind, count.subject)


def discard_attempt(session: Session, attempt: CountedAttempt) -> None:
    """Discard an attempt that was not checked."""
    for count in attempt:
        _decrement(session, count)


def reset_account_attempts(session: Session, account: str) -> None:
    """Unlock an account whose owner authenticated in another way."""
    _reset(session, ThrottleKind.ACCOUNT, hash_secret(account.strip().lower()))


def is_expired(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition that a row does not count any more."""
    last = func.coalesce(Throttle.locked_until, Throttle.first_failed_at)
    return last <= now - EXPIRES_AFTER


def network_of(address: str) -> str:
    """Return the address as it is counted; an IPv6 host owns its /64 network."""
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
    """Return the statement that increments or inserts each row that is not locked.

    Accounts come before addresses in every transaction, which prevents deadlocks.
    """
    rows = [
        {"id": new_id(), "kind": kind, "subject": subject, "failures": 1, "first_failed_at": now}
        for kind, subject in subjects.items()
    ]
    is_locked, is_old = Throttle.locked_until > now, is_expired(now)
    # MySQL assigns in order: what the others read comes last.
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
    """Return the failures and the end of the lock, by kind."""
    rows = or_(*(_row(kind, subject) for kind, subject in subjects.items()))
    statement = select(Throttle.kind, Throttle.failures, Throttle.locked_until).where(rows)
    return {kind: (failures, until) for kind, failures, until in session.execute(statement)}


def _reset(session: Session, kind: ThrottleKind, subject: str) -> None:
    # Keep the row: InnoDB locks gaps around deleted rows, which causes deadlocks.
    _run(session, update(Throttle).where(_row(kind, subject)).values(failures=0, locked_until=None))


def _decrement(session: Session, count: AttemptCount) -> None:
    # End the wait that this attempt started, but not one that a later attempt started.
    is_own = Throttle.locked_until == count.locked_until
    fewer = update(Throttle).where(_row(count.kind, count.subject), Throttle.failures > 0)
    _run(
        session,
        fewer.values(
            failures=Throttle.failures - 1,
            locked_until=case((is_own, None), else_=Throttle.locked_until),
        ),
    )


def _row(kind: ThrottleKind, subject: str) -> ColumnElement[bool]:
    return and_(Throttle.kind == kind, Throttle.subject == subject)


def _run(session: Session, statement: Update) -> None:
    session.execute(statement.execution_options(synchronize_session=False))
