"""Accounts: tenants ask, the operator admits; texts for others and for invoices."""

from decimal import Decimal

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.notification.models import Notification
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from marketplace.accounts import (
    account_of,
    admit,
    get_account,
    list_accounts,
    request_admission,
    require_customer,
    require_provider,
    set_account,
    set_charges,
)
from marketplace.models import Account
from marketplace.states import AccountState, Side
from tests.cast import NOON, Cast, scope_of


def test_a_tenant_without_an_account_has_an_empty_one(session: Session, cast: Cast) -> None:
    account = account_of(session, cast.acme.id)
    assert (account.provider_state, account.customer_state) == (AccountState.NONE,) * 2
    session.flush()
    assert session.scalars(select(Account)).all() == []


def test_a_request_takes_the_tenants_name_and_the_users_address(
    session: Session, cast: Cast
) -> None:
    alice = scope_of(cast.alice)
    with pytest.raises(ForbiddenError, match="Ask for admission as a provider"):
        require_provider(session, alice)
    account = request_admission(session, alice, Side.PROVIDER, now=NOON)
    assert (account.public_name, account.legal_name) == ("Acme", "Acme")
    assert account.billing_email == cast.alice.email
    assert (account.provider_state, account.customer_state) == (
        AccountState.REQUESTED,
        AccountState.NONE,
    )
    with pytest.raises(ForbiddenError, match="has not admitted it yet"):
        require_provider(session, alice)
    with pytest.raises(ConflictError, match="has asked for admission as a provider already"):
        request_admission(session, alice, Side.PROVIDER, now=NOON)


def test_the_operator_admits_suspends_and_declines(session: Session, cast: Cast) -> None:
    alice, olivia = scope_of(cast.alice), scope_of(cast.olivia)
    request_admission(session, alice, Side.CUSTOMER, now=NOON)
    acme, side = cast.acme.id, Side.CUSTOMER
    admit(session, olivia, acme, side, AccountState.ACTIVE, now=NOON, mail_url="https://x")
    assert require_customer(session, alice).tenant_id == acme
    admit(session, olivia, acme, side, AccountState.SUSPENDED, now=NOON, mail_url="https://x")
    with pytest.raises(ForbiddenError, match="The operator suspended it"):
        require_customer(session, alice)
    with pytest.raises(ConflictError, match="suspended your tenant"):
        request_admission(session, alice, side, now=NOON)
    texts = [row.payload["text"] for row in session.scalars(select(Notification))]
    assert texts == [
        "The operator of the portal admitted Acme as a customer on the marketplace.",
        "The operator of the portal suspended Acme as a customer on the marketplace.",
    ]
    admit(session, olivia, acme, side, AccountState.NONE, now=NOON)
    request_admission(session, alice, side, now=NOON)
    with pytest.raises(InvalidInputError, match="Only a tenant requests"):
        admit(session, olivia, acme, side, AccountState.REQUESTED, now=NOON)


def test_those_that_wait_are_listed_first(session: Session, cast: Cast) -> None:
    olivia = scope_of(cast.olivia)
    admit(session, olivia, cast.acme.id, Side.PROVIDER, AccountState.ACTIVE, now=NOON)
    request_admission(session, scope_of(cast.charlie), Side.CUSTOMER, now=NOON)
    names = [account.public_name for account in list_accounts(session, olivia).items]
    assert names == ["Globex", "Acme"]


def test_only_the_operator_admits_and_lists(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    with pytest.raises(ForbiddenError):
        admit(session, alice, cast.acme.id, Side.PROVIDER, AccountState.ACTIVE, now=NOON)
    with pytest.raises(ForbiddenError):
        list_accounts(session, alice)
    with pytest.raises(ForbiddenError):
        set_charges(session, alice, cast.acme.id, {"is_prepaid": False}, now=NOON)
    with pytest.raises(ForbiddenError):
        request_admission(session, scope_of(cast.bob), Side.CUSTOMER, now=NOON)
    with pytest.raises(NotFoundError):
        get_account(session, alice, cast.globex.id)


def test_texts_are_checked(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    values = {"legal_name": " Acme AS ", "country": "no", "address": "Gata 1\nOslo"}
    account = set_account(session, alice, values, now=NOON)
    assert (account.legal_name, account.country) == ("Acme AS", "NO")
    wrong = {
        "country": "Norway",
        "billing_email": "alice",
        "public_name": "x" * 201,
        "legal_name": "a\nb",
        "is_prepaid": "true",
    }
    with pytest.raises(InvalidInputError) as refused:
        set_account(session, alice, wrong, now=NOON)
    assert refused.value.errors == {
        "country": ["Enter the two letters of the country, such as NO."],
        "billing_email": ["'alice' is no email address."],
        "public_name": ["public_name has 201 characters; use at most 200."],
        "legal_name": ["legal_name has characters that can't be shown."],
        "is_prepaid": ["is_prepaid can't be changed here."],
    }


def test_an_admitted_tenant_has_a_name(session: Session, cast: Cast) -> None:
    request_admission(session, scope_of(cast.alice), Side.PROVIDER, now=NOON)
    request_admission(session, scope_of(cast.alice), Side.CUSTOMER, now=NOON)
    with pytest.raises(InvalidInputError) as refused:
        set_account(session, scope_of(cast.alice), {"public_name": " "}, now=NOON)
    assert refused.value.errors.keys() == {"public_name"}


def test_the_operator_sets_tax_fee_and_prepayment(session: Session, cast: Cast) -> None:
    olivia, acme = scope_of(cast.olivia), cast.acme.id
    values = {"tax_percent": Decimal(25), "fee_percent": None, "is_prepaid": True}
    account = set_charges(session, olivia, acme, values, now=NOON)
    assert (account.tax_percent, account.fee_percent, account.is_prepaid) == (
        Decimal(25),
        None,
        True,
    )
    with pytest.raises(InvalidInputError) as refused:
        set_charges(session, olivia, acme, {"tax_percent": Decimal(101)}, now=NOON)
    assert refused.value.errors == {
        "tax_percent": ["tax_percent is 101; enter 0 to 100, or leave it empty."]
    }
    with pytest.raises(NotFoundError):
        set_charges(session, olivia, "x", values, now=NOON)
