"""Accounts: what tenants are admitted to, and whom their invoices are made out to.

A tenant asks to be a provider or a customer; the operator admits or suspends it.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Unpack

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from core.money import exact
from core.paging import Columns, Page, Paging, list_page
from marketplace.emails import email_admins
from marketplace.models import (
    INITIAL_HIGH,
    INITIAL_LOW,
    INITIAL_REPUTATION,
    MAX_DESCRIPTION_LENGTH,
    Account,
)
from marketplace.states import AccountState, Listing, Side
from tenants.models import Tenant, User
from tenants.models.users import NAME_LENGTH
from tenants.permissions import Permission
from tenants.scope import Scope

ACCOUNT_SORTS: Columns = {
    "public_name": Account.public_name,
    "updated_at": Account.updated_at,
}
TEXT_LENGTHS: Mapping[str, int] = {
    "public_name": NAME_LENGTH,
    "description": MAX_DESCRIPTION_LENGTH,
    "legal_name": NAME_LENGTH,
    "address": 500,
    "country": 2,
    "tax_number": 50,
    "billing_email": 254,
}
PERCENTS = ("tax_percent", "fee_percent")
NEEDS: Mapping[Side, Permission] = {
    Side.PROVIDER: Permission.MANAGE_OFFERS,
    Side.CUSTOMER: Permission.RENT,
}
"""The permission that acting on a side requires."""
_MANY_LINES = ("description", "address")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_COUNTRY = re.compile(r"[A-Z]{2}")


def account_of(session: Session, tenant_id: str) -> Account:
    """Return the account of a tenant; one of state `none`, which is not stored, if it has none."""
    return session.get(Account, tenant_id) or Account(
        tenant_id=tenant_id,
        provider_state=AccountState.NONE,
        customer_state=AccountState.NONE,
        is_prepaid=False,
        reputation=INITIAL_REPUTATION,
        reputation_mean=0.5,
        reputation_low=INITIAL_LOW,
        reputation_high=INITIAL_HIGH,
        listing=Listing.NORMAL,
        placement_factor=1.0,
        max_contract_gpus=0,
        **dict.fromkeys(TEXT_LENGTHS, ""),
    )


def get_account(session: Session, scope: Scope, tenant_id: str = "") -> Account:
    """Return the account of the scope's tenant, or of any for the operator.

    Raises:
        NotFoundError: the tenant does not exist, or is another one.
    """
    scope.require(Permission.VIEW)
    if scope.tenant_id is not None and tenant_id in {"", scope.tenant_id}:
        return account_of(session, scope.tenant_id)
    if scope.tenant_id is not None or session.get(Tenant, tenant_id) is None:
        raise NotFoundError.of("account", tenant_id)
    return account_of(session, tenant_id)


def list_accounts(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[Account]:
    """Return the accounts of tenants that asked for something; those that wait come first."""
    scope.require(Permission.MANAGE_TENANTS)
    states = (Account.provider_state, Account.customer_state)
    waits = or_(*(state == AccountState.REQUESTED for state in states))
    statement = select(Account).where(or_(*(state != AccountState.NONE for state in states)))
    ordered = statement.order_by(waits.desc(), Account.public_name, Account.tenant_id)
    return list_page(session, ordered, ACCOUNT_SORTS, last=Account.tenant_id, **paging)


def state_of(account: Account, side: Side) -> AccountState:
    """Return whether an account is admitted to a side."""
    return account.provider_state if side is Side.PROVIDER else account.customer_state


def require_provider(session: Session, scope: Scope) -> Account:
    """Return the scope's account, which is admitted as a provider.

    Raises:
        ForbiddenError: it is not, or the user may not act for it; says what to do.
    """
    return require_admitted(session, scope, Side.PROVIDER)


def require_customer(session: Session, scope: Scope) -> Account:
    """Return the scope's account, which is admitted as a customer.

    Raises:
        ForbiddenError: it is not, or the user may not act for it; says what to do.
    """
    return require_admitted(session, scope, Side.CUSTOMER)


def require_admitted(session: Session, scope: Scope, side: Side) -> Account:
    """Return the scope's account, which is admitted to a side; see `require_provider`."""
    scope.require(NEEDS[side])
    account = account_of(session, scope.require_tenant())
    state = state_of(account, side)
    if state is AccountState.ACTIVE:
        return account
    advice = {
        AccountState.NONE: f"Ask for admission as a {side} on the account page first.",
        AccountState.REQUESTED: "The operator has not admitted it yet.",
        AccountState.SUSPENDED: "The operator suspended it. Ask the operator.",
    }
    raise ForbiddenError(
        f"Your tenant is not admitted to the marketplace as a {side}. {advice[state]}",
        code="not_admitted",
    )


