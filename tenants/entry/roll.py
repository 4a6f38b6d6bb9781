"""The revision of the roll: it moves whenever somebody is shut out, so that it acts at once.

The agents' door keeps a roll of who may come in and reads it anew now and then. Between two
readings it only looks whether the revision moved. Who revokes, fences, retires or suspends calls
`shut_out` in the same transaction; the agents' long polls end with it.
"""

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tenants.models import Appliance, RollRevision

ROLL = "agents"


def shut_out(session: Session, *, appliance_id: str) -> None:
    """Have the agents' doors look anew who this appliance's agent is."""
    _wake(session, Appliance.id == appliance_id)


def shut_out_tenant(session: Session, *, tenant_id: str) -> None:
    """Have the agents' doors look anew who the agents of this tenant are."""
    _wake(session, Appliance.tenant_id == tenant_id)


def roll_revision(session: Session) -> int:
    """Return the present revision; 0 where nobody was ever shut out."""
    return session.scalar(select(RollRevision.number).where(RollRevision.id == ROLL)) or 0


def _wake(session: Session, whose: ColumnElement[bool]) -> None:
    session.flush()
    session.execute(
        update(Appliance).where(whose).values(desired_generation=Appliance.desired_generation + 1),
        execution_options={"synchronize_session": False},
    )
    if _bump(session):
        return
    try:
        with session.begin_nested():
            session.add(RollRevision(id=ROLL, number=1))
    except IntegrityError:  # another transaction was first
        _bump(session)


def _bump(session: Session) -> bool:
    bumped = session.execute(
        update(RollRevision).where(RollRevision.id == ROLL).values(number=RollRevision.number + 1),
        execution_options={"synchronize_session": False},
    )
    return bool(bumped.rowcount)  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
