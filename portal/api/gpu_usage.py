"""`/gpu-usage`: the usage ledger by tenant, user, job, appliance, GPU model or day."""

from dataclasses import asdict
from typing import Any

from flask import Response
from marshmallow import Schema, fields, post_load

from jobqueue.usage.ledger import recorded_until
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import DEFAULT_SORT, USAGE_SORTS, UsageBy, usage_sum, usage_totals
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    file_response,
    instant,
    page_of,
    sort_field,
    time_filter,
)
from portal.context import current_scope, database
from portal.presenters.gpu_usage import DEFAULT_DAYS, checked_period, live_part, usage_file

gpu_usage = APIBlueprint(
    "GPU usage",
    "/gpu-usage",
    "GPU time that jobs were allocated, used and left idle.",
)


class UsageFiguresSchema(Schema):
    """GPU time. What is allocated and neither used nor idle was not measured."""

    allocated_gpu_seconds = fields.Float()
    used_gpu_seconds = fields.Float(**about("Time in which a kernel ran."))
    idle_gpu_seconds = fields.Float()
    unmeasured_gpu_seconds = fields.Float()
    used_ratio = fields.Float(allow_none=True, **about("Of the measured time."))
    energy_kilowatt_hours = fields.Float()


class UsageTotalSchema(UsageFiguresSchema):
    """The sum of a group."""

    key = fields.String(**about("The ID, GPU model or day of the group."))
    name = fields.String(**about("Empty if it was deleted."))


class UsagePageSchema(page_of(UsageTotalSchema)):  # type: ignore[misc] # made at run time
    """A page of groups, and the sum of all of them."""

    since = instant()
    until = instant()
    recorded_until = instant(**about("Later hours are measured live: the ledger has them later."))
    is_so_far = fields.Boolean(
        **about("Whether the ledger lacks hours of the period: figures may grow.")
    )
    problem = fields.String(**about("Why used and idle time is missing; empty otherwise."))
    sum = fields.Nested(UsageFiguresSchema)


class PeriodQuery(StrictSchema):
    """A period; by default the last 30 days, until now."""

    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")
    by = fields.Enum(UsageBy, by_value=True, load_default=UsageBy.USER)

    @post_load
    def _period(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        since, until = values.pop("since"), values.pop("until")
        return {**values, "period": checked_period(since, until)}


class UsageQuery(PeriodQuery, PageQuery):
    """Period, group, sort and page."""

    sort = sort_field(dict.fromkeys(USAGE_SORTS), default=DEFAULT_SORT)


@gpu_usage.operation("GET", query=UsageQuery, answer=UsagePageSchema)
def show(query: dict[str, Any]) -> dict[str, Any]:
    """Return the GPU time of each group, the largest first."""
    period: Period = query.pop("period")
    with database() as session:
        live = live_part(session, period)
        page = usage_totals(session, current_scope(), period, live=live, **query)
        return {
            **envelope(page),
            **asdict(period),
            "recorded_until": recorded_until(session),
            "is_so_far": live.is_so_far,
            "problem": live.problem,
            "sum": usage_sum(session, current_scope(), period, live=live),
        }


@gpu_usage.operation(
    "GET", "/export", query=PeriodQuery, responses=file_response("All groups.", "text/csv")
)
def export(query: dict[str, Any]) -> Response:
    """Return the GPU time of all groups as CSV."""
    return usage_file(query["period"], query["by"])
