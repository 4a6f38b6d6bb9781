"""`/market/reputation`: what is believed of providers, on which evidence; ratings of customers."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields, validate

from marketplace.cases import Case, Dimension
from marketplace.catalogue import published_offer
from marketplace.reputation.models import MAX_COMMENT_LENGTH, Rating, ReputationDay
from marketplace.reputation.opinions import RatingRequest, rate, ratings_of
from marketplace.reputation.ratings import MAX_STARS, MIN_STARS
from marketplace.reputation.refresh import HISTORY_DAYS
from marketplace.reputation.service import Report, history_of, public_dimensions
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import of_marketplace
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    whole_list,
)
from portal.context import current_scope, database, now
from portal.presenters.reputation import read_report
from tenants.permissions import Permission

market_reputation = of_marketplace(
    APIBlueprint(
        "Reputation",
        "/market/reputation",
        "What is believed of providers, on which evidence; and ratings of customers.",
        changes=Permission.SUBMIT_JOBS,
    )
)


class ReputationFigureSchema(Schema):
    """A distribution; all but `cases` are from 0 to 1."""

    mean = fields.Float(**about("What is expected."))
    low = fields.Float(**about("It is above this, and below `high`, with 90 %."))
    high = fields.Float()
    cases = fields.Float(**about("Cases by weight and age."))


class ReputationDimensionSchema(Schema):
    """A dimension of a reputation."""

    dimension = fields.Enum(Dimension, by_value=True)
    share = fields.Float(**about("How much of the whole it is, 0 to 1."))
    figure = fields.Nested(ReputationFigureSchema)


class ReputationCauseSchema(Schema):
    """Cases of a kind that cost something."""

    dimension = fields.Enum(Dimension, by_value=True)
    kind = fields.String()
    cost = fields.Float(**about("What the score would be higher without them."))
    count = fields.Integer(**about("Entries of the evidence."))
    half_at = instant(**about("When the latest counts half."))


class ReputationImprovementSchema(Schema):
    """What would raise the score."""

    dimension = fields.Enum(Dimension, by_value=True)
    amount = fields.Integer(**about("Days or cases."))
    text = fields.String()
    gain = fields.Float(**about("Of the score, 0 to 1."))


class ReputationSchema(Schema):
    """The reputation of a provider."""

    score = fields.Float(**about("What it is ranked by, 0 to 1."))
    overall = fields.Nested(ReputationFigureSchema)
    dimensions = fields.List(fields.Nested(ReputationDimensionSchema))
    causes = fields.List(fields.Nested(ReputationCauseSchema))
    improvements = fields.List(fields.Nested(ReputationImprovementSchema))


class ReputationEvidenceSchema(Schema):
    """A case for or against a provider; it names no customer."""

    dimension = fields.Enum(Dimension, by_value=True)
    kind = fields.String()
    at = instant()
    good = fields.Float(**about("How far it speaks for the provider, 0 to 1."))
    weight = fields.Float(**about("How many cases it counts as now."))
    text = fields.String()


class ReputationDaySchema(Schema):
    """The reputation at the end of a day in UTC, 0 to 1."""

    day_at = instant()
    score = fields.Float()
    mean = fields.Float()
    low = fields.Float()
    high = fields.Float()


class ProviderQuery(StrictSchema):
    """Whose reputation."""

    tenant_id = fields.String(
        load_default="", **about("A provider, for the operator; your own tenant without it.")
    )


class EvidenceQuery(PageQuery, ProviderQuery):
    """Which evidence."""

    dimension = fields.Enum(
        Dimension, by_value=True, load_default=None, **about("Only of this one.")
    )
    kind = fields.String(load_default="", **about("Only of this kind."))


class HistoryQuery(ProviderQuery):
    """How far back."""

    days = fields.Integer(load_default=90, validate=validate.Range(min=1, max=HISTORY_DAYS))


class PublicReputationSchema(Schema):
    """The reputation of an offer's provider, as everybody sees it."""

    score = fields.Float(**about("What it is ranked by, 0 to 1."))
    low = fields.Float(**about("The whole is above this, below `high`, with 90 %."))
    high = fields.Float()
    dimensions = fields.List(fields.Nested(ReputationDimensionSchema))


