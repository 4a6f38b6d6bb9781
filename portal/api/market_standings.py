"""`/market/standing`, `/market/standings`, `/market/appeals` and `/market/standing-policies`."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from marketplace.consequences.models import (
    MAX_ANSWER_LENGTH,
    MAX_APPEAL_LENGTH,
    MAX_NOTE_LENGTH,
    PolicyVersion,
    Standing,
    StandingEvent,
)
from marketplace.consequences.policies import (
    POLICY_SORTS,
    current_policy,
    list_policies,
    set_policy,
)
from marketplace.consequences.policy import FeeTier, Policy
from marketplace.consequences.preview import Preview, preview_policy
from marketplace.consequences.service import (
    APPEAL_SORTS,
    EVENT_SORTS,
    STANDING_SORTS,
    accept_appeal,
    appeal,
    get_appeal,
    get_standing,
    list_appeals,
    list_events,
    list_standings,
    reinstate,
    reject_appeal,
    suspend,
)
from marketplace.consequences.states import AppealState, EventKind, StandingState
from marketplace.models import Account
from marketplace.states import Listing
from marketplace.terms import plain_document
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import of_marketplace
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant, page_query
from portal.api.spec_schemas import DecimalField, request_schema, response_schema
from portal.context import current_scope, database, now
from portal.presenters.standings import StandingView, standing_view
from tenants.permissions import Permission

own = of_marketplace(
    APIBlueprint(
        "Market standing",
        "/market/standing",
        "How the tenant stands as a provider, and what follows from it.",
        changes=Permission.MANAGE_OFFERS,
    )
)
standings = of_marketplace(
    APIBlueprint(
        "Market standings",
        "/market/standings",
        "How all providers stand, for operators.",
        reads=Permission.MANAGE_TENANTS,
        changes=Permission.MANAGE_TENANTS,
    )
)
appeals = of_marketplace(
    APIBlueprint(
        "Market appeals",
        "/market/appeals",
        "Appeals of providers against suspensions: their own, or all for operators.",
        changes=Permission.MANAGE_TENANTS,
    )
)
policies = of_marketplace(
    APIBlueprint(
        "Standing policies",
        "/market/standing-policies",
        "Versions of the policy that says what follows from scores and breaches.",
        reads=Permission.MANAGE_TENANTS,
        changes=Permission.MANAGE_TENANTS,
    )
)


class AppealSchema(Schema):
    """An appeal against a suspension."""

    id = fields.String()
    tenant_id = fields.String()
    state = fields.Enum(AppealState, by_value=True)
    text = fields.String()
    created_by = fields.String(**about("An email address."))
    created_at = instant()
    answer = fields.String(**about("Of the operator."))
    decided_at = instant()


class StandingEntrySchema(Schema):
    """How a provider stands, and what follows from it."""

    tenant_id = fields.String(attribute="standing.tenant_id")
    public_name = fields.String(attribute="account.public_name")
    state = fields.Enum(StandingState, by_value=True, attribute="standing.state")
    cause = fields.String(attribute="standing.cause")
    since = instant(attribute="standing.since")
    mend_until = instant(
        attribute="standing.mend_until",
        **about("With notice: when it is decided whether it mended."),
    )
    returns_at = instant(
        attribute="standing.returns_at", **about("While suspended: the earliest return.")
    )
    probation_until = instant(attribute="standing.probation_until")
    is_by_operator = fields.Boolean(
        attribute="standing.is_by_operator",
        **about("Whether an operator suspended it, and ends that."),
    )
    score = fields.Float(attribute="standing.score", **about("That the effects rest on, 0 to 1."))
    breaches = fields.Integer(attribute="standing.breaches", **about("That count now."))
    breach_limit = fields.Integer(
        attribute="standing.breach_limit", **about("The breaches that lead to notice; 0: none do.")
    )
    failing_appliances = fields.Integer(
        attribute="standing.failing_appliances", **about("Appliances whose last check failed.")
    )
    listing = fields.Enum(Listing, by_value=True, attribute="account.listing")
    placement_factor = fields.Float(
        attribute="account.placement_factor",
        **about("What placement divides the prices by to compare offers."),
    )
    max_contract_gpus = fields.Integer(
        attribute="account.max_contract_gpus",
        **about("Of each contract at once, during probation; 0: any."),
    )
    fee_points = DecimalField(
        attribute="standing.fee_points",
        **about("Added to the percentage of the fee from the next month on."),
    )
    evaluated_at = instant(attribute="standing.evaluated_at")


class StandingSchema(StandingEntrySchema):
    """How a provider stands, what it can do, and its appeal."""

    missing = fields.List(
        fields.String(), **about("What it waits for or must do before it returns.")
    )
    appeal = fields.Nested(
        AppealSchema, allow_none=True, **about("Against the present suspension.")
    )


def _actor(event: StandingEvent) -> str:
    """Return who made a change: tenants don't see the addresses of operators."""
    is_shown = current_scope().tenant_id is None or event.kind is EventKind.APPEALED
    return event.actor if is_shown or not event.actor else "operator"


