"""Leases: database rows that let one process do a task, until it stops renewing its lease."""

import os
import socket
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, String, exists, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.db import Base, changed_one

# Of the process that runs the periodic tasks.
SCHEDULER_LEASE = "scheduler"


class Lease(Base):
    """The holder of a lease, and when it expires."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime]


def process_name() -> str:
    """Return the name by which this process holds leases."""
    return f"{socket.gethostname()}:{os.getpid()}"[-64:]


def acquire_lease(
    session: Session, name: str, *, holder: str, now: datetime, duration: timedelta
) -> bool:
    """Acquire or renew a lease; return whether `holder` has it until `now + duration`."""
    renewal = (
        update(Lease)
        .where(Lease.name == name, (Lease.holder == holder) | (Lease.expires_at <= now))
        .values(holder=holder, expires_at=now + duration)
    )
    if changed_one(session, renewal):
        return True
    if session.get(Lease, name) is not None:
        return False
    try:
        with session.begin_nested():
            session.add(Lease(name=name, holder=holder, expires_at=now + duration))
    except IntegrityError:  # another process was first
        return False
    return True


def release_lease(session: Session, name: str, *, holder: str, now: datetime) -> None:
    """Release a lease before it expires."""
    session.execute(
        update(Lease).where(Lease.name == name, Lease.holder == holder).values(expires_at=now)
    )


def lease_is_held(name: str, *, holder: str) -> ColumnElement[bool]:
    """Return the condition that nobody has taken a lease over from `holder`.

    Statements with it change nothing after a takeover, whatever the clocks of both say.
    """
    return exists().where(Lease.name == name, Lease.holder == holder)
