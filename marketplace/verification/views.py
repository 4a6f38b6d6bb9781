"""Verifications as their owners and the operator see them, and the order to verify now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from marketplace.verification.findings import Finding, loaded
from marketplace.verification.gate import is_admitted
from marketplace.verification.service import open_challenge
from tenants.fleet.agents import lock_appliance
from tenants.fleet.appliances import read_inventory
from tenants.fleet.events import EventKind, actor_details, add_event
from tenants.fleet.states import in_service
from tenants.models import Appliance, Challenge, ChallengeOutcome, Verification, VerificationState
from tenants.permissions import Permission
from tenants.scope import Scope

VERIFICATION_SORTS: Columns = {
    "name": Appliance.name,
    "state": Verification.state,
    "since": Verification.since,
    "checked_at": Verification.checked_at,
}
CHALLENGE_SORTS: Columns = {"number": Challenge.number, "ordered_at": Challenge.ordered_at}


# Of those that a page shows at once.
MAX_LEFT_OUT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedAppliance:
    """An appliance with what is known of it.

    Attributes:
        grace_until: until when it is on offer without having passed.
    """

    appliance_id: str
    name: str
    state: VerificationState
    since: datetime
    reason: str
    findings: list[Finding]
    checked_at: datetime | None
    grace_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChallenge:
    """A challenge and what came of it; the seed is nobody's."""

    number: int
    outcome: ChallengeOutcome
    ordered_at: datetime
    answered_at: datetime | None
    findings: list[Finding]


def list_verifications(
    session: Session,
    scope: Scope,
    *,
    state: VerificationState | None = None,
    **paging: Unpack[Paging],
) -> Page[VerifiedAppliance]:
    """Return the appliances of the scope that are verified, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(_rows(), Verification).order_by(Appliance.name, Appliance.id)
    if state is not None:
        statement = statement.where(Verification.state == state)
    page = list_page(session, statement, VERIFICATION_SORTS, last=Appliance.id, **paging)
    return page.of([_shown(*row) for row in page.items])


def list_left_out(
    session: Session, scope: Scope, *, requires: bool, now: datetime
) -> list[VerifiedAppliance]:
    """Return appliances of the scope's tenant that are in no offer for their verification."""
    scope.require(Permission.VIEW)
    waiting = Verification.state != VerificationState.PASSED
    statement = scope.select(_rows(), Verification).where(waiting, in_service())
    rows = session.execute(statement.order_by(Appliance.name, Appliance.id).limit(MAX_LEFT_OUT))
    return [
        _shown(row, name)
        for row, name in rows
        if row.state is VerificationState.FAILED or (requires and not is_admitted(row, now=now))
    ]


def get_verification(session: Session, scope: Scope, appliance_id: str) -> VerifiedAppliance:
    """Return what is known of an appliance of the scope.

    Raises:
        NotFoundError: it is not in the scope, or was never on offer.
    """
    scope.require(Permission.VIEW)
    statement = scope.select(_rows(), Verification)
    row = session.execute(statement.where(Verification.appliance_id == appliance_id)).one_or_none()
    if row is None:
        raise NotFoundError.of("verification", appliance_id)
    return _shown(*row)


def list_challenges(
    session: Session, scope: Scope, appliance_id: str, **paging: Unpack[Paging]
) -> Page[PastChallenge]:
    """Return the challenges of an appliance of the scope, the latest first."""
    get_verification(session, scope, appliance_id)
    statement = (
        select(Challenge)
        .where(Challenge.appliance_id == appliance_id)
        .order_by(Challenge.number.desc())
    )
    page = list_page(session, statement, CHALLENGE_SORTS, last=Challenge.id, **paging)
    return page.of(
        [
            PastChallenge(
                number=row.number,
                outcome=row.outcome,
                ordered_at=row.ordered_at,
                answered_at=row.answered_at,
                findings=loaded(row.findings),
            )
            for row in page.items
        ]
    )


def verify_now(
    session: Session, scope: Scope, appliance_id: str, *, now: datetime
) -> VerifiedAppliance:
    """Let an appliance be checked and challenged as soon as it has no jobs.

    Raises:
        NotFoundError: it is not in the scope.
        ConflictError: it is being challenged, or is part of a cluster.
    """
    scope.require(Permission.VERIFY)
    scope.get(session, Appliance, appliance_id, kind="appliance")
    appliance = lock_appliance(session, appliance_id)
    if appliance.connector_id is not None or appliance.cluster_kind:
        raise ConflictError(f"{appliance.name} is part of a cluster, which is not verified.")
    if open_challenge(session, appliance_id) is not None:
        raise ConflictError(f"{appliance.name} is being challenged now.", code="challenged_now")
    row = session.get(Verification, appliance_id)
    if row is None:
        row = Verification(
            appliance_id=appliance_id, tenant_id=appliance.tenant_id, since=now, next_at=now
        )
        session.add(row)
    row.next_at, row.checked_at, row.unanswered = now, None, 0
    can_challenge = read_inventory(appliance).can_challenge
    what = "challenge" if can_challenge else "check of its inventory"
    add_event(
        session,
        appliance,
        EventKind.VERIFICATION,
        f"A {what} was requested.",
        details=actor_details(session),
        now=now,
    )
    session.flush()
    return get_verification(session, scope, appliance_id)


def _rows() -> Any:  # noqa: ANN401 - `Select` of two columns, which a scope takes as any
    rows: Any = select(Verification, Appliance.name)
    return rows.join(Appliance, Appliance.id == Verification.appliance_id)


def _shown(row: Verification, name: str) -> VerifiedAppliance:
    return VerifiedAppliance(
        appliance_id=row.appliance_id,
        name=name,
        state=row.state,
        since=row.since,
        reason=row.reason,
        findings=loaded(row.findings),
        checked_at=row.checked_at,
        grace_until=row.grace_until,
    )
