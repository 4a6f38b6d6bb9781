"""`/billing/documents`: invoices and statements, with their items, as pages and files."""

from flask import Blueprint, Response, render_template
from flask.typing import ResponseReturnValue

from core.money import format_amount
from marketplace.invoices.files import document_csv, document_pdf, totals_of
from marketplace.invoices.items import decoded, month_name
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.invoices.service import get_document, list_documents
from portal.context import current_scope, database
from portal.downloads import stream_file
from portal.query_string import asked_page, chosen, sort_order
from tenants.permissions import Permission

pages = Blueprint("billing_documents", __name__, url_prefix="/billing/documents")

KINDS = {
    DocumentKind.INVOICE: "Invoices",
    DocumentKind.STATEMENT: "Provider statements",
    DocumentKind.COST_STATEMENT: "Cost statements",
}
# The items of larger ones are in their CSV.
MAX_ITEMS = 500


@pages.get("")
def index() -> ResponseReturnValue:
    """List invoices and statements."""
    kind, sort = chosen(DocumentKind, "kind"), sort_order() or "-issued_at"
    with database() as session:
        page = list_documents(session, current_scope(), kind=kind, sort=sort, **asked_page())
    return render_template(
        "billing/documents.html",
        page=page,
        sort=sort,
        kinds=KINDS,
        kind=kind,
        month_name=month_name,
        amount=format_amount,
    )


@pages.get("/<document_id>")
def show(document_id: str) -> ResponseReturnValue:
    """Show an invoice or statement."""
    document = _read(document_id)
    items = decoded(document.items)
    return render_template(
        "billing/document.html",
        document=document,
        items=items[:MAX_ITEMS],
        totals=totals_of(document),
        left_out=max(len(items) - MAX_ITEMS, 0),
        has_sides=any(item.other_side for item in items),
        month=month_name(document.month_at),
        amount=format_amount,
    )


@pages.get("/<document_id>/pdf")
def show_pdf(document_id: str) -> ResponseReturnValue:
    """Download an invoice or statement as PDF."""
    document = _read(document_id)
    response = Response(document_pdf(document), content_type="application/pdf")
    response.headers["Content-Disposition"] = f'attachment; filename="{document.number}.pdf"'
    return response


@pages.get("/<document_id>/csv")
def show_csv(document_id: str) -> ResponseReturnValue:
    """Download the items of an invoice or statement as CSV."""
    document = _read(document_id)
    return stream_file(
        document_csv(document),
        media_type="text/csv; charset=utf-8",
        file_name=f"{document.number}.csv",
    )


def _read(document_id: str) -> BillingDocument:
    current_scope().require(Permission.VIEW_BILLING)
    with database() as session:
        return get_document(session, current_scope(), document_id)