def request_admission(session: Session, scope: Scope, side: Side, *, now: datetime) -> Account:
    """Ask the operator to admit the scope's tenant; empty names become those of the tenant.

    Raises:
        ConflictError: it is admitted, has asked already, or is suspended.
    """
    scope.require(NEEDS[side])
    tenant_id = scope.require_tenant()
    account = account_of(session, tenant_id)
    state = state_of(account, side)
    if state is AccountState.SUSPENDED:
        raise ConflictError(f"The operator suspended your tenant as a {side}. Ask the operator.")
    if state is not AccountState.NONE:
        done = "is admitted" if state is AccountState.ACTIVE else "has asked for admission"
        raise ConflictError(f"Your tenant {done} as a {side} already.")
    tenant, user = session.get_one(Tenant, tenant_id), session.get(User, scope.user_id)
    account.public_name = account.public_name or tenant.name
    account.legal_name = account.legal_name or tenant.name
    account.billing_email = account.billing_email or (user.email if user else "")
    _set_state(account, side, AccountState.REQUESTED)
    return _save(session, account, now=now)


def set_account(
    session: Session, scope: Scope, values: Mapping[str, Any], *, now: datetime
) -> Account:
    """Change the names, address and other texts (`TEXT_LENGTHS`) of the scope's account.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.MANAGE_BILLING)
    account = account_of(session, scope.require_tenant())
    texts = {name: str(value).strip() for name, value in values.items()}
    if "country" in texts:
        texts["country"] = texts["country"].upper()
    is_public = AccountState.NONE not in {account.provider_state, account.customer_state}
    if errors := _text_errors(texts, needs_name=is_public):
        raise InvalidInputError("The account was not saved.", errors=errors)
    for name, text in texts.items():
        setattr(account, name, text)
    return _save(session, account, now=now)


def set_charges(
    session: Session, scope: Scope, tenant_id: str, values: Mapping[str, Any], *, now: datetime
) -> Account:
    """Change `tax_percent`, `fee_percent` (None: the portal's) and `is_prepaid` of any account.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.MANAGE_TENANTS)
    account = get_account(session, scope, tenant_id)
    errors = {}
    for name in PERCENTS:
        value: Decimal | None = values.get(name)
        if value is not None and not (0 <= value <= 100 and exact(value) == value):  # noqa: PLR2004 - percent
            errors[name] = [f"{name} is {value}; enter 0 to 100, or leave it empty."]
    if unknown := values.keys() - {*PERCENTS, "is_prepaid"}:
        errors |= {name: [f"The operator can't change {name}."] for name in unknown}
    if errors:
        raise InvalidInputError("The account was not saved.", errors=errors)
    for name, value in values.items():
        setattr(account, name, value)
    return _save(session, account, now=now)


def admit(
    session: Session,
    scope: Scope,
    tenant_id: str,
    side: Side,
    state: AccountState,
    *,
    now: datetime,
    mail_url: str = "",
) -> Account:
    """Admit, suspend or decline (`none`) a tenant as a provider or customer, as the operator.

    Grants and the catalogue follow within a minute. `mail_url` is the portal's address for links
    in emails; "" sends none.

    Raises:
        InvalidInputError: the state is `requested`, which only the tenant itself sets.
    """
    scope.require(Permission.MANAGE_TENANTS)
    if state is AccountState.REQUESTED:
        raise InvalidInputError("Only a tenant requests its admission. Choose another state.")
    account = get_account(session, scope, tenant_id)
    tenant = session.get_one(Tenant, tenant_id)
    account.public_name = account.public_name or tenant.name
    account.legal_name = account.legal_name or tenant.name
    former = state_of(account, side)
    _set_state(account, side, state)
    if state is not former:
        done = {AccountState.ACTIVE: "admitted", AccountState.SUSPENDED: "suspended"}
        verb = done.get(state, "declined")
        email_admins(
            session,
            tenant_id,
            subject=f"{tenant.name} was {verb} as a {side}",
            text=f"The operator of the portal {verb} {tenant.name} as a {side} on the marketplace.",
            link=mail_url,
            now=now,
        )
    return _save(session, account, now=now)


def _set_state(account: Account, side: Side, state: AccountState) -> None:
    if side is Side.PROVIDER:
        account.provider_state = state
    else:
        account.customer_state = state


def _save(session: Session, account: Account, *, now: datetime) -> Account:
    account.updated_at = now
    session.add(account)
    session.flush()
    return account


def _text_errors(texts: Mapping[str, str], *, needs_name: bool) -> dict[str, list[str]]:
    errors = {}
    for name, text in texts.items():
        length = TEXT_LENGTHS.get(name)
        plain = text.replace("\r", "").replace("\n", "") if name in _MANY_LINES else text
        if length is None:
            errors[name] = [f"{name} can't be changed here."]
        elif len(text) > length:
            errors[name] = [f"{name} has {len(text)} characters; use at most {length}."]
        elif not plain.isprintable():
            errors[name] = [f"{name} has characters that can't be shown."]
    if texts.get("country") and not _COUNTRY.fullmatch(texts["country"]):
        errors["country"] = ["Enter the two letters of the country, such as NO."]
    if texts.get("billing_email") and not _EMAIL.fullmatch(texts["billing_email"]):
        errors["billing_email"] = [f"{texts['billing_email'][:100]!r} is no email address."]
    if needs_name and texts.get("public_name") == "":
        errors["public_name"] = ["Enter the name that others see on the marketplace."]
    return errors
