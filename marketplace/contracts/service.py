"""Contracts: take an offer, negotiate versions of terms, give notice, and end.

A version is proposed by a side and accepted, declined or withdrawn by a named user; one at a time
is open. Whoever proposes another one replaces the open one. Terms are accepted by their hash, so
that nobody accepts what they have not read. Every change locks its contract.
"""

from datetime import datetime, timedelta
from typing import Any, Unpack

from sqlalchemy.orm import Session

from core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
)
from core.paging import Columns, Page, Paging, list_page
from jobqueue.reservations.bookings import close_contract
from marketplace.accounts import NEEDS, require_admitted
from marketplace.contracts.grants import write_grant
from marketplace.contracts.new_contracts import new_contract
from marketplace.contracts.recording import email_sides, name_of, record_change
from marketplace.contracts.scope import (
    locked_contract,
    read_contract,
    select_contracts,
    side_of,
)
from marketplace.contracts.versions import (
    add_version,
    apply_version,
    check_hash,
    check_move,
    check_terms,
    open_version,
)
from marketplace.models import Contract, ContractVersion
from marketplace.offers.history import offered_terms
from marketplace.states import ContractState, Side, VersionState
from marketplace.terms import Terms
from marketplace.terms import terms_hash as hash_of
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

CONTRACT_SORTS: Columns = {
    "offer_name": Contract.offer_name,
    "state": Contract.state,
    "created_at": Contract.created_at,
    "starts_at": Contract.starts_at,
    "ends_at": Contract.ends_at,
}
MAX_REASON_LENGTH = 500
MAX_VERSIONS = 200


def list_contracts(
    session: Session, scope: Scope, *, side: Side | None = None, **paging: Unpack[Paging]
) -> Page[Contract]:
    """Return the contracts of the scope on a side or on both, the newest first."""
    scope.require(Permission.VIEW)
    statement = select_contracts(scope, side=side)
    ordered = statement.order_by(Contract.created_at.desc(), Contract.id.desc())
    return list_page(session, ordered, CONTRACT_SORTS, last=Contract.id, **paging)


def get_contract(session: Session, scope: Scope, ident: str) -> Contract:
    """Return a contract of the scope.

    Raises:
        NotFoundError: it does not exist, or others made it; both look the same.
    """
    scope.require(Permission.VIEW)
    return read_contract(session, scope, ident)


def take_offer(
    session: Session,
    scope: Scope,
    offer_id: str,
    *,
    terms_hash: str,
    now: datetime,
    mail_url: str = "",
) -> Contract:
    """Accept the terms of an offer as they are.

    The contract is active at once, unless the provider approves each one.

    Args:
        session: the session.
        scope: the customer's.
        offer_id: a published offer of another tenant.
        terms_hash: of the terms that the user has read.
        now: the time.
        mail_url: the portal's address for links in emails; "" sends none.

    Raises:
        ConflictError: the terms have changed since, or the tenant has a contract for the offer.
        ForbiddenError: the tenant is not admitted as a customer.
        NotFoundError: no such offer is published.
        OverloadedError: the tenant made `MAX_NEW_CONTRACTS` within a day.
    """
    offer, contract = new_contract(session, scope, offer_id, now=now)
    terms = offer.decoded_terms
    earlier = [(former, hash_of(former)) for former in offered_terms(session, offer)]
    check_hash(terms_hash, (terms, hash_of(terms)), earlier)
    email = _email(session, scope)
    if offer.needs_approval:
        version = add_version(contract, terms, Side.CUSTOMER, email=email, now=now)
    else:
        # The published offer is the provider's proposal.
        version = add_version(contract, terms, Side.PROVIDER, email="", now=now)
        apply_version(contract, version, email=email, now=now)
    _save(session, contract, now=now)
    verb = "proposed" if offer.needs_approval else "accepted"
    _report(
        session, contract, f"version_{verb}", Side.CUSTOMER, version, mail_url=mail_url, now=now
    )
    return contract


def propose_contract(
    session: Session,
    scope: Scope,
    offer_id: str,
    terms: Terms,
    note: str = "",
    *,
    now: datetime,
    mail_url: str = "",
) -> Contract:
    """Propose a contract about an offer with other terms; the provider answers.

    Raises:
        ConflictError: the tenant has a contract for the offer.
        ForbiddenError: the tenant is not admitted as a customer.
        InvalidInputError: with the errors by field.
        NotFoundError: no such offer is published.
        OverloadedError: the tenant made `MAX_NEW_CONTRACTS` within a day.
    """
    offer, contract = new_contract(session, scope, offer_id, now=now)
    check_terms(terms, note, currency=offer.decoded_terms.currency)
    email = _email(session, scope)
    version = add_version(contract, terms, Side.CUSTOMER, email=email, note=note, now=now)
    _save(session, contract, now=now)
    _report(
        session, contract, "version_proposed", Side.CUSTOMER, version, mail_url=mail_url, now=now
    )
    return contract