class StandingEventSchema(Schema):
    """A change of a standing, or of what follows from it."""

    id = fields.String()
    tenant_id = fields.String()
    at = instant()
    kind = fields.Enum(EventKind, by_value=True)
    cause = fields.String()
    details = fields.Dict(**about("Figures by name; `breaches` is what was counted."))
    actor = fields.Function(
        _actor, **about("The email address of the user; empty for the policy.", type="string")
    )
    policy_number = fields.Integer(**about("0: the defaults."))


class AppealRequestSchema(StrictSchema):
    """What the provider says."""

    text = fields.String(required=True, metadata={"maxLength": MAX_APPEAL_LENGTH})


class AppealAnswerSchema(StrictSchema):
    """Why the operator decides so; the provider reads it."""

    answer = fields.String(required=True, metadata={"maxLength": MAX_ANSWER_LENGTH})


class StandingReasonSchema(StrictSchema):
    """Why the operator does it; the provider reads it."""

    reason = fields.String(required=True, metadata={"maxLength": MAX_ANSWER_LENGTH})


class FeeTierSchema(request_schema(FeeTier)):  # type: ignore[misc] # a class made at run time
    """A fee that differs from the usual one."""


_PARTS: dict[type, type[Schema]] = {FeeTier: FeeTierSchema}


class StandingPolicySchema(request_schema(Policy, _PARTS)):  # type: ignore[misc] # likewise
    """What follows from scores and breaches; what is left out is the default."""


class ShownStandingPolicySchema(response_schema(Policy, _PARTS)):  # type: ignore[misc] # likewise
    """What follows from scores and breaches."""


class StandingPolicyRequestSchema(StrictSchema):
    """A new version of the policy."""

    policy = fields.Nested(StandingPolicySchema, required=True)
    note = fields.String(load_default="", metadata={"maxLength": MAX_NOTE_LENGTH})


class StandingPolicyVersionSchema(Schema):
    """A version of the policy; the one with the highest number applies."""

    number = fields.Integer(**about("0: the defaults."))
    policy = fields.Nested(ShownStandingPolicySchema, attribute="document")
    note = fields.String()
    created_by = fields.String(**about("An email address."))
    created_at = instant()


class StandingsQuery(page_query(STANDING_SORTS, default="")):  # type: ignore[misc] # likewise
    """Which standings are listed."""

    state = fields.Enum(StandingState, by_value=True, load_default=None)


class AppealsQuery(page_query(APPEAL_SORTS, default="")):  # type: ignore[misc] # likewise
    """Which appeals are listed."""

    state = fields.Enum(AppealState, by_value=True, load_default=None)


def _views(session: Session, rows: Sequence[Standing]) -> Sequence[StandingView]:
    return [standing_view(session, row, now=now()) for row in rows]


def _entries(_session: Session, rows: Sequence[tuple[Standing, Account]]) -> Sequence[StandingView]:
    return [StandingView(standing=standing, account=account) for standing, account in rows]


@own.operation("GET", answer=StandingSchema)
def show() -> StandingView:
    """Return how the tenant stands as a provider, and what follows from it."""
    with database() as session:
        standing = get_standing(session, current_scope(), now=now())
        return standing_view(session, standing, now=now())


