"""`/market/verifications`: whether appliances are what they claim to be."""

from marshmallow import Schema, fields

from marketplace.verification.findings import Severity
from marketplace.verification.views import (
    CHALLENGE_SORTS,
    VERIFICATION_SORTS,
    get_verification,
    list_challenges,
    list_verifications,
    verify_now,
)
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import of_marketplace
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query
from tenants.models import ChallengeOutcome, VerificationState
from tenants.permissions import Permission

verifications = of_marketplace(
    APIBlueprint(
        "Verifications",
        "/market/verifications",
        "Whether the tenant's appliances are what they claim to be; those that are not are in no "
        "offer.",
        changes=Permission.VERIFY,
    )
)


class FindingSchema(Schema):
    """Something that a check found."""

    code = fields.String(**about("Stable, such as `memory_missing`."))
    severity = fields.Enum(
        Severity, by_value=True, **about("`failure` keeps the appliance out of offers.")
    )
    text = fields.String()
    advice = fields.String(**about("How to mend it."))
    evidence = fields.Dict(keys=fields.String())


class VerificationSchema(Schema):
    """What is known of an appliance."""

    appliance_id = fields.String()
    name = fields.String()
    state = fields.Enum(VerificationState, by_value=True)
    since = instant()
    reason = fields.String(**about("Why it failed, or what it waits for."))
    findings = fields.List(fields.Nested(FindingSchema))
    checked_at = instant()
    grace_until = instant()


class ChallengeSchema(Schema):
    """A challenge, and what came of it."""

    number = fields.Integer()
    outcome = fields.Enum(ChallengeOutcome, by_value=True)
    ordered_at = instant()
    answered_at = instant()
    findings = fields.List(fields.Nested(FindingSchema))


class VerificationQuery(page_query(VERIFICATION_SORTS, default="name")):  # type: ignore[misc] # a class made at run time
    """Which are listed."""

    state = fields.Enum(VerificationState, by_value=True, load_default=None)


objects = Objects(
    verifications, "/<appliance_id>", read=get_verification, answer=VerificationSchema
)
objects.lists(
    "List the appliances that are verified: those that offers cover.",
    list_verifications,
    query=VerificationQuery,
)
objects.shows("Return what is known of an appliance.")
objects.acts("Verify an appliance as soon as it has no jobs.", verify_now, "verify")
objects.lists(
    "List the challenges of an appliance.",
    list_challenges,
    path="/<appliance_id>/challenges",
    name="challenges",
    query=page_query(CHALLENGE_SORTS, default="-number"),
    answer=ChallengeSchema,
)
