"""Standings as providers and operators see them; appeals, suspension and return by operators.

A provider sees its own standing, events and appeals; operators see those of all.
"""

from datetime import datetime
from typing import Unpack

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from marketplace.consequences.decisions import Step, missing_for_return
from marketplace.consequences.evidence import read_evidence
from marketplace.consequences.models import (
    MAX_ANSWER_LENGTH,
    MAX_APPEAL_LENGTH,
    Appeal,
    Standing,
    StandingEvent,
)
from marketplace.consequences.policies import current_policy
from marketplace.consequences.standing import (
    Change,
    Provider,
    add_event,
    lock,
    position_of,
    standing_of,
    take,
)
from marketplace.consequences.states import AppealState, EventKind, StandingState
from marketplace.models import Account
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

STANDING_SORTS: Columns = {
    "public_name": Account.public_name,
    "score": Standing.score,
    "breaches": Standing.breaches,
    "since": Standing.since,
}
EVENT_SORTS: Columns = {"at": StandingEvent.at}
APPEAL_SORTS: Columns = {"created_at": Appeal.created_at}
_RANK = case(
    {
        state: rank
        for rank, state in enumerate(
            (
                StandingState.SUSPENDED,
                StandingState.NOTICED,
                StandingState.PROBATION,
                StandingState.GOOD,
            )
        )
    },
    value=Standing.state,
)


def get_standing(session: Session, scope: Scope, tenant_id: str = "", *, now: datetime) -> Standing:
    """Return the standing of the scope's tenant as a provider, or of any for operators.

    Raises:
        NotFoundError: the tenant is no provider, or another one.
    """
    scope.require(Permission.VIEW)
    ident = tenant_id or scope.tenant_id or ""
    if scope.tenant_id not in {None, ident} or session.get(Account, ident) is None:
        raise NotFoundError.of("provider", ident)
    return standing_of(session, ident, now=now)


def missing_of(session: Session, standing: Standing, *, now: datetime) -> list[str]:
    """Return what a suspended provider waits for or must do before it returns, as sentences."""
    account = session.get(Account, standing.tenant_id)
    if standing.state is not StandingState.SUSPENDED or account is None:
        return []
    _, policy = current_policy(session)
    evidence = read_evidence(session, account, policy, counted_from=standing.counted_from, now=now)
    return missing_for_return(position_of(standing), evidence, policy, now=now)


def list_standings(
    session: Session,
    scope: Scope,
    *,
    state: StandingState | None = None,
    **paging: Unpack[Paging],
) -> Page[tuple[Standing, Account]]:
    """Return the standings of all providers with their accounts, suspended ones first."""
    scope.require(Permission.MANAGE_TENANTS)
    statement = select(Standing, Account).join(Account, Account.tenant_id == Standing.tenant_id)
    if state is not None:
        statement = statement.where(Standing.state == state)
    ordered = statement.order_by(_RANK, Account.public_name, Standing.tenant_id)
    return list_page(session, ordered, STANDING_SORTS, last=Standing.tenant_id, **paging)


def list_events(
    session: Session, scope: Scope, tenant_id: str = "", **paging: Unpack[Paging]
) -> Page[StandingEvent]:
    """Return what changed in the standing of the scope's tenant, or of any, the newest first."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(StandingEvent), StandingEvent)
    if tenant_id:
        statement = statement.where(StandingEvent.tenant_id == tenant_id)
    ordered = statement.order_by(StandingEvent.at.desc(), StandingEvent.id.desc())
    return list_page(session, ordered, EVENT_SORTS, last=StandingEvent.id, **paging)


def list_appeals(
    session: Session,
    scope: Scope,
    *,
    state: AppealState | None = None,
    tenant_id: str = "",
    **paging: Unpack[Paging],
) -> Page[Appeal]:
    """Return the appeals of the scope's tenant, or of all; those that wait first."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Appeal), Appeal)
    if state is not None:
        statement = statement.where(Appeal.state == state)
    if tenant_id:
        statement = statement.where(Appeal.tenant_id == tenant_id)
    waits = (Appeal.state == AppealState.OPEN).desc()
    ordered = statement.order_by(waits, Appeal.created_at.desc(), Appeal.id)
    return list_page(session, ordered, APPEAL_SORTS, last=Appeal.id, **paging)