def propose_version(
    session: Session,
    scope: Scope,
    ident: str,
    terms: Terms,
    note: str = "",
    *,
    now: datetime,
    mail_url: str = "",
) -> ContractVersion:
    """Propose other terms; this declines what the other side proposed, or replaces one's own.

    Raises:
        ConflictError: the contract ends, or has ended.
        InvalidInputError: with the errors by field.
    """
    contract, side = _own_contract(session, scope, ident)
    if contract.state not in {ContractState.PROPOSED, ContractState.ACTIVE}:
        raise ConflictError(f"The contract is {contract.state.value}: its terms can't change.")
    if len(contract.versions) >= MAX_VERSIONS:
        raise ConflictError(f"The contract has {MAX_VERSIONS} versions. Make a new contract.")
    current = contract.versions[-1]
    check_terms(terms, note, currency=current.decoded_terms.currency)
    if current.state is VersionState.PROPOSED:
        is_own = current.proposed_side is side
        current.state = VersionState.WITHDRAWN if is_own else VersionState.DECLINED
    email = _email(session, scope)
    version = add_version(contract, terms, side, email=email, note=note, now=now)
    _save(session, contract, now=now)
    _report(session, contract, "version_proposed", side, version, mail_url=mail_url, now=now)
    return version


def accept_version(
    session: Session,
    scope: Scope,
    ident: str,
    number: int,
    *,
    terms_hash: str,
    now: datetime,
    mail_url: str = "",
) -> ContractVersion:
    """Accept what the other side proposed; the first version starts the contract.

    Prices change with the next full hour, never for time that has passed.

    Args:
        session: the session.
        scope: of the side that did not propose it.
        ident: the contract.
        number: of the version.
        terms_hash: of the terms that the user has read.
        now: the time.
        mail_url: the portal's address for links in emails; "" sends none.

    Raises:
        ConflictError: the version is not open any more, or has other terms than these.
        ForbiddenError: it is the own side's proposal.
    """
    contract, side = _own_contract(session, scope, ident)
    version = open_version(contract, number)
    if version.proposed_side is side:
        raise ForbiddenError("Your side proposed this version. The other side accepts it.")
    if contract.state is ContractState.NOTICED:
        raise ConflictError("The contract ends: its terms can't change. Decline the version.")
    earlier = [(other.decoded_terms, other.terms_hash) for other in contract.versions]
    check_hash(terms_hash, (version.decoded_terms, version.terms_hash), earlier)
    require_admitted(session, scope, side)
    apply_version(contract, version, email=_email(session, scope), now=now)
    _save(session, contract, now=now)
    _report(session, contract, "version_accepted", side, version, mail_url=mail_url, now=now)
    return version


def decline_version(
    session: Session, scope: Scope, ident: str, number: int, *, now: datetime, mail_url: str = ""
) -> ContractVersion:
    """Decline what the other side proposed; a contract that was not active yet is declined.

    Raises:
        ConflictError: the version is not open any more.
        ForbiddenError: it is the own side's proposal.
    """
    contract, side = _own_contract(session, scope, ident)
    version = open_version(contract, number)
    if version.proposed_side is side:
        raise ForbiddenError("Your side proposed this version. Withdraw it.")
    ends = (VersionState.DECLINED, ContractState.DECLINED)
    return _close_version(session, contract, version, side, ends, mail_url=mail_url, now=now)


def withdraw_version(
    session: Session, scope: Scope, ident: str, number: int, *, now: datetime, mail_url: str = ""
) -> ContractVersion:
    """Withdraw what the own side proposed; a contract that was not active yet is withdrawn.

    Raises:
        ConflictError: the version is not open any more.
        ForbiddenError: it is the other side's proposal.
    """
    contract, side = _own_contract(session, scope, ident)
    version = open_version(contract, number)
    if version.proposed_side is not side:
        raise ForbiddenError("The other side proposed this version. Decline it.")
    ends = (VersionState.WITHDRAWN, ContractState.WITHDRAWN)
    return _close_version(session, contract, version, side, ends, mail_url=mail_url, now=now)


