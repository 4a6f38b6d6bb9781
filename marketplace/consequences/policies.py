"""The versions of the operator's policy."""

from datetime import datetime
from typing import Unpack

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError, InvalidInputError
from core.paging import Columns, Page, Paging, list_page
from marketplace.consequences.models import MAX_NOTE_LENGTH, PolicyVersion
from marketplace.consequences.policy import Policy, policy_errors
from marketplace.terms import plain_document
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

POLICY_SORTS: Columns = {"number": PolicyVersion.number}


def current_policy(session: Session) -> tuple[int, Policy]:
    """Return the number of the policy that applies, and the policy; 0 is the defaults."""
    statement = select(PolicyVersion).order_by(PolicyVersion.number.desc()).limit(1)
    version = session.scalar(statement)
    if version is None:
        return 0, Policy()
    return version.number, msgspec.convert(version.document, Policy)


def list_policies(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[PolicyVersion]:
    """Return the versions of the policy, the newest first."""
    scope.require(Permission.MANAGE_TENANTS)
    statement = select(PolicyVersion).order_by(PolicyVersion.number.desc())
    return list_page(session, statement, POLICY_SORTS, last=PolicyVersion.id, **paging)


def set_policy(
    session: Session, scope: Scope, policy: Policy, note: str = "", *, now: datetime
) -> PolicyVersion:
    """Add a version of the policy, which applies from the next evaluation on.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: another operator changed it at the same time.
    """
    scope.require(Permission.MANAGE_TENANTS)
    errors = policy_errors(policy)
    if len(note) > MAX_NOTE_LENGTH:
        errors["note"] = [f"note has {len(note)} characters; use at most {MAX_NOTE_LENGTH}."]
    if errors:
        raise InvalidInputError("The policy was not saved.", errors=errors)
    begin_writing(session)
    number, _ = current_policy(session)
    version = PolicyVersion(
        number=number + 1,
        document=plain_document(policy),
        note=note.strip(),
        created_by=session.get_one(User, scope.user_id).email,
        created_at=now,
    )
    session.add(version)
    try:
        session.flush()
    except IntegrityError as error:
        raise ConflictError("Another operator changed the policy. Load it again.") from error
    return version