def open_appeals(session: Session) -> int:
    """Return how many appeals wait for an operator."""
    return session.scalar(select(func.count()).where(Appeal.state == AppealState.OPEN)) or 0


def appeal_of(session: Session, standing: Standing) -> Appeal | None:
    """Return the appeal against the present suspension."""
    return session.scalar(select(Appeal).where(Appeal.suspension_id == standing.suspension_id))


def get_appeal(session: Session, scope: Scope, appeal_id: str) -> Appeal:
    """Return an appeal of the scope's tenant, or any for operators."""
    scope.require(Permission.VIEW)
    return scope.get(session, Appeal, appeal_id, kind="appeal")


def appeal(session: Session, scope: Scope, text: str, *, now: datetime) -> Appeal:
    """Appeal against the suspension of the scope's tenant, once for each suspension.

    Raises:
        InvalidInputError: the text is empty or too long.
        ConflictError: the tenant is not suspended, or has appealed.
    """
    scope.require(Permission.MANAGE_OFFERS)
    tenant_id = scope.require_tenant()
    checked = _checked(text, "text", MAX_APPEAL_LENGTH)
    provider = lock(session, tenant_id, now=now)
    if provider is None or provider.standing.state is not StandingState.SUSPENDED:
        raise ConflictError("Your tenant is not suspended as a provider.")
    if appeal_of(session, provider.standing) is not None:
        raise ConflictError("Your tenant has appealed against this suspension already.")
    user = session.get_one(User, scope.user_id)
    made = Appeal(
        tenant_id=tenant_id,
        suspension_id=provider.standing.suspension_id,
        state=AppealState.OPEN,
        text=checked,
        created_by=user.email,
        created_at=now,
    )
    session.add(made)
    change = Change(kind=EventKind.APPEALED, cause=checked, actor=user.email)
    add_event(session, provider, change, now=now)
    session.flush()
    return made


def accept_appeal(
    session: Session,
    scope: Scope,
    appeal_id: str,
    answer: str,
    *,
    now: datetime,
    mail_url: str = "",
) -> Appeal:
    """Accept an appeal as an operator: the provider is back without limits.

    Raises:
        InvalidInputError: the answer is empty or too long.
        ConflictError: the appeal is decided, or its suspension is over.
    """
    decided, provider = _decide(session, scope, appeal_id, answer, now=now)
    decided.state = AppealState.ACCEPTED
    session.flush()
    cause = f"The appeal was accepted: {decided.answer}"
    step = Step(state=StandingState.GOOD, cause=cause, forgets=True)
    change = Change(
        kind=EventKind.APPEAL_ACCEPTED, cause=cause, actor=decided.decided_by, is_by_operator=True
    )
    take(session, provider, step, change, now=now, mail_url=mail_url)
    return decided


def reject_appeal(
    session: Session,
    scope: Scope,
    appeal_id: str,
    answer: str,
    *,
    now: datetime,
    mail_url: str = "",
) -> Appeal:
    """Reject an appeal as an operator: the suspension goes on.

    Raises:
        InvalidInputError: the answer is empty or too long.
        ConflictError: the appeal is decided, or its suspension is over.
    """
    decided, provider = _decide(session, scope, appeal_id, answer, now=now)
    decided.state = AppealState.REJECTED
    change = Change(
        kind=EventKind.APPEAL_REJECTED,
        cause=f"The appeal was rejected: {decided.answer}",
        actor=decided.decided_by,
        is_by_operator=True,
    )
    add_event(session, provider, change, now=now, mail_url=mail_url)
    session.flush()
    return decided