def give_notice(
    session: Session, scope: Scope, ident: str, *, now: datetime, mail_url: str = ""
) -> Contract:
    """Give notice: the contract ends after the notice period, or with its term if that is earlier.

    Raises:
        ConflictError: it is not active.
    """
    contract, side = _own_contract(session, scope, ident)
    check_move(contract, ContractState.NOTICED)
    terms = contract.terms_at(now)
    ends_at = now + timedelta(days=terms.notice_days if terms else 0)
    contract.state = ContractState.NOTICED
    contract.noticed_at, contract.noticed_by = now, side
    contract.ends_at = min(ends_at, contract.ends_at or ends_at)
    _save(session, contract, now=now)
    what = f"was given notice: it ends at {contract.ends_at:%Y-%m-%d %H:%M} UTC"
    record_change(session, contract, "noticed", side, after=_end_of(contract), now=now)
    email_sides(session, contract, what, side, mail_url=mail_url, now=now)
    return contract


def end_contract(
    session: Session,
    scope: Scope,
    ident: str,
    *,
    now: datetime,
    reason: str = "",
    mail_url: str = "",
) -> Contract:
    """End a contract after its notice; the operator ends it at once, and says why.

    Raises:
        ConflictError: it is not active, or its end has not come.
        InvalidInputError: the operator gives no reason.
    """
    contract = locked_contract(session, scope, ident)
    side = side_of(contract, scope)
    scope.require(NEEDS[side] if side else Permission.MANAGE_TENANTS)
    check_move(contract, ContractState.ENDED)
    if side is None and not 1 <= len(reason.strip()) <= MAX_REASON_LENGTH:
        problem = f"Enter a reason of 1 to {MAX_REASON_LENGTH} characters; both sides see it."
        raise InvalidInputError(problem, errors={"reason": [problem]})
    if side is not None and (contract.ends_at is None or contract.ends_at > now):
        if contract.state is ContractState.ACTIVE:
            raise ConflictError("Give notice first: the contract ends after the notice period.")
        raise ConflictError(f"The contract ends at {contract.ends_at:%Y-%m-%d %H:%M} UTC.")
    contract.state = ContractState.ENDED
    contract.ends_at = min(now, contract.ends_at or now)
    _save(session, contract, now=now)
    close_contract(session, contract.id, now=now)
    what = "has ended" if side else f"was ended by the operator: {reason.strip()}"
    after = _end_of(contract)
    record_change(session, contract, "ended", side, after=after, reason=reason.strip(), now=now)
    email_sides(session, contract, what, side, mail_url=mail_url, now=now)
    return contract


def _own_contract(session: Session, scope: Scope, ident: str) -> tuple[Contract, Side]:
    """Return a contract, locked, and the side of the user, who may act for it."""
    contract = locked_contract(session, scope, ident)
    scope.require_tenant()
    side = side_of(contract, scope)
    if side is None:  # never: the scope has a tenant
        raise NotFoundError.of("contract", ident)
    scope.require(NEEDS[side])
    return contract, side


def _close_version(
    session: Session,
    contract: Contract,
    version: ContractVersion,
    side: Side,
    ends: tuple[VersionState, ContractState],
    *,
    mail_url: str,
    now: datetime,
) -> ContractVersion:
    version.state, contract_state = ends
    if contract.state is ContractState.PROPOSED:
        contract.state = contract_state
    _save(session, contract, now=now)
    verb = f"version_{version.state.value}"
    _report(session, contract, verb, side, version, mail_url=mail_url, now=now)
    return version


def _save(session: Session, contract: Contract, *, now: datetime) -> None:
    session.add(contract)
    session.flush()
    write_grant(session, contract, now=now)


def _end_of(contract: Contract) -> dict[str, Any]:
    return {"ends_at": contract.ends_at.isoformat() if contract.ends_at else ""}


def _report(
    session: Session,
    contract: Contract,
    verb: str,
    side: Side,
    version: ContractVersion,
    *,
    mail_url: str,
    now: datetime,
) -> None:
    """Record what a side did with a version, and email the other side."""
    after = {"version": version.number, "terms_hash": version.terms_hash}
    record_change(session, contract, verb, side, after=after, now=now)
    done = verb.removeprefix("version_")
    what = f"has version {version.number} of its terms, which {name_of(contract, side)} {done}"
    email_sides(session, contract, what, side, mail_url=mail_url, now=now)


def _email(session: Session, scope: Scope) -> str:
    """Return who acts, for the record: users may be deleted, agreements may not."""
    user = session.get(User, scope.user_id)
    return user.email if user else ""
