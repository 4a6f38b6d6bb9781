"""Export what a tenant pays in the columns of FOCUS 1.0, the specification of cost data.

Each line is a row; so is the tax of an invoice, and the rounding of its items, so that the rows of
a billing period add up to its invoice to the cent. The billing period of a line is the month whose
documents have it, or will have it: a row of an earlier charge period is a correction.

Source: focus.finops.org/focus-specification/v1-0
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.csv_cells import guarded
from core.db import SessionFactory, chunked, transaction
from jobqueue.projects.models import Project
from jobqueue.usage.measuring import Period
from marketplace.charges.lines import each_line
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import HOUR, MILLISECONDS_PER_HOUR
from marketplace.invoices.closing import open_month
from marketplace.invoices.items import TIMED, decoded, total_of
from marketplace.invoices.models import BillingDocument, ClosedLine, Closing, DocumentKind
from marketplace.models import Contract
from marketplace.months import month_of, next_month
from tenants.models import Tenant, User
from tenants.permissions import Permission
from tenants.scope import Scope

COLUMNS = (
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName"),
    *("BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory"),
    *("ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd"),
    *("ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId"),
    *("CommitmentDiscountName", "CommitmentDiscountStatus", "CommitmentDiscountType"),
    *("ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory"),
    *("PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId"),
    *("RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory"),
    *("ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags"),
)
UNIT = "GPU-Hours"
BATCH = 2000
_CATEGORIES: Mapping[LineKind, tuple[str, str]] = {
    LineKind.USAGE: ("Usage", "Usage-Based"),
    LineKind.MINIMUM: ("Usage", "Usage-Based"),
    LineKind.RESERVATION: ("Usage", "Usage-Based"),
    LineKind.DISCOUNT: ("Credit", "Usage-Based"),
    LineKind.COMMITMENT: ("Purchase", "Recurring"),
    LineKind.SERVICE_CREDIT: ("Credit", "One-Time"),
    LineKind.CORRECTION: ("Adjustment", "One-Time"),
}
_MOMENT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Billing:
    """What all rows have in common."""

    currency: str
    issuer: str


def focus_csv(
    sessions: SessionFactory, scope: Scope, period: Period, *, currency: str, issuer: str
) -> Iterator[str]:
    """Yield the lines of a CSV file with what the tenant pays for a period, oldest first."""
    scope.require(Permission.VIEW_BILLING)
    billing = Billing(currency, issuer or "Vedette")
    yield _text([{name: name for name in COLUMNS}])
    statement = scope.select(
        select(BillingLine).where(BillingLine.at >= period.since, BillingLine.at < period.until),
        BillingLine,
    )
    batch: list[BillingLine] = []
    for line in each_line(sessions, statement):
        batch.append(line)
        if len(batch) == BATCH:
            yield _rows(sessions, billing, batch)
            batch = []
    yield _rows(sessions, billing, batch)
    with transaction(sessions) as session:
        yield _text(_of_documents(session, scope, billing, period))


def _rows(sessions: SessionFactory, billing: Billing, lines: list[BillingLine]) -> str:
    with transaction(sessions) as session:
        names = _Names(session, lines)
    return _text([_row(line, billing, names) for line in lines])


class _Names:
    """What the lines of a batch refer to."""

    def __init__(self, session: Session, lines: list[BillingLine]) -> None:
        self.months: dict[str, datetime] = {}
        for idents in chunked(line.id for line in lines):
            statement = (
                select(ClosedLine.line_id, Closing.month_at)
                .join(Closing, Closing.id == ClosedLine.closing_id)
                .where(ClosedLine.line_id.in_(idents))
            )
            self.months |= {row[0]: row[1] for row in session.execute(statement)}
        self.open_month = open_month(session)
        contract_ids = {line.contract_id for line in lines}
        contracts = select(Contract).where(Contract.id.in_(contract_ids))
        self.contracts = {contract.id: contract for contract in session.scalars(contracts)}
        self.projects = _names(session, Project.id, Project.name, {row.project_id for row in lines})
        self.tenants = _names(session, Tenant.id, Tenant.name, {row.tenant_id for row in lines})
        self.users = _names(session, User.id, User.email, {row.user_id for row in lines})

    def month_of(self, line: BillingLine) -> datetime:
        """Return the month whose documents have a line, or will have it."""
        own = month_of(line.at)
        return self.months.get(line.id) or max(own, self.open_month or own)


def _names(session: Session, key: Any, name: Any, idents: set[str | None]) -> dict[str, str]:  # noqa: ANN401 - columns
    return {row[0]: row[1] for row in session.execute(select(key, name).where(key.in_(idents)))}


def _row(line: BillingLine, billing: Billing, names: _Names) -> dict[str, str]:
    category, frequency = _CATEGORIES[line.kind]
    contract = names.contracts.get(line.contract_id or "")
    terms = None if contract is None else contract.terms_at(line.at + HOUR)
    month_at = names.month_of(line)
    since, until = _charge_period(line)
    tenant = line.tenant_id, names.tenants.get(line.tenant_id, "")
    provider = tenant[1] if contract is None else contract.provider_name
    row = _common(billing, tenant, month_at, Period(since, until), line.amount) | {
        "ChargeCategory": category,
        "ChargeClass": "Correction" if month_of(line.at) < month_at else "",
        "ChargeDescription": line.note or f"{line.kind.value} of {line.gpu_model or 'GPUs'}",
        "ChargeFrequency": frequency,
        "ProviderName": provider,
        "PublisherName": provider,
        "RegionId": "" if terms is None else terms.region,
        "RegionName": "" if terms is None else terms.region,
        "ResourceId": line.job_id or "",
        "ResourceName": line.job_name,
        "ResourceType": "GPU job" if line.job_id else "",
        "SubAccountId": line.project_id or "",
        "SubAccountName": names.projects.get(line.project_id or "", ""),
        "Tags": json.dumps(
            {
                "contract_id": line.contract_id or "",
                "gpu_model": line.gpu_model,
                "user": names.users.get(line.user_id or "", ""),
            }
        ),
    }
    if line.kind is LineKind.DISCOUNT:
        row["ListCost"] = "0"
    if line.kind in TIMED:
        hours = _decimal(Decimal(line.gpu_milliseconds) / MILLISECONDS_PER_HOUR)
        price = _decimal(line.unit_price)
        row |= {
            "ListUnitPrice": price,
            "ContractedUnitPrice": price,
            "PricingCategory": "Standard",
            "PricingQuantity": hours,
            "PricingUnit": UNIT,
            "SkuId": line.gpu_model,
            "SkuPriceId": f"{line.contract_id or 'own'}:{line.version_number}",
        }
        if category == "Usage":
            row |= {"ConsumedQuantity": hours, "ConsumedUnit": UNIT}
    return row


def _charge_period(line: BillingLine) -> tuple[datetime, datetime]:
    if line.kind is LineKind.COMMITMENT:
        since = month_of(line.at)
        return since, next_month(since)
    is_hour = line.kind in TIMED or line.kind is LineKind.DISCOUNT
    return line.at, line.at + (HOUR if is_hour else _MOMENT)


def _of_documents(
    session: Session, scope: Scope, billing: Billing, period: Period
) -> Iterator[dict[str, str]]:
    """Yield the rows of tax and rounding of what was issued for months that begin in a period.

    So they are in one of several exports of parts of a month.
    """
    statement = scope.select(
        select(BillingDocument).where(
            BillingDocument.kind != DocumentKind.STATEMENT,
            BillingDocument.month_at >= period.since,
            BillingDocument.month_at < period.until,
        ),
        BillingDocument,
    )
    for document in session.scalars(statement.order_by(BillingDocument.month_at)):
        month = Period(document.month_at, next_month(document.month_at))
        tenant = document.tenant_id, document.tenant_name
        closings = session.scalars(select(Closing).where(Closing.document_id == document.id)).all()
        exact = select(func.sum(BillingLine.amount)).join(
            ClosedLine, ClosedLine.line_id == BillingLine.id
        )
        idents = [closing.id for closing in closings]
        closed = sum((total_of(decoded(closing.items)) for closing in closings), Decimal(0))
        lines = session.scalar(exact.where(ClosedLine.closing_id.in_(idents))) or Decimal(0)
        for category, text, amount in (
            ("Adjustment", "Rounding to cents", closed - lines),
            ("Tax", f"Tax of {document.number}", document.tax),
        ):
            if amount:
                yield _common(billing, tenant, month.since, month, amount) | {
                    "ChargeCategory": category,
                    "ChargeDescription": text,
                    "ChargeFrequency": "One-Time",
                    "ProviderName": billing.issuer,
                    "PublisherName": billing.issuer,
                    "Tags": json.dumps({"document": document.number}),
                }


def _common(
    billing: Billing, tenant: tuple[str, str], month_at: datetime, charged: Period, amount: Decimal
) -> dict[str, str]:
    cost = _decimal(amount)
    return {
        "BilledCost": cost,
        "BillingAccountId": tenant[0],
        "BillingAccountName": tenant[1],
        "BillingCurrency": billing.currency,
        "BillingPeriodStart": _instant(month_at),
        "BillingPeriodEnd": _instant(next_month(month_at)),
        "ChargePeriodStart": _instant(charged.since),
        "ChargePeriodEnd": _instant(charged.until),
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": billing.issuer,
        "ListCost": cost,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU time",
    }


def _decimal(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


_TEXTS = frozenset(
    {
        *("BillingAccountName", "ChargeDescription", "InvoiceIssuerName", "ProviderName"),
        *("PublisherName", "RegionId", "RegionName", "ResourceName", "SkuId", "SubAccountName"),
    }
)


def _text(rows: Iterable[dict[str, str]]) -> str:
    """Return rows as CSV; texts of users, providers and appliances are guarded against formulas."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\r\n")
    for row in rows:
        safe = {name: guarded(row[name]) for name in _TEXTS & row.keys()}
        writer.writerow(row | safe)
    return text.getvalue()