class NewRatingSchema(StrictSchema):
    """How satisfied you were with a contract in a month; rating it again changes it."""

    stars = fields.Integer(required=True, validate=validate.Range(min=MIN_STARS, max=MAX_STARS))
    comment = fields.String(
        load_default="",
        **about("The provider reads it without your name.", maxLength=MAX_COMMENT_LENGTH),
    )
    month = fields.String(
        load_default="", **about("Such as `2026-11`; the latest that can be rated without it.")
    )


class RatingSchema(Schema):
    """A rating of a contract in a month."""

    month = fields.String()
    stars = fields.Integer()
    comment = fields.String()
    created_by = fields.String(**about("An email address of your tenant."))
    created_at = instant()
    updated_at = instant()


@market_reputation.operation("GET", answer=ReputationSchema, query=ProviderQuery)
def show(query: Mapping[str, Any]) -> Report:
    """Return the reputation of the tenant as a provider, and what would raise it."""
    with database() as session:
        return read_report(session, query["tenant_id"])


@market_reputation.operation(
    "GET", "/evidence", answer=page_of(ReputationEvidenceSchema), query=EvidenceQuery
)
def list_evidence(query: Mapping[str, Any]) -> dict[str, Any]:
    """List the evidence of the reputation, the latest first."""
    with database() as session:
        report = read_report(session, query["tenant_id"])
    names = ("dimension", "kind", "page", "page_size")
    page = report.evidence(**{name: query[name] for name in names})
    return envelope(page.of([_shown(report, case) for case in page.items]))


@market_reputation.operation(
    "GET", "/history", answer=page_of(ReputationDaySchema), query=HistoryQuery
)
def list_history(query: Mapping[str, Any]) -> dict[str, Any]:
    """List the reputation of the last days, the earliest first."""
    with database() as session:
        rows: Sequence[ReputationDay] = history_of(
            session, current_scope(), query["tenant_id"], days=query["days"], now=now()
        )
    return whole_list(rows)


@market_reputation.operation(
    "GET", "/offers/<published_offer_id>", answer=PublicReputationSchema, has_etag=False
)
def show_provider(published_offer_id: str) -> dict[str, Any]:
    """Return the reputation of the provider of a published offer."""
    with database() as session:
        offer = published_offer(session, published_offer_id)
        dimensions = public_dimensions(session, offer.provider_id)
    return {
        "score": offer.reputation,
        "low": offer.reputation_low,
        "high": offer.reputation_high,
        "dimensions": dimensions,
    }


@market_reputation.operation(
    "GET", "/contracts/<contract_id>/ratings", answer=page_of(RatingSchema)
)
def list_ratings(contract_id: str) -> dict[str, Any]:
    """List your tenant's ratings of a contract that it is the customer of, the latest first."""
    with database() as session:
        return whole_list(ratings_of(session, current_scope(), contract_id))


@market_reputation.operation(
    "POST",
    "/contracts/<contract_id>/ratings",
    answer=RatingSchema,
    body=NewRatingSchema,
    status=HTTPStatus.CREATED,
)
def rate_contract(contract_id: str, body: Mapping[str, Any]) -> Rating:
    """Rate a contract in a month in which a job of yours ran under it, or change the rating."""
    with database() as session:
        return rate(session, current_scope(), contract_id, RatingRequest(**body), now=now())


def _shown(report: Report, case: Case) -> dict[str, Any]:
    names = ("dimension", "kind", "at", "good", "text")
    return {name: getattr(case, name) for name in names} | {"weight": report.weight_of(case)}
