"""Which process of the portal holds the tunnel of an appliance: the first that wants one.

Users and the agent may reach any process; the others forward to the holder.
"""

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from jobqueue.models import Attempt
from tenants.fleet.appliances import bump_generation
from tenants.models import TunnelHolder


def holder_of(session: Session, appliance_id: str) -> str | None:
    """Return the URL of the process that holds or wants the tunnel, None if nobody does."""
    holder = session.get(TunnelHolder, appliance_id)
    return None if holder is None else holder.holder_url


def holder_for_job(session: Session, job_id: str) -> str | None:
    """Return the URL of the process that holds the tunnel to the appliance of a job's last attempt.

    For whoever forwards a request: it says nothing about who may open the job.
    """
    query = (
        select(TunnelHolder.holder_url)
        .join(Attempt, Attempt.appliance_id == TunnelHolder.appliance_id)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.number.desc())
        .limit(1)
    )
    return session.scalar(query)


def claim_tunnel(session: Session, appliance_id: str, url: str) -> str:
    """Let a process want the tunnel, unless another does; return the URL of the one that does.

    The agent learns of it with its next desired state.
    """
    try:
        with session.begin_nested():
            session.add(TunnelHolder(appliance_id=appliance_id, holder_url=url))
    except IntegrityError:
        session.expire_all()
        return holder_of(session, appliance_id) or url
    bump_generation(session, appliance_id)
    return url


def release_tunnel(session: Session, appliance_id: str, url: str) -> None:
    """Remove a holder that has gone or needs the tunnel no longer."""
    release = delete(TunnelHolder).where(
        TunnelHolder.appliance_id == appliance_id, TunnelHolder.holder_url == url
    )
    if changed_one(session, release):
        bump_generation(session, appliance_id)


def release_tunnels(session: Session, url: str) -> None:
    """Remove a process from all tunnels, as it does not answer."""
    held = session.scalars(
        select(TunnelHolder.appliance_id).where(TunnelHolder.holder_url == url)
    ).all()
    for appliance_id in held:
        release_tunnel(session, appliance_id, url)
