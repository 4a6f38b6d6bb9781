"""`/billing`: billing lines, their export in columns of FOCUS, corrections and prepaid credit."""

from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, post_load

from core.errors import InvalidInputError
from marketplace.charges.corrections import CorrectionRequest, correct
from marketplace.charges.lines import LINE_SORTS, LineFilter, LineSide, lines_csv, list_lines
from marketplace.charges.models import BillingLine, LineKind, PrepaidEntry
from marketplace.charges.prepaid import add_credit
from marketplace.invoices.documents import Issuing
from marketplace.invoices.focus import focus_csv
from marketplace.invoices.service import Credit, credit_of
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
from portal.api.spec_schemas import DecimalField
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from portal.presenters.gpu_usage import DEFAULT_DAYS, checked_period
from tenants.permissions import Permission

billing_lines = APIBlueprint(
    "Billing",
    "/billing",
    "What each hour of use costs, corrections of it, and prepaid credit. Amounts are texts, "
    "those of lines with eight decimal places, in the currency of the portal.",
    reads=Permission.VIEW_BILLING,
    changes=Permission.OPERATE,
)


class LineSchema(Schema):
    """A billing line; lines are only added."""

    id = fields.String()
    at = instant(**about("The hour, or the time, that it is for."))
    recorded_at = instant()
    kind = fields.Enum(LineKind, by_value=True)
    contract_id = fields.String(allow_none=True)
    version_number = fields.Integer(
        allow_none=True, **about("Of the contract's terms, or of the price list.")
    )
    gpu_model = fields.String()
    gpu_milliseconds = fields.Integer(**about("Of single GPUs."))
    unit_price = DecimalField(places=8)
    amount = DecimalField(places=8)
    note = fields.String()
    user_id = fields.String(allow_none=True)
    project_id = fields.String(allow_none=True)
    job_id = fields.String(allow_none=True)
    job_name = fields.String()
    appliance_id = fields.String(allow_none=True, **about("Of the tenant's own appliances."))


class FilterQuery(StrictSchema):
    """Which lines."""

    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")
    side = fields.Enum(
        LineSide,
        by_value=True,
        load_default=LineSide.PAID,
        **about("What the tenant pays, or what it earns as a provider."),
    )
    contract_id = fields.String(load_default="")
    kind = fields.Enum(LineKind, by_value=True, load_default=None)

    @post_load
    def _filter(self, values: dict[str, Any], **_options: object) -> dict[str, Any]:
        period = checked_period(values.pop("since"), values.pop("until"))
        names = ("side", "contract_id", "kind")
        wanted = LineFilter(period=period, **{name: values.pop(name) for name in names})
        return {**values, "wanted": wanted}


class LineQuery(FilterQuery, PageQuery):
    """Which lines, sort and page."""

    sort = sort_field(LINE_SORTS, default="-at")


class PeriodQuery(StrictSchema):
    """A period; by default the last 30 days, until now."""

    since = time_filter(f"By default {DEFAULT_DAYS} days before `until`.")
    until = time_filter("Exclusive; by default now.")


class CorrectionRequestSchema(StrictSchema):
    """A correction of what a contract, or the own use of a tenant, cost."""

    amount = DecimalField(
        required=True, **about("In cents, such as `-12.50`, which is in favor of who pays.")
    )
    note = fields.String(required=True, **about("Why; both sides see it."))
    reference = fields.String(
        required=True, **about("Of the correction, such as a ticket; unique.")
    )
    contract_id = fields.String(load_default="")
    tenant_id = fields.String(load_default="", **about("Without a contract: whose own use."))
    at = instant(load_default=None, **about("What it corrects; by default now."))


class CorrectionSchema(Schema):
    """A correction as a line."""

    id = fields.String()
    tenant_id = fields.String()
    provider_id = fields.String(allow_none=True)
    contract_id = fields.String(allow_none=True)
    at = instant()
    amount = DecimalField(places=2)
    note = fields.String()
    created_by = fields.String()


