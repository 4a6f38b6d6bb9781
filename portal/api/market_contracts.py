"""`/market/contracts`: agreements of providers and customers, for both sides of them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from marshmallow import Schema, fields, validate

from marketplace.contracts.scope import side_of
from marketplace.contracts.service import (
    CONTRACT_SORTS,
    MAX_REASON_LENGTH,
    accept_version,
    decline_version,
    end_contract,
    get_contract,
    give_notice,
    list_contracts,
    propose_contract,
    propose_version,
    take_offer,
    withdraw_version,
)
from marketplace.contracts.versions import MAX_NOTE_LENGTH
from marketplace.models import Contract
from marketplace.states import ContractState, Side, VersionState
from marketplace.terms import Terms
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import TermsSchema, of_marketplace
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.context import current_scope, database, mail_url, now
from tenants.permissions import Permission

contracts = of_marketplace(
    APIBlueprint(
        "Contracts",
        "/market/contracts",
        "Agreements of providers and customers about offers; both sides see them.",
        # Of providers, the service also asks for the permission to offer appliances.
        changes=Permission.RENT,
    )
)


class ContractVersionSchema(Schema):
    """A version of a contract's terms; terms and hash never change."""

    number = fields.Integer()
    state = fields.Enum(VersionState, by_value=True)
    terms = fields.Nested(TermsSchema)
    terms_hash = fields.String()
    note = fields.String()
    proposed_side = fields.Enum(Side, by_value=True)
    proposed_by = fields.String(**about("An email address; empty for the published offer."))
    proposed_at = instant()
    accepted_by = fields.String(**about("An email address."))
    accepted_at = instant()
    applies_from = instant()


def _side(contract: Contract) -> str | None:
    return side_of(contract, current_scope())


class ContractSchema(Schema):
    """An agreement of a provider and a customer."""

    id = fields.String()
    offer_id = fields.String()
    offer_name = fields.String()
    provider_name = fields.String()
    customer_name = fields.String()
    side = fields.Function(
        _side, **about("Of your tenant; null for the operator.", type="string", nullable=True)
    )
    state = fields.Enum(ContractState, by_value=True)
    created_at = instant()
    starts_at = instant()
    ends_at = instant()
    noticed_at = instant()
    noticed_by = fields.Enum(Side, by_value=True, allow_none=True)
    versions = fields.List(fields.Nested(ContractVersionSchema))


class ContractQuery(page_query(CONTRACT_SORTS, default="-created_at")):  # type: ignore[misc] # a class made at run time
    """Which contracts are listed."""

    side = fields.Enum(
        Side,
        by_value=True,
        load_default=None,
        **about("Only those in which your tenant has this side."),
    )


class HashSchema(StrictSchema):
    """The terms that the user has read."""

    terms_hash = fields.String(required=True, validate=validate.Length(max=64))


class TakeSchema(HashSchema):
    """An offer that is taken as it is."""

    offer_id = fields.String(required=True)


class ProposalSchema(StrictSchema):
    """Terms that the other side may accept."""

    terms = fields.Nested(TermsSchema, required=True)
    note = fields.String(load_default="", metadata={"maxLength": MAX_NOTE_LENGTH})


class ContractProposalSchema(ProposalSchema):
    """A contract about an offer with other terms."""

    offer_id = fields.String(required=True)


class TerminationSchema(StrictSchema):
    """Why the operator ends a contract; both sides see it."""

    reason = fields.String(required=True, metadata={"maxLength": MAX_REASON_LENGTH})


objects = Objects(contracts, "/<contract_id>", read=get_contract, answer=ContractSchema)
objects.lists(
    "List the contracts of the tenant as provider or customer, the newest first.",
    list_contracts,
    query=ContractQuery,
)
objects.shows("Return a contract with all versions of its terms.")
objects.acts(
    "Give notice: the contract ends after the notice period, or with its term if that is earlier.",
    give_notice,
    "notice",
)
objects.acts("End a contract whose notice period has passed.", end_contract, "end")


@contracts.operation("POST", answer=ContractSchema, body=TakeSchema, status=HTTPStatus.CREATED)
def take(body: Mapping[str, Any]) -> Contract:
    """Take an offer: accept its terms by their hash.

    The contract is active at once, unless the provider approves each one. If the terms have
    changed meanwhile, the answer is 409 `terms_changed` and says what.
    """
    with database() as session:
        return take_offer(session, current_scope(), **body, **_context())


@contracts.operation(
    "POST",
    "/propose",
    answer=ContractSchema,
    body=ContractProposalSchema,
    status=HTTPStatus.CREATED,
)
def propose_new(body: Mapping[str, Any]) -> Contract:
    """Propose a contract about an offer with other terms; the provider answers."""
    with database() as session:
        scope = current_scope()
        return propose_contract(
            session, scope, body["offer_id"], _terms(body), body["note"], **_context()
        )


@contracts.operation(
    "POST",
    "/<contract_id>/versions",
    answer=ContractSchema,
    body=ProposalSchema,
    status=HTTPStatus.CREATED,
)
def propose(contract_id: str, body: Mapping[str, Any]) -> Contract:
    """Propose other terms; this declines what the other side proposed, or replaces your own."""
    with database() as session:
        scope = current_scope()
        propose_version(session, scope, contract_id, _terms(body), body["note"], **_context())
        return get_contract(session, scope, contract_id)


@contracts.operation(
    "POST",
    "/<contract_id>/versions/<int:number>/accept",
    answer=ContractSchema,
    body=HashSchema,
)
def accept(contract_id: str, number: int, body: Mapping[str, Any]) -> Contract:
    """Accept what the other side proposed, by the hash of its terms."""
    with database() as session:
        scope = current_scope()
        accept_version(session, scope, contract_id, number, **body, **_context())
        return get_contract(session, scope, contract_id)


@contracts.operation("POST", "/<contract_id>/versions/<int:number>/decline", answer=ContractSchema)
def decline(contract_id: str, number: int) -> Contract:
    """Decline what the other side proposed; a contract that was not active yet is declined."""
    with database() as session:
        scope = current_scope()
        decline_version(session, scope, contract_id, number, **_context())
        return get_contract(session, scope, contract_id)


@contracts.operation("POST", "/<contract_id>/versions/<int:number>/withdraw", answer=ContractSchema)
def withdraw(contract_id: str, number: int) -> Contract:
    """Withdraw what your side proposed; a contract that was not active yet is withdrawn."""
    with database() as session:
        scope = current_scope()
        withdraw_version(session, scope, contract_id, number, **_context())
        return get_contract(session, scope, contract_id)


objects.acts(
    "End a contract at once, as the operator.",
    end_contract,
    "terminate",
    body=TerminationSchema,
    needs=Permission.MANAGE_TENANTS,
)


def _context() -> dict[str, Any]:
    return {"now": now(), "mail_url": mail_url()}


def _terms(body: Mapping[str, Any]) -> Terms:
    return msgspec.convert(body["terms"], Terms)
