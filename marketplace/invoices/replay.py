"""Compute what was issued again from the lines of its closings."""

from datetime import datetime

from sqlalchemy import select

from core.db import SessionFactory, transaction
from core.money import ZERO
from marketplace.invoices.items import decoded, items_of, total_of
from marketplace.invoices.models import BillingDocument, Closing, DocumentKind


def replay_documents(
    sessions: SessionFactory, *, since: datetime, until: datetime
) -> tuple[int, list[str]]:
    """Compare closings and documents of months with the lines that they are made of.

    Returns:
        How many closings were compared, and a sentence for each difference. Documents of removed
        tenants, and their closings, are left out.
    """
    problems: list[str] = []
    with transaction(sessions) as session:
        in_months = (Closing.month_at >= since, Closing.month_at < until)
        idents = session.scalars(
            select(Closing.id).where(*in_months, Closing.sealed_at.is_not(None))
        ).all()
        documents = session.scalars(
            select(BillingDocument.id).where(
                BillingDocument.month_at >= since, BillingDocument.month_at < until
            )
        ).all()
    for ident in idents:
        with transaction(sessions) as session:
            closing = session.get_one(Closing, ident)
            issued, computed = (
                total_of(decoded(closing.items)),
                total_of(items_of(session, closing)),
            )
            if decoded(closing.items) != items_of(session, closing):
                problems.append(
                    f"{closing.scope_key} in {closing.month_at:%Y-%m}: the lines come to "
                    f"{computed}, {issued} was closed"
                )
    for ident in documents:
        with transaction(sessions) as session:
            document = session.get_one(BillingDocument, ident)
            is_statement = document.kind is DocumentKind.STATEMENT
            column = Closing.statement_id if is_statement else Closing.document_id
            closings = session.scalars(select(Closing).where(column == ident)).all()
            items = decoded(document.items)
            closed = sum((total_of(decoded(closing.items)) for closing in closings), ZERO)
            is_other = not is_statement and closed != document.net
            if is_other or total_of(items) != document.net:
                problems.append(
                    f"{document.number} of {document.tenant_name}: the items come to "
                    f"{total_of(items)} and the closings to {closed}, it says {document.net}"
                )
    return len(idents), problems
