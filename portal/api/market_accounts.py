"""`/market/account` and `/market/accounts`: admission to the marketplace, names on invoices."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from marketplace.accounts import (
    ACCOUNT_SORTS,
    TEXT_LENGTHS,
    admit,
    get_account,
    list_accounts,
    request_admission,
    set_account,
    set_charges,
)
from marketplace.models import Account
from marketplace.states import AccountState, Side
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import amount, of_marketplace
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.context import current_scope, database, mail_url, now
from tenants.models import Tenant
from tenants.permissions import Permission

own = of_marketplace(
    APIBlueprint(
        "Market account",
        "/market/account",
        "What the tenant is admitted to on the marketplace, and whom invoices are made out to.",
        changes=Permission.MANAGE_BILLING,
    )
)
accounts = of_marketplace(
    APIBlueprint(
        "Market accounts",
        "/market/accounts",
        "The tenants on the marketplace, which the operator admits.",
        reads=Permission.MANAGE_TENANTS,
        changes=Permission.MANAGE_TENANTS,
    )
)


class MarketAccountSchema(Schema):
    """A tenant on the marketplace."""

    tenant_id = fields.String()
    public_name = fields.String(**about("What others see."))
    description = fields.String()
    provider_state = fields.Enum(AccountState, by_value=True)
    customer_state = fields.Enum(AccountState, by_value=True)
    legal_name = fields.String(**about("On invoices."))
    address = fields.String()
    country = fields.String(**about("Two letters, such as NO."))
    tax_number = fields.String()
    billing_email = fields.String()
    tax_percent = amount("On its invoices; null for the portal's.")
    fee_percent = amount("The operator's share of what it earns; null for the portal's.")
    is_prepaid = fields.Boolean(**about("Whether it rents by prepaid credit."))
    reputation = fields.Float(**about("As a provider, 0 to 1."))
    updated_at = instant()


class MarketAccountChangeSchema(StrictSchema):
    """The texts that change."""

    public_name = fields.String(metadata={"maxLength": TEXT_LENGTHS["public_name"]})
    description = fields.String(metadata={"maxLength": TEXT_LENGTHS["description"]})
    legal_name = fields.String(metadata={"maxLength": TEXT_LENGTHS["legal_name"]})
    address = fields.String(metadata={"maxLength": TEXT_LENGTHS["address"]})
    country = fields.String(**about("Two letters, such as NO."))
    tax_number = fields.String(metadata={"maxLength": TEXT_LENGTHS["tax_number"]})
    billing_email = fields.String()


class AdmissionRequestSchema(StrictSchema):
    """What a tenant asks to be."""

    side = fields.Enum(Side, by_value=True, required=True)


class AdmissionSchema(AdmissionRequestSchema):
    """What the operator decides."""

    state = fields.Enum(
        AccountState,
        by_value=True,
        required=True,
        **about("`active` admits, `suspended` suspends, `none` declines."),
    )


class ChargesSchema(StrictSchema):
    """What the operator sets of an account; null for the portal's settings."""

    tax_percent = amount("On its invoices.")
    fee_percent = amount("The operator's share of what it earns.")
    is_prepaid = fields.Boolean()


@own.operation("GET", answer=MarketAccountSchema, has_etag=True)
def show() -> Account:
    """Return the tenant's account."""
    with database() as session:
        return get_account(session, current_scope())


@own.operation("PATCH", answer=MarketAccountSchema, body=MarketAccountChangeSchema, has_etag=True)
def change(body: Mapping[str, Any]) -> Account:
    """Change names, addresses and other texts of the tenant's account."""
    with database() as session:
        _check_if_match(session, current_scope().require_tenant())
        return set_account(session, current_scope(), body, now=now())


@own.operation(
    "POST",
    "/request",
    answer=MarketAccountSchema,
    body=AdmissionRequestSchema,
    needs=Permission.RENT,
)
def request(body: Mapping[str, Any]) -> Account:
    """Ask the operator to admit the tenant as a provider or customer.

    Only admins do; to become a provider, their permission to offer appliances is needed, too.
    """
    with database() as session:
        return request_admission(session, current_scope(), body["side"], now=now())


objects = Objects(accounts, "/<tenant_id>", read=get_account, answer=MarketAccountSchema)
objects.lists(
    "List the accounts of tenants that asked for admission, those that wait first.",
    list_accounts,
    query=page_query(ACCOUNT_SORTS, default=""),
)
objects.shows("Return the account of a tenant.")


@accounts.operation("PATCH", "/<tenant_id>", answer=MarketAccountSchema, body=ChargesSchema)
def change_charges(tenant_id: str, body: Mapping[str, Any]) -> Account:
    """Change the tax, the fee and the credit of an account."""
    with database() as session:
        _check_if_match(session, tenant_id)
        return set_charges(session, current_scope(), tenant_id, body, now=now())


@accounts.operation(
    "POST", "/<tenant_id>/admission", answer=MarketAccountSchema, body=AdmissionSchema
)
def set_admission(tenant_id: str, body: Mapping[str, Any]) -> Account:
    """Admit, suspend or decline a tenant as a provider or customer.

    The catalogue and what contracts allow follow within a minute; running jobs go on.
    """
    decided = (body["side"], body["state"])
    with database() as session:
        scope = current_scope()
        return admit(session, scope, tenant_id, *decided, now=now(), mail_url=mail_url())


def _check_if_match(session: Session, tenant_id: str) -> None:
    # The tenant's row stands for the account, which may have none.
    read = partial(get_account, session, current_scope(), tenant_id)
    accounts.check_if_match(session, Tenant, tenant_id, read, MarketAccountSchema)
