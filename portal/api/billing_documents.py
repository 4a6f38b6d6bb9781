"""`/billing/documents`: invoices and statements, as JSON, PDF and CSV."""

from typing import Any

from flask import Response
from marshmallow import Schema, fields

from marketplace.charges.models import LineKind
from marketplace.invoices.files import document_csv, document_pdf
from marketplace.invoices.items import decoded, month_name
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.invoices.service import DOCUMENT_SORTS, get_document, list_documents
from marketplace.months import parse_month
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    about,
    envelope,
    file_response,
    instant,
    page_of,
    sort_field,
    time_filter,
    values_of,
)
from portal.api.spec_schemas import DecimalField
from portal.context import current_scope, database
from tenants.permissions import Permission

billing_documents = APIBlueprint(
    "Invoices",
    "/billing/documents",
    "Invoices for rented appliances, statements of providers, and statements of the cost of own "
    "appliances. They never change once issued.",
    reads=Permission.VIEW_BILLING,
)


class ItemSchema(Schema):
    """An item of an invoice or statement; amounts are texts with all decimal places."""

    number = fields.Integer(**about("From 1."))
    month = fields.String(**about("Of the use; earlier months are corrections."))
    kind = fields.Enum(LineKind, by_value=True)
    contract_id = fields.String()
    subject = fields.String(**about("The offer, or the project."))
    other_side = fields.String(**about("The provider, or the customer."))
    gpu_model = fields.String()
    text = fields.String()
    gpu_hours = DecimalField()
    unit_price = DecimalField()
    amount = DecimalField(places=2)


class DocumentSchema(Schema):
    """An invoice or statement; amounts are texts, in `currency`."""

    id = fields.String()
    kind = fields.Enum(DocumentKind, by_value=True)
    tenant_id = fields.String()
    tenant_name = fields.String()
    number = fields.String()
    title = fields.String()
    month = fields.String(**about("Such as `2026-03`, in UTC."))
    currency = fields.String()
    issued_at = instant()
    net = DecimalField(places=2, **about("The sum of the items."))
    tax_percent = DecimalField()
    tax = DecimalField(places=2)
    fee_percent = DecimalField()
    fee = DecimalField(places=2, **about("Of the portal, subtracted."))
    total = DecimalField(places=2)
    prepaid = DecimalField(places=2)
    due = DecimalField(places=2, **about("What remains to be paid."))


class WholeDocumentSchema(DocumentSchema):
    """An invoice or statement with its items."""

    issuer = fields.String()
    party = fields.Dict(keys=fields.String(), values=fields.String())
    items = fields.List(fields.Nested(ItemSchema))


class DocumentQuery(PageQuery):
    """Filters, sort and page."""

    kind = fields.Enum(DocumentKind, by_value=True, load_default=None)
    month = fields.String(load_default="", **about("Such as `2026-03`."))
    issued_since = time_filter("Only those issued since, for an export that continues.")
    sort = sort_field(DOCUMENT_SORTS, default="-issued_at")


@billing_documents.operation("GET", query=DocumentQuery, answer=page_of(DocumentSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List invoices and statements, the latest first by default."""
    month = query.pop("month")
    month_at = parse_month(month) if month else None
    with database() as session:
        page = list_documents(session, current_scope(), month_at=month_at, **query)
        return envelope(page, [_shown(document) for document in page.items])


@billing_documents.operation("GET", "/<document_id>", answer=WholeDocumentSchema)
def show(document_id: str) -> dict[str, Any]:
    """Return an invoice or statement with its items."""
    document = _read(document_id)
    items = decoded(document.items)
    return _shown(document) | {"issuer": document.issuer, "party": document.party, "items": items}


@billing_documents.operation(
    "GET", "/<document_id>/pdf", responses=file_response("The document.", "application/pdf")
)
def show_pdf(document_id: str) -> Response:
    """Return an invoice or statement as PDF."""
    document = _read(document_id)
    return _file(document_pdf(document), "application/pdf", f"{document.number}.pdf")


@billing_documents.operation(
    "GET", "/<document_id>/csv", responses=file_response("The items.", "text/csv")
)
def show_csv(document_id: str) -> Response:
    """Return the items of an invoice or statement as CSV."""
    document = _read(document_id)
    text = "".join(document_csv(document))
    return _file(text.encode(), "text/csv; charset=utf-8", f"{document.number}.csv")


def _read(document_id: str) -> BillingDocument:
    with database() as session:
        return get_document(session, current_scope(), document_id)


def _shown(document: BillingDocument) -> dict[str, Any]:
    return values_of(DocumentSchema, document, month=month_name(document.month_at))


def _file(content: bytes, media_type: str, name: str) -> Response:
    response = Response(content, content_type=media_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