class CreditQuery(StrictSchema):
    """Whose credit."""

    tenant_id = fields.String(load_default="", **about("By default the current one."))


class CreditRequestSchema(StrictSchema):
    """A payment in advance, or its return."""

    tenant_id = fields.String(required=True)
    amount = DecimalField(required=True, **about("In cents; negative takes it back."))
    reference = fields.String(
        required=True, **about("Of the payment; the same one is refused twice.")
    )
    note = fields.String(load_default="")


class CreditEntrySchema(Schema):
    """A change of prepaid credit."""

    id = fields.String()
    amount = DecimalField(places=2)
    note = fields.String()
    created_by = fields.String()
    created_at = instant()


class CreditSchema(Schema):
    """A tenant's prepaid credit."""

    balance = DecimalField(places=2, **about("What was paid in, less paid invoices."))
    open_amount = DecimalField(places=2, **about("Of rentals in no invoice yet, with tax."))
    available = DecimalField(places=2)
    entries = fields.List(fields.Nested(CreditEntrySchema))


@billing_lines.operation("GET", "/lines", query=LineQuery, answer=page_of(LineSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List billing lines, newest first."""
    with database() as session:
        return envelope(list_lines(session, current_scope(), **query))


@billing_lines.operation(
    "GET", "/lines/export", query=FilterQuery, responses=file_response("All lines.", "text/csv")
)
def export(query: dict[str, Any]) -> Response:
    """Return billing lines as CSV, oldest first."""
    wanted: LineFilter = query["wanted"]
    since, until = wanted.period.since, wanted.period.until
    return stream_file(
        lines_csv(portal().sessions, current_scope(), wanted),
        media_type="text/csv; charset=utf-8",
        file_name=f"billing-lines_{since:%Y%m%d}_{until:%Y%m%d}.csv",
    )


@billing_lines.operation(
    "GET", "/focus", query=PeriodQuery, responses=file_response("FOCUS 1.0.", "text/csv")
)
def export_focus(query: dict[str, Any]) -> Response:
    """Return what the tenant pays in the columns of FOCUS 1.0, as CSV."""
    period = checked_period(query["since"], query["until"])
    issuing = Issuing.of(portal().settings)
    return stream_file(
        focus_csv(
            portal().sessions,
            current_scope(),
            period,
            currency=issuing.currency,
            issuer=issuing.issuer,
        ),
        media_type="text/csv; charset=utf-8",
        file_name=f"focus_{period.since:%Y%m%d}_{period.until:%Y%m%d}.csv",
    )


@billing_lines.operation(
    "POST",
    "/corrections",
    body=CorrectionRequestSchema,
    answer=CorrectionSchema,
    status=HTTPStatus.CREATED,
)
def add_correction(body: dict[str, Any]) -> BillingLine:
    """Correct what a contract or a tenant's own use cost, by a line of its own."""
    with database() as session:
        return correct(session, current_scope(), CorrectionRequest(**body), now=now())


@billing_lines.operation("GET", "/credit", query=CreditQuery, answer=CreditSchema)
def show_credit(query: dict[str, Any]) -> Credit:
    """Return a tenant's prepaid credit with its last changes."""
    scope = current_scope()
    tenant_id = query["tenant_id"] or scope.tenant_id
    if tenant_id is None:
        message = "Enter the tenant whose credit you want to see."
        raise InvalidInputError(message, errors={"tenant_id": [message]})
    with database() as session:
        tax_percent = Issuing.of(portal().settings).tax_percent
        return credit_of(session, scope, tenant_id, tax_percent=tax_percent)


@billing_lines.operation(
    "POST", "/credit", body=CreditRequestSchema, answer=CreditEntrySchema, status=HTTPStatus.CREATED
)
def enter_credit(body: dict[str, Any]) -> PrepaidEntry:
    """Enter a payment in advance of a tenant, or its return."""
    with database() as session:
        return add_credit(session, current_scope(), now=now(), **body)
