"""Leases: a row in the database that lets exactly one process do a thing, until it stops renewing.

The scheduler is many processes of which one is active: the one that holds the lease `scheduler`.
"""

from datetime import datetime, timedelta

from sqlalchemy import String, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.db import Base


class Lease(Base):
    """Who holds a name, and until when."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime]


def acquire_lease(
    session: Session, name: str, *, holder: str, now: datetime, duration: timedelta
) -> bool:
    """Take or renew the lease; return whether `holder` has it until `now + duration`."""
    taken = session.execute(
        update(Lease)
        .where(Lease.name == name, (Lease.holder == holder) | (Lease.expires_at <= now))
        .values(holder=holder, expires_at=now + duration)
    )
    if taken.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
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
    """Give the lease back so that another process need not wait for it to expire."""
    session.execute(
        update(Lease).where(Lease.name == name, Lease.holder == holder).values(expires_at=now)
    )