def suspend(
    session: Session,
    scope: Scope,
    tenant_id: str,
    reason: str,
    *,
    now: datetime,
    mail_url: str = "",
) -> Standing:
    """Suspend a provider at once as an operator, until an operator reinstates it.

    One that the policy has suspended no longer returns by itself then.

    Raises:
        InvalidInputError: the reason is empty or too long.
        ConflictError: an operator has suspended it already.
    """
    state, kind = StandingState.SUSPENDED, EventKind.SUSPENDED
    cause = f"An operator suspended the provider: {_checked(reason, 'reason', MAX_ANSWER_LENGTH)}"
    step = Step(state=state, cause=cause)
    return _by_operator(session, scope, tenant_id, step, kind, now=now, mail_url=mail_url)


def reinstate(
    session: Session,
    scope: Scope,
    tenant_id: str,
    reason: str,
    *,
    now: datetime,
    mail_url: str = "",
) -> Standing:
    """End a suspension, a notice or a probation at once as an operator.

    Raises:
        InvalidInputError: the reason is empty or too long.
        ConflictError: the provider is in good standing.
    """
    state, kind = StandingState.GOOD, EventKind.REINSTATED
    cause = f"An operator reinstated the provider: {_checked(reason, 'reason', MAX_ANSWER_LENGTH)}"
    step = Step(state=state, cause=cause, forgets=True)
    return _by_operator(session, scope, tenant_id, step, kind, now=now, mail_url=mail_url)


def _by_operator(
    session: Session,
    scope: Scope,
    tenant_id: str,
    step: Step,
    kind: EventKind,
    *,
    now: datetime,
    mail_url: str,
) -> Standing:
    scope.require(Permission.MANAGE_TENANTS)
    provider = lock(session, tenant_id, now=now)
    if provider is None:
        raise NotFoundError.of("provider", tenant_id)
    standing, is_suspended = provider.standing, step.state is StandingState.SUSPENDED
    is_same = standing.state is step.state
    if is_same and (standing.is_by_operator or not is_suspended):
        done = "suspended" if is_suspended else "in good standing"
        raise ConflictError(f"{provider.account.public_name} is {done} already.")
    actor = session.get_one(User, scope.user_id).email
    change = Change(kind=kind, cause=step.cause, actor=actor, is_by_operator=True)
    if is_same:
        standing.is_by_operator, standing.returns_at, standing.cause = True, None, step.cause
        add_event(session, provider, change, now=now, mail_url=mail_url)
    else:
        take(session, provider, step, change, now=now, mail_url=mail_url)
    session.flush()
    return standing


def _decide(
    session: Session, scope: Scope, appeal_id: str, answer: str, *, now: datetime
) -> tuple[Appeal, Provider]:
    """Lock an open appeal's provider, and note who decides it how."""
    scope.require(Permission.MANAGE_TENANTS)
    checked = _checked(answer, "answer", MAX_ANSWER_LENGTH)
    decided = get_appeal(session, scope, appeal_id)
    provider = lock(session, decided.tenant_id, now=now)
    session.refresh(decided, with_for_update=True)
    current = None if provider is None else provider.standing.suspension_id
    if (
        provider is None
        or current != decided.suspension_id
        or decided.state is not AppealState.OPEN
    ):
        raise ConflictError("The appeal is decided already, or its suspension is over.")
    decided.answer, decided.decided_at = checked, now
    decided.decided_by = session.get_one(User, scope.user_id).email
    return decided, provider


def _checked(text: str, field: str, length: int) -> str:
    checked = text.replace("\r\n", "\n").strip()
    problem = ""
    if not checked:
        problem = f"Enter the {field}: the other side reads it."
    elif len(checked) > length:
        problem = f"{field} has {len(checked):,} characters; use at most {length:,}."
    elif not checked.replace("\n", "").replace("\t", "").isprintable():
        problem = f"{field} has characters that can't be shown."
    if problem:
        raise InvalidInputError(problem, errors={field: [problem]})
    return checked