Objects(own, "", read=get_standing, answer=StandingEventSchema).lists(
    "List what changed in the tenant's standing and why, the newest first.",
    list_events,
    path="/events",
    query=page_query(EVENT_SORTS, default=""),
    name="events",
)
Objects(own, "", read=get_standing, answer=AppealSchema).acts(
    "Appeal against the tenant's suspension; once for each suspension.",
    appeal,
    "appeal",
    body=AppealRequestSchema,
    name="make_appeal",
    status=HTTPStatus.CREATED,
)
Objects(standings, "", read=get_standing, answer=StandingEntrySchema, shown=_entries).lists(
    "List how providers stand, suspended ones first.", list_standings, query=StandingsQuery
)
objects = Objects(standings, "/<tenant_id>", read=get_standing, answer=StandingSchema, shown=_views)
objects.shows("Return how a provider stands, and what follows from it.", has_etag=False)
objects.lists(
    "List what changed in a provider's standing and why, the newest first.",
    list_events,
    path="/<tenant_id>/events",
    query=page_query(EVENT_SORTS, default=""),
    answer=StandingEventSchema,
    name="events",
)
objects.acts(
    "Suspend a provider at once, until an operator reinstates it; running jobs go on.",
    suspend,
    "suspend",
    body=StandingReasonSchema,
    name="suspend_provider",
)
objects.acts(
    "End a suspension, a notice or a probation at once.",
    reinstate,
    "reinstate",
    body=StandingReasonSchema,
    name="reinstate_provider",
)


appeal_objects = Objects(appeals, "/<appeal_id>", read=get_appeal, answer=AppealSchema)
appeal_objects.lists("List appeals, those that wait first.", list_appeals, query=AppealsQuery)
appeal_objects.shows("Return an appeal.", has_etag=False)
appeal_objects.acts(
    "Accept an appeal: the provider is back at once, without limits.",
    accept_appeal,
    "accept",
    body=AppealAnswerSchema,
)
appeal_objects.acts(
    "Reject an appeal: the suspension goes on.", reject_appeal, "reject", body=AppealAnswerSchema
)
Objects(policies, "", read=list_policies, answer=StandingPolicyVersionSchema).lists(
    "List the versions of the policy, the newest first.",
    list_policies,
    query=page_query(POLICY_SORTS, default="-number"),
)


@policies.operation("GET", "/current", answer=StandingPolicyVersionSchema)
def show_current() -> dict[str, Any]:
    """Return the policy that applies; number 0 is the defaults."""
    with database() as session:
        number, policy = current_policy(session)
    return {"number": number, "document": plain_document(policy)}


class PreviewedProviderSchema(Schema):
    """What a policy would change for a provider; each pair has the value of now and then."""

    tenant_id = fields.String()
    public_name = fields.String()
    score = fields.Float()
    breaches = fields.Integer(**about("That count then."))
    state = fields.List(fields.Enum(StandingState, by_value=True))
    cause = fields.String(**about("Of another state; empty without."))
    listing = fields.List(fields.Enum(Listing, by_value=True))
    placement_factor = fields.List(fields.Float())
    fee_points = fields.List(DecimalField())


class StandingPolicyPreviewSchema(Schema):
    """What a policy would change, of the providers that were compared."""

    changed = fields.List(fields.Nested(PreviewedProviderSchema))
    compared = fields.Integer()
    total = fields.Integer(**about("Of providers; the first 500 are compared."))


class StandingPolicyPreviewRequestSchema(Schema):
    """A policy that is not saved."""

    policy = fields.Nested(StandingPolicySchema, required=True)


@policies.operation(
    "POST",
    "/preview",
    answer=StandingPolicyPreviewSchema,
    body=StandingPolicyPreviewRequestSchema,
)
def preview(body: Mapping[str, Any]) -> Preview:
    """Return which providers a policy would change, without saving it."""
    policy = msgspec.convert(body["policy"], Policy)
    with database() as session:
        return preview_policy(session, current_scope(), policy, now=now())


@policies.operation(
    "POST",
    answer=StandingPolicyVersionSchema,
    body=StandingPolicyRequestSchema,
    status=HTTPStatus.CREATED,
)
def create(body: Mapping[str, Any]) -> PolicyVersion:
    """Add a version of the policy, which applies within five minutes."""
    policy = msgspec.convert(body["policy"], Policy)
    with database() as session:
        return set_policy(session, current_scope(), policy, body["note"], now=now())
